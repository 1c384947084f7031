"""Saving: when, whether, one at a time, and what becomes of it. Ranks do it together or not at all (B12, B14, B16, B32).

Of everything here only `after_step` runs in the loop: a comparison, and when a save is due two small all_reduces of our own
group and the copy of the state. Writing goes on in the background. What cannot be saved, or could never be loaded again, fails the
save on all ranks; that is noticed, counted and told, and training goes on.
"""

from __future__ import annotations

import time

import torch
from everstep_protocol.plan import SaveInterval

from everstep.console import say
from everstep.engine import Engine, FlatState
from everstep.errors import SaveError, StateError
from everstep.interval import FIRST_SAVE_STEPS, Clock, EverySteps
from everstep.outcomes import Counts, FailedSave, Flight
from everstep.places import MAX_SNAPSHOTS, Place, require_room
from everstep.state import tensors
from everstep.state.report import SaveAgreement
from everstep.state.state import Flat, State
from everstep.world import World

_NEVER = 1 << 62
_POLL_SECONDS = 0.02
_PATIENCE_SECONDS = 30.0
_TRIES_AT_THE_END = 3
_ITEM_OVERHEAD_BYTES = 2048  # what DCP writes around each tensor and value


class Saver:
    """Saves the state to a place. Every method is called by all ranks at the same step."""

    def __init__(self, state: State, engine: Engine, place: Place, world: World, interval: SaveInterval) -> None:
        self.counts = Counts()
        self.failure: FailedSave | None = None  # of the newest save that was wanted; None: it is good, or not settled
        self._state = state
        self._engine = engine
        self._place = place
        self._world = world
        self._every = EverySteps(interval.steps) if interval.steps else None
        self._seconds = interval.seconds
        self._ask_at = _NEVER
        self._last_gap = FIRST_SAVE_STEPS
        self._saved_at = 0.0
        self._flight: Flight | None = None
        self._failed = False  # the newest save failed here, and the other ranks do not know it yet
        self._told_skip = ""

    def start(self, step: int) -> None:
        """The attempt begins after `step` finished steps."""
        self._saved_at = time.monotonic()
        if self._seconds is not None:
            self._ask_at = step + FIRST_SAVE_STEPS
            self._saved_at -= self._seconds  # the first one is wanted as soon as it is asked for

    def after_step(self, step: int, *, usual_step_seconds: float) -> None:
        """Save if it is due and all ranks can; tell of a save that has failed meanwhile."""
        self._notice_failure()
        by_steps = self._every is not None and self._every.is_due(step)
        if by_steps or step >= self._ask_at:
            self._agree_and_save(step, by_steps, usual_step_seconds)

    def save_whole(self, step: int) -> None:
        """Return when the state after `step` is saved by all ranks. Raises SaveError after some tries."""
        for _ in range(_TRIES_AT_THE_END):
            self._wait_settled()
            self._agree_on_failure()
            if self._flight is not None and self._flight.step == step:
                return
            content = self._content(step)
            self._require_sound(step, content)
            self._wait_for_room(content)
            self._begin(step, content)
        self._wait_settled()
        reason = self._agree_on_failure()
        if reason:
            raise SaveError(
                f"the state after step {step} could not be saved, tried {_TRIES_AT_THE_END} times: {reason}"
            )

    def samples_consumed(self, step: int) -> int:
        """How many samples of the global order were taken in the steps up to this one."""
        return self._state.samples_consumed(step)

    def drain(self) -> bool:
        """Return when no save is in the background any more. False: on the thread that saves, which cannot wait for itself."""
        pending = self._flight.pending if self._flight is not None else None
        if pending is None:  # none was begun, or it failed before a thread could
            return True
        if pending.runs_here():
            return False
        self._wait_settled()
        self._notice_failure()
        return True

    # ------------------------------------------------------------------ the agreement

    def _agree_and_save(self, step: int, by_steps: bool, usual_step_seconds: float) -> None:
        clock = self._clock(usual_step_seconds)
        wanted, next_gap = (clock.wants_save(), clock.next_gap()) if clock else (False, _NEVER)
        lead = self._world.rank == 0
        content = self._content(step)
        is_settled = self._is_settled()  # once: a save that fails meanwhile is for the next time
        self._notice_failure()
        hindrance = self._hindrance(content, is_settled)
        settled, good, free, sound, wished, gap = self._world.least(
            [
                is_settled,
                not self._failed,
                not hindrance,
                not isinstance(content, str),
                (by_steps or wanted) if lead else 1,
                next_gap if lead else _NEVER,
            ]
        )
        self._last_gap, self._ask_at = gap, step + gap
        if settled and not good:
            self._forget_failed()
        if not wished:
            return
        if not sound:
            self._refuse(step, content)
        elif not free:
            self._skip(step, hindrance)
        else:
            self._saved_at = time.monotonic()
            self._begin(step, content)

    def _clock(self, usual_step_seconds: float) -> Clock | None:
        if self._seconds is None:
            return None
        return Clock(self._seconds, time.monotonic() - self._saved_at, usual_step_seconds, self._last_gap)

    def _content(self, step: int) -> Flat | str:
        """What this rank is to save, or why it cannot."""
        try:
            return self._state.capture(step, rank=self._world.rank)
        except StateError as problem:
            return str(problem)

    def _hindrance(self, content: Flat | str, is_settled: bool) -> str:
        """Why this rank cannot begin a save now; empty: it can."""
        if not is_settled:
            return "the save before is not finished"
        if self._place.num_waiting() >= MAX_SNAPSHOTS:
            return f"{MAX_SNAPSHOTS} snapshots still wait to be written to storage"
        return "" if isinstance(content, str) else require_room(self._place, self._needed_bytes(content))

    def _skip(self, step: int, hindrance: str) -> None:
        self.counts.skipped += 1
        if hindrance and hindrance != self._told_skip:
            self._tell(step, hindrance)
            self._told_skip = hindrance

    def _refuse(self, step: int, content: Flat | str) -> None:
        """TR4: something in the state could never be loaded again, on this rank or on another."""
        self.counts.failed += 1
        reasons = [reason for reason in self._world.gather(content if isinstance(content, str) else "") if reason]
        self.failure = FailedSave(step, "StateRefused", reasons[0])
        if isinstance(content, str):
            self._tell(step, content)

    def _tell(self, step: int, reason: str) -> None:
        say(f"rank {self._world.rank}: no save after step {step}, on any rank; training goes on: {reason}")

    def _needed_bytes(self, flat: Flat) -> int:
        """About what this pod's ranks will write: sharded tensors as they are, replicated ones spread over all ranks."""
        own = sum(tensors.num_own_bytes(value, self._world.size) for value in flat.values.values())
        overhead = _ITEM_OVERHEAD_BYTES * len(flat.values)
        return int(1.05 * (own + overhead) * self._world.local_size)

    # ------------------------------------------------------------------ one save

    def _begin(self, step: int, content: Flat | str) -> None:
        """Freeze the state (B12) and write it, on all ranks or on none."""
        assert isinstance(content, Flat), "all ranks have agreed that there is something to save"
        flight = self._flight = Flight(step)
        try:
            self._launch(flight, content)
        except BaseException as error:
            if not flight.settled.done():  # or whoever waits for it waits for ever
                flight.settled.set_exception(error)
            raise

    def _launch(self, flight: Flight, content: Flat) -> None:
        problem = self._freeze(content) or self._make_room_for(flight.step)
        if not self._world.least([not problem])[0]:
            flight.settled.set_exception(SaveError(problem or "another rank could not begin"))
            return
        agreement = SaveAgreement(content, flight.step, rank=self._world.rank, world=self._world.size)
        state = FlatState(content.values, content.paths)
        pending = flight.pending = self._engine.save(state, self._place.directory(flight.step), agreement)

        def settle() -> None:
            try:
                pending.wait()
                self._place.publish(flight.step, content.samples_consumed)
            except BaseException as error:  # noqa: BLE001 - the ranks wait for this answer, whatever it is
                flight.settled.set_exception(error)
            else:
                flight.settled.set_result(None)

        pending.on_done(settle)

    def _make_room_for(self, step: int) -> str:
        """The directory for its writer. Gives why it could not be made, empty: it is."""
        try:
            self._place.make(step)
        except OSError as error:
            return f"{self._place.directory(step)} cannot be made: {error}"
        return ""

    def _freeze(self, flat: Flat) -> str:
        """Copies of all tensors. Gives why one could not be copied (no memory), empty: all are."""
        with torch.no_grad():
            for key, value in flat.values.items():
                if tensors.is_tensor(value):
                    try:
                        flat.values[key] = tensors.frozen(value)
                    except (RuntimeError, MemoryError) as error:
                        return f"{key}: it cannot be copied: {error}"
        return ""

    def _is_settled(self) -> bool:
        return self._flight is None or self._flight.settled.done()

    def _notice_failure(self) -> None:
        """B14: a save that failed here is counted and told in the next step; that other ranks drop it too is agreed later."""
        if self._failed or self._flight is None or not self._flight.settled.done():
            return
        error = self._flight.settled.exception()
        if error is None:
            if self.failure is not None and self._flight.step > self.failure.step:
                self.failure = None
            return
        self._failed = True
        self.counts.failed += 1
        reason = "StateRefused" if isinstance(error.__cause__, StateError) else "SaveFailed"
        self.failure = FailedSave(self._flight.step, reason, str(error))
        self._place.discard(self._flight.step)
        if self._world.rank == 0 or isinstance(error, OSError):
            say(f"rank {self._world.rank}: the save after step {self._flight.step} failed, training goes on: {error}")

    def _forget_failed(self) -> None:
        """All ranks know that the newest save failed on some: nothing of it stays on any."""
        if self._flight is not None and not self._failed:
            self.counts.failed += 1
            self._place.discard(self._flight.step)
        self._flight, self._failed = None, False

    def _agree_on_failure(self) -> str:
        """Why the newest save, settled on all ranks, failed on any; then it is forgotten on all. Empty: it did not."""
        self._notice_failure()
        (good,) = self._world.least([not self._failed])
        if good:
            return ""
        error = self._flight.settled.exception() if self._flight is not None else None
        self._forget_failed()
        return (str(error) or repr(error)) if error is not None else "another rank failed"

    # ------------------------------------------------------------------ waiting, at the end only

    def _wait_settled(self) -> None:
        if self._flight is not None:
            self._flight.settled.exception()

    def _require_sound(self, step: int, content: Flat | str) -> None:
        """Raises SaveError on all ranks where the state cannot be saved on one."""
        reasons = self._world.gather(content if isinstance(content, str) else "")
        told = {reason: rank for rank, reason in reversed(list(enumerate(reasons))) if reason}
        if told:
            self.counts.failed += 1
            text = "; ".join(f"rank {rank}: {reason}" for reason, rank in told.items())
            self.failure = FailedSave(step, "StateRefused", text)
            raise SaveError(f"the state after step {step} cannot be saved: {text}")

    def _wait_for_room(self, content: Flat | str) -> None:
        """Return when all ranks can begin a save. Raises SaveError on all where that can never be."""
        since = time.monotonic()
        while True:
            num_waiting = self._place.num_waiting()  # before the look: what is taken away meanwhile makes room
            hindrance = self._hindrance(content, self._is_settled())
            free, hopeful = self._world.least([not hindrance, not (hindrance and num_waiting == 0)])
            if free:
                return
            if not hopeful:
                raise SaveError(f"no room for the save at the end: {hindrance or 'on another rank'}")
            if time.monotonic() - since > _PATIENCE_SECONDS:
                since = time.monotonic()
                say(f"rank {self._world.rank}: the last save waits: {hindrance or 'for another rank'}")
            time.sleep(_POLL_SECONDS)
