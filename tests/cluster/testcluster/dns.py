"""Just enough DNS to ask whether the cluster's server answers."""

import socket
import struct

from testcluster.network import socket_in_namespace

_QUESTION_ID = 0x7E57
_RECURSION_DESIRED = 0x0100
_TYPE_A, _CLASS_IN = 1, 1


def encode_question(name: str) -> bytes:
    """A query for the IPv4 address of a name."""
    header = struct.pack(">6H", _QUESTION_ID, _RECURSION_DESIRED, 1, 0, 0, 0)
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.rstrip(".").split("."))
    return header + labels + b"\0" + struct.pack(">2H", _TYPE_A, _CLASS_IN)


def is_answer(packet: bytes) -> bool:
    """Whether a packet answers our question with at least one record."""
    if len(packet) < 12:
        return False
    question_id, flags, _, num_answers = struct.unpack(">4H", packet[:8])
    return bool(question_id == _QUESTION_ID and flags & 0xF == 0 and num_answers > 0)


def answers(network_namespace: str, server: str, name: str, timeout_seconds: float = 0.5) -> bool:
    """Whether `server`, asked from inside a network namespace, knows an address of `name`."""
    with socket_in_namespace(network_namespace, socket.SOCK_DGRAM) as asking:
        asking.settimeout(timeout_seconds)
        try:
            asking.sendto(encode_question(name), (server, 53))
            return is_answer(asking.recv(4096))
        except (TimeoutError, ConnectionError):
            return False
