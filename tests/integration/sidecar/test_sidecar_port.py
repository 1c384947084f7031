"""ST16: the sidecar's port holds against strangers, and a recorded request is worth nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from everstep_protocol import auth, codec
from everstep_protocol.messages import Ping, PollRequest
from everstep_sidecar.core.unproven import STRANGERS
from integration.sidecar.sidecar_harness import HANG_SECONDS, Pod, until

GROWTH_KIB = 64 << 10
JUST_COMING = 128  # accepted, and those that they displace are not closed yet
LAUNCHER = 1  # its connection may be accepted only after the first count
PING = codec.dumps(Ping(0)).encode()


def rss_kib(pod: Pod) -> int:
    assert pod.process is not None
    text = Path(f"/proc/{pod.process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", text)[1])  # type: ignore[index]


def num_descriptors(pod: Pod) -> int:
    assert pod.process is not None
    return len(os.listdir(f"/proc/{pod.process.pid}/fd"))  # noqa: PTH208


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return bool(connection.recv(1))
    except BlockingIOError:
        return True


@contextlib.contextmanager
def crowd(pod: Pod, port: int):
    """300 strangers and more; yields an event: each of them was turned away at least once."""
    script = Path(__file__).with_name("hostile.py")
    process = subprocess.Popen([sys.executable, str(script), pod.ip, str(port)], stdout=subprocess.PIPE, text=True)
    all_closed = threading.Event()

    def listen() -> None:
        assert process.stdout is not None
        if "all were closed" in process.stdout.read(len("all were closed")):
            all_closed.set()

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        yield all_closed
    finally:
        process.kill()
        process.wait()
        listener.join()


def test_st16_the_port_holds_against_a_crowd_of_strangers(make_world):
    world = make_world(2)
    one = world.begin(1, world.pods)
    pod, member = world.pods
    proven = http.client.HTTPConnection(pod.ip, pod.port, timeout=HANG_SECONDS)
    pod.poll(None, 1, wait=0.0)
    ping_on(pod, proven)
    with socket.create_connection((pod.ip, pod.port), HANG_SECONDS, (member.ip, 0)) as idle:
        rss, descriptors, log_bytes = rss_kib(pod), num_descriptors(pod), pod.log.stat().st_size
        worst_rss, worst_descriptors = rss, descriptors

        def poll() -> None:
            nonlocal worst_rss, worst_descriptors
            assert pod.poll(None, 1, wait=0.0).plan_id == one.plan_id
            ping_on(pod, proven)  # as its owner would: unused for `KEPT_SECONDS` it is closed, crowd or no crowd
            worst_rss, worst_descriptors = max(worst_rss, rss_kib(pod)), max(worst_descriptors, num_descriptors(pod))

        with crowd(pod, pod.port) as all_closed:
            for _ in range(50):
                poll()
            until(lambda: poll() or all_closed.is_set(), "every stranger was turned away", 4 * HANG_SECONDS)
            for _ in range(50):
                poll()
        assert worst_rss - rss < GROWTH_KIB
        assert worst_descriptors - descriptors <= STRANGERS + JUST_COMING
        until(lambda: num_descriptors(pod) <= descriptors + LAUNCHER, "no stranger is left")
        assert is_open(idle)
    poll()
    proven.close()
    log = pod.log.read_text()[log_bytes:]
    assert "Traceback" not in log
    assert "is silent" not in log + member.log.read_text()
    assert len(log) < 64 << 10


def test_st16_metrics_and_health_hold_as_well(make_world):
    pod = make_world(1, launchers=False).pods[0]  # none that is accepted only now
    rss, descriptors = rss_kib(pod), num_descriptors(pod)
    with crowd(pod, pod.metrics_port) as all_closed:
        until(lambda: pod.get("/healthz", metrics=True) and all_closed.is_set(), "turned away", 4 * HANG_SECONDS)
        assert rss_kib(pod) - rss < GROWTH_KIB
        assert num_descriptors(pod) - descriptors <= STRANGERS + JUST_COMING
    until(lambda: num_descriptors(pod) <= descriptors + LAUNCHER, "no stranger is left")
    assert pod.get("/metrics", metrics=True)


def ping_on(pod: Pod, connection: http.client.HTTPConnection) -> None:
    head = pod.head("/v1/ping", PING)
    connection.request("POST", head.path, PING, head.headers(pod.token))
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["finished"]) == (200, False)


def test_r22_a_request_that_was_heard_before_a_restart_is_refused_after_it(make_world):
    world = make_world(1)
    pod = world.pods[0]
    pod.ask("/v1/ping", Ping(0))
    head = pod.head("/v1/ping", PING)
    assert pod.exchange(head, PING)[0] == 200
    assert pod.exchange(head, PING)[0] == 409
    pod.kill()
    pod.start()
    until(pod.is_up, "it is back")
    status, problem = pod.exchange(head, PING)
    assert status == auth.OTHER_BOOT
    assert problem["boot"] not in ("", pod.boot)
    assert pod.exchange(head, PING)[0] == auth.OTHER_BOOT
    assert pod.ask("/v1/ping", Ping(0))[0] == 200


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"path": "/v1/leave"}, 401),
        ({"recipient": "uid-1"}, 401),
        ({"sender": "uid-1"}, 401),
        ({"boot": ""}, 401),
        ({"nonce": "f" * 32}, 401),
        ({"body_sha256": auth.body_sha256(b"{}")}, 401),
    ],
)
def test_r22_a_signature_counts_for_one_request(make_world, change, status):
    pod = make_world(1).pods[0]
    pod.ask("/v1/ping", Ping(0))
    head = pod.head("/v1/ping", PING)
    signed = head.headers(pod.token)[auth.HEADER_SIGNATURE]
    changed = dataclasses.replace(head, **change)
    headers = {**changed.headers(pod.token), auth.HEADER_SIGNATURE: signed}
    assert raw_post(pod, changed.path, headers, PING)[0] == status
    assert pod.exchange(head, PING)[0] == 200


def test_r22_another_pod_of_the_job_does_not_take_it(make_world):
    world = make_world(2)
    pod, other = world.pods
    pod.ask("/v1/ping", Ping(0))
    head = pod.head("/v1/ping", PING)
    assert raw_post(other, head.path, head.headers(pod.token), PING)[0] == 421


def raw_post(pod: Pod, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(pod.ip, pod.port, timeout=HANG_SECONDS)
    try:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def conversation(pod: Pod, head: auth.RequestHead, length: str, sent: bytes) -> tuple[list[int], bytes]:
    """Say this on a connection of its own, until the other side closes it: the statuses of the answers, and all that was read."""
    lines = [
        f"POST {head.path} HTTP/1.1",
        "Host: a",
        "Connection: close",
        length,
        *(f"{k}: {v}" for k, v in head.headers(pod.token).items()),
    ]
    with socket.create_connection((pod.ip, pod.port), HANG_SECONDS) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + sent)
        heard = b""
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(1 << 16):
                heard += part
    return [int(status) for status in re.findall(rb"^HTTP/1\.[01] (\d+)", heard, re.MULTILINE)], heard


@pytest.mark.parametrize(
    ("signed", "length", "sent", "statuses", "words"),
    [
        (PING, f"Content-Length: {len(PING)}", b"x" * len(PING), [400], b"not the one that was signed"),
        (PING, f"Content-Length: {len(PING)}", PING + b"more", [400], b""),
        (PING, f"Content-Length: {len(PING)}", b"", [408], b"did not come within"),
        (PING, f"Content-Length: {len(PING)}", PING[:-1], [408], b"did not come within"),
        (PING, f"Content-Length: {64 << 20}", PING, [413], b"takes at most"),
        (PING, "Transfer-Encoding: chunked", b"%x\r\n%s\r\n" % (len(PING), PING), [411], b"does not say how long"),
    ],
    ids=["another", "longer", "never", "not all", "too long", "of unknown length"],
)
def test_st16_a_body_is_what_was_signed_or_nothing(make_world, signed, length, sent, statuses, words):
    pod = make_world(1).pods[0]
    pod.ask("/v1/ping", Ping(0))
    descriptors = num_descriptors(pod)
    answered, heard = conversation(pod, pod.head("/v1/ping", signed), length, sent)
    assert answered == statuses
    assert words in heard
    until(lambda: num_descriptors(pod) <= descriptors + LAUNCHER, "its connection is closed")


def test_st16_who_may_not_ask_is_refused_before_the_body(make_world):
    world = make_world(1)
    pod = world.pods[0]
    pod.ask("/v1/ping", Ping(0))
    for path, sender, expected in (("/v1/poll", "uid-9", 403), ("/v1/none", "uid-9", 404)):
        head = pod.head(path, PING, sender=sender)
        assert conversation(pod, head, "Content-Length: 100000", b"")[0] == [expected]
    poll = PollRequest(None, 0.0, 0)
    assert pod.ask("/v1/poll", poll)[0] == 200
