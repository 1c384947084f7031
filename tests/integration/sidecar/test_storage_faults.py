"""Real sidecars on a storage each of whose calls fails or hangs for ever: it is said, nothing is called bad, nothing is tried in a
loop, and when it heals the attempt goes on. The calls are those of a normal life, so that a new one is among them by itself."""

from __future__ import annotations

import errno
import time
import zlib
from collections.abc import Callable, Iterator

import pytest
from integration.sidecar.faulty_world import PHASES, Call, Life, faulty_world

ERRORS = (errno.EIO, errno.ENOSPC, errno.EACCES, errno.ESTALE, errno.ENOENT)
MOST_A_SECOND = 5
SHARES = 4  # worlds among which the calls are dealt out, so that they suffer side by side


@pytest.fixture
def life() -> Iterator[Life]:
    with faulty_world() as one:
        _record(one)
        yield one


def _record(life: Life) -> None:
    """Two normal attempts; the second one resumes from a checkpoint, deletes, and has old things to take away."""
    for _ in range(2):
        for phase in PHASES:
            began = time.monotonic()
            done = getattr(life, phase)()
            life.world.pump_until(done, phase)
            steps = [call for pod in life.world.pods for _, call in life.storage.steps(pod, began)]
            life.storage.recorded[phase] = dict.fromkeys(steps)


@pytest.mark.parametrize("share", range(SHARES))
def test_each_call_of_a_normal_life_may_hang_and_fail_for_ever(life: Life, share: int) -> None:
    recorded = life.storage.recorded
    assert all(recorded[phase] for phase in PHASES)
    calls = {phase: [call for call in recorded[phase] if _share_of(phase, call) == share] for phase in PHASES}
    for number in range(max(map(len, calls.values()))):
        for phase in PHASES:
            if number < len(calls[phase]):
                _suffer(life, phase, calls[phase][number], ERRORS[number % len(ERRORS)])
            else:
                life.world.pump_until(getattr(life, phase)(), phase)
        assert life.world.pods[0].status().over is None


def _share_of(phase: str, call: Call) -> int:
    """The same in each world, in whatever order the calls come there."""
    return zlib.crc32(" ".join((phase, *call)).encode()) % SHARES


def _suffer(life: Life, phase: str, call: Call, number: int) -> None:
    """One phase with one call that hangs until that is said, then fails until that is said, and then is well again."""
    verb, kind = call
    before = set(life.said())
    life.storage.set(f"{verb} {kind} hang")
    began = time.monotonic()
    done = getattr(life, phase)()
    what = f"{phase}: {verb} {kind}"
    is_done = _pump(life, lambda: _new(life, before, hangs=True), done, f"{what} hangs, and it is said")
    if phase in ("start", "finish"):  # names and reads of what may not be there are no failures
        number = errno.EIO if number == errno.ENOENT and verb != "list" else number
    life.storage.set(f"{verb} {kind} {number}")
    if not is_done:
        is_tolerable = verb == "remove" or number == errno.ENOENT
        _pump(life, lambda: _new(life, before), done, f"{what} fails, and it is said", is_enough=is_tolerable)
    elapsed = time.monotonic() - began
    life.storage.set()
    for pod in life.world.pods:
        tries = [one for _, one in life.storage.steps(pod, began) if one == call]
        assert len(tries) <= MOST_A_SECOND * (elapsed + 1), (what, len(tries), elapsed)
    life.world.pump_until(done, f"{what} is well again, and it goes on")


def _new(life: Life, before: set[tuple[str, str]], *, hangs: bool = False) -> bool:
    """The word of a call that hung stays for a moment when it fails instead: it is not the word of the failure."""
    return any(mark not in before and hangs == (mark[0] == "StorageHangs") for mark in life.said())


def _pump(life: Life, said: Callable[[], bool], done: Callable[[], bool], what: str, *, is_enough: bool = True) -> bool:
    """Until it is said, or done where that is enough; gives whether it is done."""
    outcome: list[bool] = []

    def look() -> bool:
        is_done = done()
        outcome[:] = [is_done]
        return said() or (is_done and is_enough)

    life.world.pump_until(look, what)
    return outcome[0]
