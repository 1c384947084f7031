"""The pod's socket: what a launcher is told when it connects, and what counts of the one before."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from everstep_protocol import local
from everstep_sidecar import launcher_link
from everstep_sidecar.changes import Changes
from everstep_sidecar.launcher_link import LauncherLink
from unit.sidecar.small_pod import run


class Socket:
    """The pod's side and the path of its socket."""

    def __init__(self, path: Path) -> None:
        self.changes = Changes()
        self.link = LauncherLink(path, stir=self.changes.stir, on_saved=lambda: None)
        self._path = path

    @contextlib.asynccontextmanager
    async def launcher(self, nonce: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """One that has said hello; gone afterwards."""
        reader, writer = await asyncio.open_unix_connection(self._path)
        writer.write(local.encode(local.LauncherHello(nonce, 1, 0)))
        await self.changes.wait(lambda: self.link.connected)
        yield reader, writer
        writer.close()
        await self.changes.wait(lambda: not self.link.connected)


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[Socket]:
    with tempfile.TemporaryDirectory(prefix="link-") as folder:  # a unix socket's path has 107 bytes at most
        socket = Socket(Path(folder) / "socket")
        await socket.link.start()
        yield socket
        await socket.link.close()


def test_r7_a_launcher_that_connects_is_told_at_once_what_must_not_run() -> None:
    async def scenario() -> None:
        async with listening() as socket:
            socket.link.forbid(3, 2.0)
            async with socket.launcher("first") as (reader, _):
                assert local.decode(await reader.readline()) == local.Stop(3, 2.0)

    run(scenario())


def test_r7_what_one_launcher_confirmed_counts_for_no_other() -> None:
    async def scenario() -> None:
        async with listening() as socket:
            async with socket.launcher("first") as (_, writer):
                writer.write(local.encode(local.Stopped(5)))
                await socket.changes.wait(lambda: socket.link.is_stopped(5))
            assert not socket.link.is_stopped(5), "it is gone"
            async with socket.launcher("second"):
                assert not socket.link.is_stopped(5), "another one has said nothing yet"

    run(scenario())


def test_r32_how_one_launcher_ended_is_not_the_next_ones_end() -> None:
    async def scenario() -> None:
        async with listening() as socket:
            async with socket.launcher("first") as (_, writer):
                writer.write(local.encode(local.ProcessExited(5, 0, 1, None, False, False, "")))
                await socket.changes.wait(lambda: socket.link.exited is not None)
            async with socket.launcher("first"):
                assert socket.link.exited is not None, "the same one has connected again"
            async with socket.launcher("second"):
                assert socket.link.exited is None

    run(scenario())


def test_r7_trainers_are_silent_since_their_last_sign_of_life_or_since_one_could_have_been_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A launcher that hangs before it has said a word of them is as silent as one that hangs later."""
    clock = SimpleNamespace(monotonic=lambda: clock.now, now=1000.0)
    monkeypatch.setattr(launcher_link, "time", clock)

    async def scenario() -> None:
        async with listening() as socket:
            clock.now += 600.0
            assert socket.link.silent_seconds(2) == 600.0, "no launcher ever came"
            async with socket.launcher("first") as (_, writer):
                clock.now += 100.0
                assert socket.link.silent_seconds(2) == 100.0, "it is there, and says nothing"
                writer.write(local.encode(local.Activity(2, 5.0)) + local.encode(local.Stopped(1)))
                await socket.changes.wait(lambda: socket.link.is_stopped(1))
                clock.now += 1.0
                assert socket.link.silent_seconds(2) == 6.0
                assert socket.link.silent_seconds(3) == 101.0, "that was another attempt"

    run(scenario())
