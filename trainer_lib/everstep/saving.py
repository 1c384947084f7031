"""Saving: when, whether, one at a time, and what becomes of it. Ranks do it together or not at all (B12, B14, B16, B32).

Of everything here only `after_step` runs in the loop: a comparison, and when a save is due one small all_reduce of our own
group and the copy of the state. Writing goes on in the background; its failure is noticed, counted and told, and training goes on.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch
from everstep_protocol.plan import SaveInterval

from everstep import rng
from everstep.console import say
from everstep.engine import Engine, FlatState
from everstep.errors import SaveError
from everstep.interval import FIRST_SAVE_STEPS, Clock, EverySteps
from everstep.places import MAX_SNAPSHOTS, Place, require_room
from everstep.state import RECORD, RNG, State
from everstep.world import World

_NEVER = 1 << 62
_POLL_SECONDS = 0.02
_PATIENCE_SECONDS = 30.0
_TRIES_AT_THE_END = 3
_ITEM_OVERHEAD_BYTES = 2048  # what DCP writes around each tensor and value


@dataclass
class Counts:
    """Saves of this attempt that were not made."""

    skipped: int = 0
    failed: int = 0


@dataclass
class _Flight:
    """The newest save: in the background until `settled`, then good or not."""

    step: int
    settled: Future[None] = field(default_factory=Future)


class Saver:
    """Saves the state to a place. Every method is called by all ranks at the same step."""

    def __init__(self, state: State, engine: Engine, place: Place, world: World, interval: SaveInterval) -> None:
        self.counts = Counts()
        self._state = state
        self._engine = engine
        self._place = place
        self._world = world
        self._every = EverySteps(interval.steps) if interval.steps else None
        self._seconds = interval.seconds
        self._ask_at = _NEVER
        self._last_gap = FIRST_SAVE_STEPS
        self._saved_at = 0.0
        self._flight: _Flight | None = None
        self._failed = False  # the newest save failed here, and the other ranks do not know it yet
        self._told_skip = ""

    def start(self, step: int) -> None:
        """The attempt begins after `step` finished steps."""
        self._saved_at = time.monotonic()
        if self._seconds is not None:
            self._ask_at = step + FIRST_SAVE_STEPS
            self._saved_at -= self._seconds  # the first one is wanted as soon as it is asked for

    def after_step(self, step: int, *, usual_step_seconds: float, samples_consumed: int) -> None:
        """Save if it is due and all ranks can; tell of a save that has failed meanwhile."""
        self._notice_failure()
        by_steps = self._every is not None and self._every.is_due(step)
        if by_steps or step == self._ask_at:
            self._agree_and_save(step, by_steps, usual_step_seconds, samples_consumed)

    def save_whole(self, step: int, *, samples_consumed: int) -> None:
        """Return when the state after `step` is saved by all ranks. Raises SaveError after some tries."""
        for _ in range(_TRIES_AT_THE_END):
            self._wait_settled()
            self._agree_on_failure()
            if self._flight is not None and self._flight.step == step:
                return
            state = self._state.capture()
            self._wait_for_room(state)
            self._begin(step, state, samples_consumed)
        self._wait_settled()
        if self._agree_on_failure():
            raise SaveError(f"the state after step {step} could not be saved, tried {_TRIES_AT_THE_END} times")

    def drain(self) -> None:
        """Return when no save is in the background any more."""
        self._wait_settled()

    # ------------------------------------------------------------------ the agreement

    def _agree_and_save(self, step: int, by_steps: bool, usual_step_seconds: float, samples_consumed: int) -> None:
        clock = self._clock(usual_step_seconds)
        wanted, next_gap = (clock.wants_save(), clock.next_gap()) if clock else (False, _NEVER)
        lead = self._world.rank == 0
        state = self._state.capture()
        hindrance = self._hindrance(state)
        settled, good, free, wished, gap = self._world.least(
            [
                self._is_settled(),
                not self._failed,
                not hindrance,
                (by_steps or wanted) if lead else 1,
                next_gap if lead else _NEVER,
            ]
        )
        self._last_gap, self._ask_at = gap, step + gap
        if settled and not good:
            self._forget_failed()
        if not wished:
            return
        if not free:
            self._skip(step, hindrance)
            return
        self._saved_at = time.monotonic()
        self._begin(step, state, samples_consumed)

    def _clock(self, usual_step_seconds: float) -> Clock | None:
        if self._seconds is None:
            return None
        return Clock(self._seconds, time.monotonic() - self._saved_at, usual_step_seconds, self._last_gap)

    def _hindrance(self, state: FlatState) -> str:
        """Why this rank cannot begin a save now; empty: it can."""
        if not self._is_settled():
            return "the save before is not finished"
        if self._place.num_waiting() >= MAX_SNAPSHOTS:
            return f"{MAX_SNAPSHOTS} snapshots still wait to be written to storage"
        return require_room(self._place, self._needed_bytes(state))

    def _skip(self, step: int, hindrance: str) -> None:
        self.counts.skipped += 1
        if hindrance and hindrance != self._told_skip:
            say(f"rank {self._world.rank}: no save after step {step}, on any rank: {hindrance}")
            self._told_skip = hindrance

    def _needed_bytes(self, state: FlatState) -> int:
        """About what this pod's ranks will write: sharded tensors as they are, replicated ones spread over all ranks."""
        own = sum(_local_bytes(value, self._world.size) for value in state.values.values())
        overhead = _ITEM_OVERHEAD_BYTES * len(state.values)
        return int(1.05 * (own + overhead) * self._world.local_size)

    # ------------------------------------------------------------------ one save

    def _begin(self, step: int, state: FlatState, samples_consumed: int) -> None:
        pending = self._engine.save(self._with_ours(state, step, samples_consumed), self._place.make(step))
        flight = self._flight = _Flight(step)

        def settle() -> None:
            try:
                pending.wait()
                self._place.publish(step, samples_consumed)
            except BaseException as error:  # noqa: BLE001 - the ranks wait for this answer, whatever it is
                flight.settled.set_exception(error)
            else:
                flight.settled.set_result(None)

        pending.on_done(settle)

    def _with_ours(self, state: FlatState, step: int, samples_consumed: int) -> FlatState:
        keys = {name: sum(path[0] == name for path in state.paths.values()) for name in self._state.entries}
        record = {"step": step, "world": self._world.size, "samples_consumed": samples_consumed, "keys": keys}
        ours = {(RECORD,): record, (RNG, str(self._world.rank)): rng.snapshot()}
        for path, value in ours.items():
            state.values[".".join(path)] = value
            state.paths[".".join(path)] = path
        return state

    def _is_settled(self) -> bool:
        return self._flight is None or self._flight.settled.done()

    def _notice_failure(self) -> None:
        """B14: a save that failed here is counted and told in the next step; that other ranks drop it too is agreed later."""
        if self._failed or self._flight is None or not self._flight.settled.done():
            return
        error = self._flight.settled.exception()
        if error is None:
            return
        self._failed = True
        self.counts.failed += 1
        self._place.discard(self._flight.step)
        if self._world.rank == 0 or isinstance(error, OSError):
            say(f"rank {self._world.rank}: the save after step {self._flight.step} failed, training goes on: {error}")

    def _forget_failed(self) -> None:
        """All ranks know that the newest save failed on some: nothing of it stays on any."""
        if self._flight is not None and not self._failed:
            self.counts.failed += 1
            self._place.discard(self._flight.step)
        self._flight, self._failed = None, False

    def _agree_on_failure(self) -> bool:
        """Whether the newest save, settled on all ranks, failed on any; then it is forgotten on all."""
        self._notice_failure()
        (good,) = self._world.least([not self._failed])
        if not good:
            self._forget_failed()
        return not good

    # ------------------------------------------------------------------ waiting, at the end only

    def _wait_settled(self) -> None:
        if self._flight is not None:
            self._flight.settled.exception()

    def _wait_for_room(self, state: FlatState) -> None:
        """Return when all ranks can begin a save. Raises SaveError on all where that can never be."""
        since = time.monotonic()
        while True:
            hindrance = self._hindrance(state)
            free, hopeful = self._world.least([not hindrance, not (hindrance and self._place.num_waiting() == 0)])
            if free:
                return
            if not hopeful:
                raise SaveError(f"no room for the save at the end: {hindrance or 'on another rank'}")
            if time.monotonic() - since > _PATIENCE_SECONDS:
                since = time.monotonic()
                say(f"rank {self._world.rank}: the last save waits: {hindrance or 'for another rank'}")
            time.sleep(_POLL_SECONDS)


def _local_bytes(value: Any, world: int) -> int:
    if not isinstance(value, torch.Tensor):
        return 0
    if hasattr(value, "to_local"):
        part = value.to_local()
        return int(part.numel() * part.element_size())
    return int(value.numel() * value.element_size()) // world
