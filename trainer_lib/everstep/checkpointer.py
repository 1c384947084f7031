"""The Checkpointer: three lines in a training script, and its state survives whatever happens to its workers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from everstep_protocol.plan import SaveInterval

from everstep.console import say
from everstep.dcp_engine import DcpEngine
from everstep.errors import EverstepError
from everstep.folder import FolderPlace
from everstep.places import MemoryPlace, Place
from everstep.progress import Reporter, StepClock
from everstep.restoring import restore
from everstep.saving import Saver
from everstep.setting import Alone, Cluster, read_setting
from everstep.state import State
from everstep.world import World

_STOP_POLL_SECONDS = 0.002


class Checkpointer:
    """Saves and restores `state`, a dict of names to what a run is made of:

    - models (also wrapped by DDP, fully_shard or torch.compile) and their optimizers,
    - anything with `state_dict` and `load_state_dict`: sampler, LR scheduler, GradScaler,
    - plain dicts and lists, restored in place: `progress = {"best": None}`, given as `"progress": progress`; and tensors.

    Give them as they are when training: wrapped, and with optimizers made after wrapping. Random streams of torch, Python and
    NumPy are saved for each rank without being asked for.

    In a cluster the job's spec says when to save and the plan where to resume. Elsewhere the state is saved after every `every`
    steps or `every_seconds` seconds, whichever comes first, into `directory` (default: $EVERSTEP_CHECKPOINT_DIR, else
    ./checkpoints), and the last `keep_last` checkpoints are kept. One run at a time writes a folder: a second one is refused. What is
    resumed from is chosen as in a cluster, and what is passed over is told, with the reason.

    `allow_missing`: names that the checkpoint to resume from may lack (they keep their values), for starting from a checkpoint of
    another script. `timeout_seconds`: how long ranks wait for each other while saving or loading.
    """

    def __init__(
        self,
        state: Mapping[str, Any],
        *,
        directory: str | os.PathLike[str] | None = None,
        every: int | None = 100,
        every_seconds: float | None = None,
        keep_last: int = 3,
        allow_missing: Collection[str] = (),
        timeout_seconds: float = 600.0,
    ) -> None:
        if keep_last < 1 or (every is not None and every < 1) or (every_seconds is not None and every_seconds <= 0):
            raise ValueError(
                f"Checkpointer: every={every}, every_seconds={every_seconds}, keep_last={keep_last}: must be positive"
            )
        self._state = State(state, allow_missing=allow_missing)
        self._samplers = [thing for thing in state.values() if hasattr(thing, "samples_consumed")]
        self._directory = directory
        self._interval = SaveInterval(every, every_seconds)
        self._keep_last = keep_last
        self._timeout_seconds = timeout_seconds
        self._step = 0
        self._is_open = False
        self._reporter: Reporter | None = None
        self._place: Place | None = None

    @property
    def step(self) -> int:
        """How many steps are finished, those of earlier runs included."""
        return self._step

    def steps(self, until: int) -> Iterator[int]:
        """The steps that are left to do: resumes after the newest complete checkpoint, from step 0 if there is none.

        The state is restored when the first step is asked for, and saved at the end of the loop's body when it is due; after
        step `until - 1` it is saved once more. Raises LoadError where a checkpoint cannot be restored: never train on then.
        Leaving the loop by `break` saves nothing more. Called again, it goes on where the last loop ended.
        """
        run = self._open()
        try:
            for step in range(self._step, until):
                yield step
                self._step = step + 1
                run.finish_step(self._step, self._samples_consumed())
            run.finish(self._step, self._samples_consumed())
        finally:
            try:
                run.close()
            finally:
                _give_back(self._place)

    def _open(self) -> _Run:
        setting = read_setting(self._directory, self._interval, self._keep_last)
        reporter = self._reporter = self._reporter or _open_reporter(setting)
        self._state.check_plain()
        world = World.join(timeout_seconds=self._timeout_seconds)
        place = self._place = self._place or _place(setting, world)
        try:
            return self._begin(setting, place, world, reporter)
        except BaseException:
            _give_back(place)
            raise

    def _begin(self, setting: Cluster | Alone, place: Place, world: World, reporter: Reporter | None) -> _Run:
        engine = DcpEngine(world.saving, sync_files=place.sync_files)
        if reporter is not None:
            reporter.enter("loading")
        found = _resume_point(setting, place, world, is_first=not self._is_open)
        self._is_open = True
        if found is not None:
            directory, self._step = found
            restore(self._state, engine, world, directory, step=self._step)
        interval = setting.plan.interval if isinstance(setting, Cluster) else setting.interval
        run = _Run(Saver(self._state, engine, place, world, interval), reporter, start=self._step)
        run.open()
        return run

    def _samples_consumed(self) -> int:
        return int(self._samplers[0].samples_consumed) if self._samplers else 0


class _Run:
    """The loop between two bodies of the script: report, obey, save."""

    def __init__(self, saver: Saver, reporter: Reporter | None, *, start: int) -> None:
        self._saver = saver
        self._reporter = reporter
        self._start = start
        self._clock = StepClock()

    def open(self) -> None:
        """Training begins."""
        self._enter("training")
        self._saver.start(self._start)
        self._clock.start()

    def finish_step(self, step: int, samples_consumed: int) -> None:
        """A body has ended. Returns soon, unless the pod was told to stop here: then never (R19)."""
        at_ns = self._clock.tick()
        if self._reporter is not None:
            self._reporter.finish_step(step, at_ns, self._clock.usual_ns, samples_consumed)
            if self._is_told_to_stop(self._reporter, step):
                self._stop(self._reporter, step, samples_consumed)
        before = (self._saver.counts.skipped, self._saver.counts.failed)
        self._saver.after_step(step, usual_step_seconds=self._clock.usual_ns / 1e9, samples_consumed=samples_consumed)
        self._count(before)
        self._clock.start()

    def finish(self, step: int, samples_consumed: int) -> None:
        """The job's last step is done."""
        if step > self._start:
            self._enter("saving")
            self._saver.save_whole(step, samples_consumed=samples_consumed)
        self._enter("finished")

    def close(self) -> None:
        """No save may be cut off by the end of the process."""
        self._saver.drain()

    def _is_told_to_stop(self, reporter: Reporter, step: int) -> bool:
        """R19: True once the stop at this step is confirmed; waits while it is only proposed; False when it is withdrawn."""
        while True:
            stop_step, confirmed = reporter.stop_step()
            if stop_step != step:
                return False
            if confirmed:
                return True
            time.sleep(_STOP_POLL_SECONDS)

    def _stop(self, reporter: Reporter, step: int, samples_consumed: int) -> None:
        """R19: save this step, say so, and wait to be ended: the next attempt goes on from here."""
        reporter.enter("saving")
        self._saver.save_whole(step, samples_consumed=samples_consumed)
        reporter.enter("stopped")
        say(f"stopped after step {step} as told; its state is saved")
        while True:
            signal.pause()

    def _enter(self, phase: str) -> None:
        if self._reporter is not None:
            self._reporter.enter(phase)

    def _count(self, before: tuple[int, int]) -> None:
        counts = self._saver.counts
        if self._reporter is not None and before != (counts.skipped, counts.failed):
            self._reporter.count(skipped=counts.skipped, failed=counts.failed)


def _open_reporter(setting: Cluster | Alone) -> Reporter | None:
    if isinstance(setting, Alone):
        return None
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    reporter = Reporter(setting.memory, local_rank=local_rank, attempt=setting.plan.attempt)
    reporter.open()
    return reporter


def _place(setting: Cluster | Alone, world: World) -> Place:
    if isinstance(setting, Alone):
        return FolderPlace(setting.folder, rank=world.rank, keep_last=setting.keep_last, world=world.size)
    if setting.plan.world != world.size:
        raise EverstepError(
            f"the plan is for {setting.plan.world} ranks, torch.distributed has {world.size}: the script must call "
            "torch.distributed.init_process_group() with the environment's RANK and WORLD_SIZE"
        )
    return MemoryPlace(setting.memory, setting.plan, rank=world.rank)


def _give_back(place: Place | None) -> None:
    if isinstance(place, FolderPlace):
        place.close()


def _resume_point(setting: Cluster | Alone, place: Place, world: World, *, is_first: bool) -> tuple[Path, int] | None:
    """What to load at first: what the plan names; alone, what rank 0 chose. Never what each rank sees itself."""
    if isinstance(setting, Cluster):
        directory = setting.resume_directory if is_first else None
        return None if directory is None else (directory, setting.plan.resume.step)
    found: tuple[Path, int] | None = None
    with world.together(f"opening {setting.folder}"):
        if isinstance(place, FolderPlace):
            place.open()
            found = place.resume() if is_first else None
    chosen: tuple[Path, int] | None = world.gather(found)[0]
    return chosen
