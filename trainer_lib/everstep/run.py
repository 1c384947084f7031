"""One run of a training script: opened once, then the loop between two bodies: report, obey, save."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from everstep import rng
from everstep.console import say
from everstep.dcp_engine import DcpEngine
from everstep.errors import EverstepError, StateError
from everstep.folder import FolderPlace
from everstep.places import MemoryPlace, Place
from everstep.progress import Reporter, StepClock
from everstep.restoring import restore
from everstep.saving import Saver
from everstep.setting import Alone, Cluster
from everstep.state.report import report_of, require_agreement
from everstep.state.state import State
from everstep.world import World

_STOP_POLL_SECONDS = 0.002


def open_run(setting: Cluster | Alone, state: State, *, timeout_seconds: float, step: int | None) -> Run:
    """Meet the other ranks, restore the state where there is one, check that it can be saved.

    Raises EverstepError, StateError and LoadError, each on all ranks. `step`: how many steps this process has finished already,
    None: it has not begun, and resumes.
    """
    reporter = _open_reporter(setting)
    world = World.join(timeout_seconds=timeout_seconds)
    _require_world(setting, world)
    place = _place(setting, world)
    try:
        return _begin(setting, state, place, world, reporter, step)
    except BaseException:
        _close_place(place)
        world.leave()
        raise


def _begin(
    setting: Cluster | Alone, state: State, place: Place, world: World, reporter: Reporter | None, step: int | None
) -> Run:
    _require_state(state, world, step or 0)
    if reporter is not None:
        reporter.enter("loading")
    engine = DcpEngine(world, sync_files=place.sync_files)
    newest = _resume_point(setting, place, world)  # a folder must know it also where nothing is loaded
    found = newest if step is None else None
    if found is not None:
        restore(state, engine, world, found[0], step=found[1])
    begun = found[1] if found is not None else step or 0
    _require_agreement(state, world, begun, compares_tensors=found is None)
    interval = setting.plan.interval if isinstance(setting, Cluster) else setting.interval
    return Run(Saver(state, engine, place, world, interval), place, reporter, world, step=begun)


class Run:
    """What this process holds while it trains. `step`: finished steps at its start."""

    def __init__(self, saver: Saver, place: Place, reporter: Reporter | None, world: World, *, step: int) -> None:
        self.step = step
        self._saver = saver
        self._place = place
        self._reporter = reporter
        self._world = world
        self._clock = StepClock()
        self._num_loops = 0
        self._is_over = False

    @property
    def is_current(self) -> bool:
        """Whether the process is still in the world in which this run was opened."""
        return self._world.is_current

    def begin_loop(self) -> None:
        """Training begins, or goes on."""
        _open_place(self._place, self._world)
        self._num_loops += 1
        self._is_over = False
        self._enter("training")
        if self._num_loops == 1:
            self._saver.start(self.step)
        self._clock.start()

    def finish_step(self, step: int) -> None:
        """A body has ended. Returns soon, unless the pod was told to stop here: then never (R19)."""
        self.report_step(step)
        if self._reporter is not None and self._is_told_to_stop(self._reporter, step):
            self._stop(self._reporter, step)
        before = (self._saver.counts.skipped, self._saver.counts.failed)
        self._saver.after_step(step, usual_step_seconds=self._clock.usual_ns / 1e9)
        self._count(before)
        self._clock.start()

    def finish_loop(self, step: int, *, is_last: bool | None) -> None:
        """A loop has come to its end: save its last step.

        The job has finished (R31) where the script says so, or, `is_last` None, where this is its first loop: nobody can know that
        another will follow. Once one has, only the end of the process shows that none does.
        """
        if step > self.step:
            self._enter("saving")
            before = (self._saver.counts.skipped, self._saver.counts.failed)
            try:
                self._saver.save_whole(step)
            finally:
                self._count(before)
        if is_last is None and self._num_loops == 2:
            say(
                "Checkpointer.steps() was called again without `total`: give it, or a process that is killed between its first two loops "
                "counts as finished"
            )
        self._is_over = is_last is not False
        has_finished = self._num_loops == 1 if is_last is None else is_last
        self._enter("finished" if has_finished else "training")

    def end_loop(self) -> bool:
        """A loop is left, in whatever way: no save may be cut off by the end of the process.

        False where garbage collection leaves it on the thread that saves: then all stays as it is until the process ends.
        """
        if not self._saver.drain():
            return False
        _close_place(self._place)
        return True

    def finish(self) -> None:
        """The process ends, or nobody can ask for another loop."""
        self.close()
        if self._is_over:
            self._enter("finished")

    def close(self) -> None:
        """Let go of all that other processes see of this run."""
        if self.end_loop():
            self._world.leave()

    def report_step(self, step: int) -> None:
        """Say that a step is finished."""
        at_ns = self._clock.tick()
        if self._reporter is not None:
            self._reporter.finish_step(step, at_ns, self._clock.usual_ns, self._saver.samples_consumed(step))

    def _is_told_to_stop(self, reporter: Reporter, step: int) -> bool:
        """R19: True once the stop at this step is confirmed; waits while it is only proposed; False when it is withdrawn."""
        while True:
            stop_step, confirmed = reporter.stop_step()
            if stop_step != step:
                return False
            if confirmed:
                return True
            time.sleep(_STOP_POLL_SECONDS)

    def _stop(self, reporter: Reporter, step: int) -> None:
        """R19: save this step, say so, and wait to be ended: the next attempt goes on from here."""
        reporter.enter("saving")
        self._saver.save_whole(step)
        reporter.enter("stopped")
        say(f"stopped after step {step} as told; its state is saved")
        while True:
            signal.pause()

    def _enter(self, phase: str) -> None:
        if self._reporter is not None:
            self._reporter.enter(phase)

    def _count(self, before: tuple[int, int]) -> None:
        counts = self._saver.counts
        if self._reporter is None:
            return
        if before != (counts.skipped, counts.failed):
            self._reporter.count(skipped=counts.skipped, failed=counts.failed)
        failure = self._saver.failure
        if failure is None:
            self._reporter.forget_unsaved()
        elif before[1] != counts.failed:
            self._reporter.tell_unsaved(failure.step, failure.reason, failure.message)


def _open_reporter(setting: Cluster | Alone) -> Reporter | None:
    if isinstance(setting, Alone):
        return None
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    reporter = Reporter(setting.memory, local_rank=local_rank, attempt=setting.plan.attempt)
    reporter.open()
    return reporter


def _require_world(setting: Cluster | Alone, world: World) -> None:
    if isinstance(setting, Cluster) and setting.plan.world != world.size:
        raise EverstepError(
            f"the plan is for {setting.plan.world} ranks, torch.distributed has {world.size}: the script must call "
            "torch.distributed.init_process_group() with the environment's RANK and WORLD_SIZE"
        )


def _require_state(state: State, world: World, step: int) -> None:
    """Raises StateError on all ranks, naming all that cannot be saved on any of them."""
    problem = ""
    try:
        state.capture(step, rank=world.rank)
    except StateError as error:
        problem = str(error)
    told = dict.fromkeys(problem for problem in world.gather(problem) if problem)
    if told:
        raise StateError("; ".join(told))


def _require_agreement(state: State, world: World, step: int, *, compares_tensors: bool) -> None:
    """TR1, TR2: before the first step. What was just loaded by all from one checkpoint need not be compared."""
    if world.size == 1:
        return
    report = None
    with world.together("looking at the state"):
        flat = state.capture(step, rank=world.rank)
        report = report_of(flat, rng.digests(rng.snapshot()), compares_tensors=compares_tensors)
    require_agreement(world.gather(report))


def _place(setting: Cluster | Alone, world: World) -> Place:
    if isinstance(setting, Alone):
        return FolderPlace(setting.folder, rank=world.rank, keep_last=setting.keep_last, world=world.size)
    return MemoryPlace(setting.memory, setting.plan, rank=world.rank)


def _open_place(place: Place, world: World) -> None:
    """Raises LoadError on all ranks where a folder is not to be had."""
    if isinstance(place, FolderPlace):
        with world.together(f"opening {place.folder}"):
            place.open()


def _close_place(place: Place) -> None:
    if isinstance(place, FolderPlace):
        place.close()


def _resume_point(setting: Cluster | Alone, place: Place, world: World) -> tuple[Path, int] | None:
    """What to load: what the plan names; alone, what rank 0 found. Never what each rank sees itself."""
    if isinstance(setting, Cluster):
        return None if setting.resume_directory is None else (setting.resume_directory, setting.plan.resume.step)
    found: tuple[Path, int] | None = None
    _open_place(place, world)
    with world.together(f"looking for checkpoints in {setting.folder}"):
        if isinstance(place, FolderPlace):
            found = place.resume()
    chosen: tuple[Path, int] | None = world.gather(found)[0]
    return chosen
