"""The Checkpointer: three lines in a training script, and its state survives whatever happens to its workers."""

from __future__ import annotations

import os
import weakref
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from everstep_protocol.plan import SaveInterval

from everstep.errors import EverstepError
from everstep.run import Run, open_run
from everstep.setting import read_setting
from everstep.state.state import State


class Checkpointer:
    """Saves and restores `state`, a dict of names to what a run is made of:

    - models (also wrapped by DDP, fully_shard or torch.compile) and their optimizers,
    - anything with `state_dict` and `load_state_dict`: sampler, LR scheduler, GradScaler,
    - plain dicts and lists, restored in place: `progress = {"best": None}`, given as `"progress": progress`,
    - tensors, NumPy arrays and torch.Generators.

    Give them as they are when training: wrapped, and with optimizers made after wrapping. Random streams of torch, Python and
    NumPy are saved for each rank without being asked for.

    What could never be loaded again is refused by name: before the first step, or at the save where it turns up, which then
    counts as failed while training goes on. So is what differs by rank under one name, unless the script says whose counts:
    `per_rank` names what is kept for each rank (and comes back only in a world of the same size: in another one name it in
    `allow_missing`, too), `from_rank_0` what rank 0's counts of. Ranks may hold different parts of a model (pipeline stages).

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
        per_rank: Collection[str] = (),
        from_rank_0: Collection[str] = (),
        timeout_seconds: float = 600.0,
    ) -> None:
        if keep_last < 1 or (every is not None and every < 1) or (every_seconds is not None and every_seconds <= 0):
            raise ValueError(
                f"Checkpointer: every={every}, every_seconds={every_seconds}, keep_last={keep_last}: must be positive"
            )
        self._state = State(state, allow_missing=allow_missing, per_rank=per_rank, from_rank_0=from_rank_0)
        self._directory = directory
        self._interval = SaveInterval(every, every_seconds)
        self._keep_last = keep_last
        self._timeout_seconds = timeout_seconds
        self._step = 0
        self._run: Run | None = None
        self._at_end: Any = None
        self._loop = 0  # which call of `steps` is the newest
        self._is_last_step = False

    @property
    def step(self) -> int:
        """How many steps are finished, those of earlier runs included."""
        return self._step

    def steps(self, until: int, *, total: int | None = None) -> Iterator[int]:
        """The steps that are left to do: resumes after the newest complete checkpoint, from step 0 if there is none.

        The state is restored when the first step is asked for, and saved at the end of the loop's body when it is due; after
        step `until - 1` it is saved once more. Raises LoadError where a checkpoint cannot be restored: never train on then.

        May be called again, for each epoch for example, and goes on where the last loop ended; then give `total`, the job's last
        step: a process that is killed after it has finished, one that is killed between two loops has not. A loop that is left
        by `break` loses no save that had begun; the step that was left is done again by the next call. `finish_early` ends it well.
        """
        self._loop += 1
        this_loop = self._loop
        run = self._run = self._current_run()
        self._is_last_step = False
        try:
            run.begin_loop()
            for step in range(self._step, until):
                yield step
                if self._loop != this_loop:
                    raise EverstepError("this loop was left: a later call of Checkpointer.steps() has taken over")
                self._step = step + 1
                if self._is_last_step:
                    run.report_step(self._step)
                    break
                run.finish_step(self._step)
            run.finish_loop(self._step, is_last=self._is_end(total))
        finally:
            if self._loop == this_loop:  # what a later loop holds is not an old one's to give back
                run.end_loop()

    def finish_early(self) -> None:
        """Make the step that is running the last one: the loop ends after it as if `until` were reached. On all ranks in one step."""
        self._is_last_step = True

    def _is_end(self, total: int | None) -> bool | None:
        """Whether the job's last step is done; None: the script does not say."""
        if self._is_last_step:
            return True
        return None if total is None else self._step >= total

    def _current_run(self) -> Run:
        """The run of this process, opened once: its groups and threads live until the process ends."""
        if self._run is not None and self._run.is_current:
            return self._run
        setting = read_setting(self._directory, self._interval, self._keep_last)
        if self._run is not None:
            self._run.close()
        if self._at_end is not None:
            self._at_end.detach()
        step = None if self._run is None else self._step
        run = open_run(setting, self._state, timeout_seconds=self._timeout_seconds, step=step)
        self._at_end = weakref.finalize(self, run.finish)  # runs at the interpreter's end, too
        self._step = run.step
        return run
