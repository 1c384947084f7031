"""What is kept of what a process prints: its end, however much it prints."""

from __future__ import annotations

import os
from pathlib import Path

from everstep.launcher.loop import Loop
from everstep.launcher.output import TAIL_BYTES, Sink, Stream


def test_only_the_end_of_what_a_process_printed_is_kept(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    target = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    loop = Loop()
    stream = Stream(loop, reader, Sink(loop, target), b"")
    stream.open()
    for number in range(100):
        os.write(writer, f"{number:03d}".encode() * 1000)
        stream.drain()
    os.close(writer)
    stream.close()
    os.close(target)
    assert stream.tail == (b"099" * 1000)[-TAIL_BYTES:]
    assert (tmp_path / "log").stat().st_size == 300_000


def test_a_progress_bar_does_not_push_out_what_was_printed_before_it(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    target = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    loop = Loop()
    stream = Stream(loop, reader, Sink(loop, target), b"")
    stream.open()
    os.write(writer, b"loading /data\n")
    for number in range(1000):
        os.write(writer, f"\rtraining: {number}".encode())
        stream.drain()
    os.close(writer)
    stream.close()
    os.close(target)
    assert stream.tail == b"loading /data\ntraining: 999"
    assert (tmp_path / "log").read_bytes().count(b"\r") == 1000  # alone in its pod, it is passed on as it is
