"""The container's last word: what the kubelet keeps when the launcher has ended."""

from __future__ import annotations

import dataclasses
import os
from contextlib import suppress
from pathlib import Path

from everstep_protocol import codec
from everstep_protocol.local import ProcessExited, TerminationMessage

LIMIT_BYTES = 4096  # the kubelet keeps no more


def write_termination_message(path: Path, message: TerminationMessage) -> bool:
    """False where it cannot be written. Not by rename: the kubelet mounts the file itself."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        with os.fdopen(handle, "wb") as file:
            file.write(encode(message))
    except OSError:
        return False
    return True


def write_result(path: Path, result: str, attempt: int, exited: ProcessExited | None, why: str = "") -> bool:
    """How the launcher ends, and with which of its processes' failures; None: with none, but perhaps for a reason that it was
    told. False where it cannot be written.
    """
    message = TerminationMessage(attempt, result, last_lines=why)
    if exited is not None:
        message = TerminationMessage(attempt, result, exited.exit_code, exited.signal, exited.last_lines)
    return write_termination_message(path, message)


def clear_termination_message(path: Path) -> None:
    """What was left by an attempt that is over must not be taken for the last word of the next."""
    with suppress(OSError):
        path.write_bytes(b"")


def encode(message: TerminationMessage) -> bytes:
    """As JSON of at most LIMIT_BYTES; what is too long loses the beginning of its last lines."""
    while len(raw := codec.dumps(message).encode()) > LIMIT_BYTES:
        excess = max(1, (len(raw) - LIMIT_BYTES) // 12)  # a character takes up to 12 bytes
        message = dataclasses.replace(message, last_lines=message.last_lines[excess:])
    return raw
