"""Calls into the storage that do not return or fail: said, by real threads; and the one back-off of the package."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import threading
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from everstep_protocol.messages import Trouble
from everstep_sidecar import commits, deletions, saver, storage_calls
from everstep_sidecar.backoff import Backoff
from everstep_sidecar.storage_calls import StorageCalls
from everstep_sidecar.store.files import Files
from everstep_sidecar.store.steps import Steps
from hang_limit import hang_seconds

LIMIT_SECONDS = hang_seconds(30.0)


class Storage:
    """A call's other side: it blocks at a step until it is let go, or fails."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.arrived = threading.Event()
        self.error: int | None = None

    def read(self, root: Path) -> str:
        Files().step("read", root / "attempts" / "0003")
        self.arrived.set()
        assert self.let_go.wait(LIMIT_SECONDS)
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error), str(root / "attempts" / ".probe-77"))
        return "read"


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    monkeypatch.setattr(storage_calls, "HANG_SECONDS", 0.05)
    monkeypatch.setattr(storage_calls, "LOOK_SECONDS", 0.01)
    one = Storage()
    yield one
    one.let_go.set()


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, LIMIT_SECONDS))


class Told:
    """Hears when the trouble becomes another one, as polls do."""

    def __init__(self, calls: StorageCalls) -> None:
        self._calls = calls
        self._changed = asyncio.Event()
        self._watch = asyncio.create_task(calls.watch(self._changed.set))

    async def trouble(self) -> Trouble:
        """Once there is one."""
        while (trouble := self._calls.trouble()) is None:
            await self._change()
        return trouble

    async def nothing(self) -> None:
        """Once there is none."""
        while self._calls.trouble() is not None:
            await self._change()

    def close(self) -> None:
        self._watch.cancel()
        self._calls.close()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


def test_a_call_that_does_not_return_is_said_with_node_and_path_until_it_does(storage: Storage, tmp_path: Path) -> None:
    async def scenario() -> None:
        calls = StorageCalls(tmp_path, "gpt-w1 on node-1")
        told = Told(calls)
        steps = Steps()
        work = asyncio.create_task(calls.call(storage.read, steps=steps))
        first = await told.trouble()
        assert first.reason == "StorageHangs"
        assert first.message.startswith("gpt-w1 on node-1: the storage does not answer")
        assert f"read {tmp_path / 'attempts' / '0003'} has not returned" in first.message
        assert steps.age_seconds >= 0.05
        storage.let_go.set()
        assert await work == "read"
        await told.nothing()
        told.close()

    run(scenario())


def test_a_call_whose_caller_went_away_is_still_said(storage: Storage, tmp_path: Path) -> None:
    async def scenario() -> None:
        calls = StorageCalls(tmp_path, "gpt-w1 on node-1")
        told = Told(calls)
        work = asyncio.create_task(calls.call(storage.read))
        await asyncio.to_thread(storage.arrived.wait, LIMIT_SECONDS)
        work.cancel()
        assert (await told.trouble()).reason == "StorageHangs"
        storage.let_go.set()
        await told.nothing()
        told.close()

    run(scenario())


def test_what_fails_again_and_again_is_said_in_the_same_words_until_it_succeeds(
    storage: Storage, tmp_path: Path
) -> None:
    async def scenario() -> None:
        calls = StorageCalls(tmp_path, "gpt-w1 on node-1")
        storage.let_go.set()
        storage.error = errno.EIO
        found = []
        for _ in range(2):
            with pytest.raises(OSError, match="Input/output"):
                await calls.call(storage.read)
            found.append(calls.trouble())
        assert [trouble and trouble.reason for trouble in found] == ["EIO", "EIO"]
        assert found[0].message == found[1].message
        assert str(tmp_path / "attempts") in found[0].message
        assert found[1].age_seconds > found[0].age_seconds
        storage.error = None
        await calls.call(storage.read)
        assert calls.trouble() is None
        calls.close()

    run(scenario())


def test_a_failure_that_nobody_tried_again_is_forgotten(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        calls = StorageCalls(tmp_path, "gpt-w1 on node-1")
        storage.let_go.set()
        storage.error = errno.EIO
        with pytest.raises(OSError, match="Input/output"):
            await calls.call(storage.read)
        assert calls.trouble() is not None
        monkeypatch.setattr(storage_calls, "RECENT_SECONDS", 0.0)
        assert calls.trouble() is None
        before = time.monotonic()
        with pytest.raises(OSError, match="Input/output"):
            await calls.call(storage.read)
        monkeypatch.undo()
        again = calls.trouble()
        assert again is not None
        assert again.age_seconds <= time.monotonic() - before, "it began anew"
        calls.close()

    run(scenario())


def test_st17_no_pause_between_tries_makes_a_failure_come_and_go() -> None:
    longest = max(deletions.LONGEST_SECONDS, commits.LARGEST_BACKOFF_SECONDS, saver.LARGEST_BACKOFF_SECONDS)
    assert 1.25 * longest < storage_calls.RECENT_SECONDS


def test_a_storage_that_hangs_starves_no_file_of_this_pods_own(storage: Storage, tmp_path: Path) -> None:
    async def scenario() -> None:
        calls = StorageCalls(tmp_path, "gpt-w1 on node-1")
        told = Told(calls)
        waiting = [asyncio.create_task(calls.call(storage.read)) for _ in range(storage_calls.NUM_THREADS + 3)]
        await told.trouble()
        assert await asyncio.to_thread(lambda: "local") == "local"
        storage.let_go.set()
        assert await asyncio.gather(*waiting) == ["read"] * len(waiting)
        told.close()

    run(scenario())


def test_st3_tries_fall_off_from_five_a_second_to_one_in_seconds() -> None:
    backoff = Backoff()
    waits = [backoff.take() for _ in range(10)]
    assert 0.2 <= waits[0] <= 0.25
    assert all(later >= 1.2 * earlier for earlier, later in itertools.pairwise(waits[:5]))
    assert all(5.0 <= wait <= 6.25 for wait in waits[5:])
    assert backoff.has_paused
    backoff.reset()
    assert not backoff.has_paused
    assert backoff.take() <= 0.25
