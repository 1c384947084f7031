"""R32: which of several failures is the cause."""

from __future__ import annotations

import pytest
from everstep.launcher.cause import Failure, choose_cause, is_peer_lost
from everstep.launcher.processes import Exit

GLOO = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:3\n"
)
CRASH = Failure(Exit(1, 1, None), "ZeroDivisionError\n")
KILLED = Failure(Exit(2, None, 9), "")
PEER = Failure(Exit(0, 1, None), GLOO)


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        ([CRASH], CRASH),
        ([PEER], PEER),
        ([PEER, CRASH], CRASH),
        ([PEER, KILLED], KILLED),
        ([CRASH, KILLED, PEER], KILLED),
    ],
)
def test_r32_first_cause(failures: list[Failure], expected: Failure) -> None:
    assert choose_cause(failures) is expected


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        (GLOO, True),
        ("[../gloo/transport/tcp/pair.cc:598] Read error [10.0.0.2]:80: Connection reset by peer", True),
        ("torch.distributed.DistNetworkError: Connection was likely closed. Did the remote server shutdown?", True),
        ("[c10d] recvValueWithTimeout failed on SocketImpl(fd=3): failed to recv, got 0 bytes", True),
        (
            "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
            True,
        ),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", False),  # the user's own data server
        ("requests.exceptions.ConnectionError: broken pipe", False),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory", False),
        ("[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation", False),  # a hang
        ("torch.distributed.DistNetworkError: failed to recv, got 0 bytes", True),
        ("", False),
    ],
)
def test_r32_peer_lost_by_its_last_lines(text: str, lost: bool) -> None:
    assert is_peer_lost(Exit(0, 1, None), text) is lost


def test_r32_a_signal_speaks_for_itself() -> None:
    assert not is_peer_lost(Exit(0, None, 9), GLOO)
    assert is_peer_lost(Exit(0, None, 6), GLOO)  # NCCL's watchdog aborts
