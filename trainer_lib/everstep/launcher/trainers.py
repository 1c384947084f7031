"""The local processes of one attempt, from their start until nothing of them is left."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence

from everstep.launcher import processes
from everstep.launcher.cause import WINDOW_SECONDS, Failure, choose_cause
from everstep.launcher.loop import Loop, Timer
from everstep.launcher.output import Console, Output
from everstep.launcher.processes import Launch, Process

_FIRST_LOOK_SECONDS, _LONGEST_LOOK_SECONDS, _LOOK_GROWTH = 0.02, 1.0, 1.1  # a kill takes up to 0.25 s (RECOVERY.md)
_UNKILLABLE_SECONDS = 10.0  # what was killed so long ago and is still there does not end by itself


class Trainers:
    """Ends all when one ends badly, and says which was the cause; says when nothing is left.

    `explain_finish` is asked of every bad end: a sentence means that this process had finished, and the others go on (R31).
    `on_failed` comes once, before the others are killed, and not after `end`. `on_gone` comes once, when every process is
    reaped and, with `adopts_orphans`, everything that they started is dead, too.
    """

    def __init__(
        self,
        loop: Loop,
        console: Console,
        *,
        explain_finish: Callable[[Failure], str | None],
        on_failed: Callable[[Failure], None],
        on_gone: Callable[[], None],
        adopts_orphans: bool = True,
    ) -> None:
        self._loop = loop
        self._console = console
        self._explain_finish = explain_finish
        self._on_failed = on_failed
        self._on_gone = on_gone
        self._adopts_orphans = adopts_orphans
        self._running: dict[int, tuple[Process, Launch]] = {}
        self._outputs: dict[int, Output] = {}  # by rank
        self._failures: list[Failure] = []
        self._kill: Timer | None = None
        self._look: Timer | None = None
        self._look_seconds = _FIRST_LOOK_SECONDS
        self._unkillable: Timer | None = None
        self._ending = False
        self._gone = False

    @property
    def pids(self) -> frozenset[int]:
        """Those whose process group is theirs alone."""
        return frozenset(pid for pid, (_, launch) in self._running.items() if launch.own_group)

    @property
    def failed(self) -> bool:
        """Whether one ended badly, or all were told to end."""
        return self._ending or bool(self._failures)

    @property
    def num_printed(self) -> int:
        """Bytes that all of them printed so far."""
        return sum(output.num_bytes for output in self._outputs.values())

    def start(self, launches: Sequence[Launch], *, prefixed: bool) -> None:
        """Start them all. Raises OSError where one cannot be started; the others are then already told to end."""
        for launch in launches:
            try:
                process = processes.spawn(launch)
            except OSError:
                self.end(0)
                self._settle()
                raise
            self._running[process.pid] = (process, launch)
            prefix = f"[rank {launch.rank}] ".encode() if prefixed else b""
            self._outputs[launch.rank] = Output(self._loop, self._console, process.output, prefix)
            self._outputs[launch.rank].open()

    def signal(self, number: int, *, groups: bool = False) -> None:
        """Pass a signal on to each of them; `groups`: to all that they started, too."""
        for pid, (_, launch) in self._running.items():
            processes.send_signal(pid, number, group=groups and launch.own_group)

    def end(self, grace_seconds: float, *, groups: bool = False) -> None:
        """TERM, and KILL to whole groups after the grace; a grace of 0 is KILL at once. A later call can only shorten the time."""
        if grace_seconds <= 0:
            self._cancel_kill()
            self._ending = True
            self.signal(signal.SIGKILL, groups=True)
            self._watch_killed()
            self._settle_if_reaped()
            return
        if not self._ending:
            self.signal(signal.SIGTERM, groups=groups)
        self._ending = True
        if self._kill is None or self._kill.at > time.monotonic() + grace_seconds:
            self._cancel_kill()
            self._kill = self._loop.call_later(grace_seconds, lambda: self.end(0))
        self._settle_if_reaped()

    def reaped(self, pid: int, status: int) -> None:
        """A child was reaped: one of ours, or an orphan."""
        process, _ = self._running.pop(pid, (None, None))
        if process is not None:
            self._note(processes.describe_exit(process.rank, status))
        if not self._running and not self._is_judging:
            self._settle()

    def _cancel_kill(self) -> None:
        if self._kill is not None:
            self._kill.cancel()

    @property
    def _is_judging(self) -> bool:
        return bool(self._failures) and not self._ending

    def _note(self, ended: processes.Exit) -> None:
        if ended.is_good or self._ending:
            return
        failure = Failure(ended, self._outputs[ended.rank].last_lines())
        finish = self._explain_finish(failure)
        if finish is not None:
            self._console.say(finish)
            return
        self._failures.append(failure)
        if len(self._failures) == 1:
            self._loop.call_later(WINDOW_SECONDS, self._judge)

    def _judge(self) -> None:
        if self._ending:
            return
        self._on_failed(choose_cause(self._failures))
        self.end(0)

    def _watch_killed(self) -> None:
        if self._unkillable is None:
            self._unkillable = self._loop.call_later(_UNKILLABLE_SECONDS, self._tell_unkillable)

    def _tell_unkillable(self) -> None:
        self._console.say(
            f"killed {_UNKILLABLE_SECONDS:g} s ago and still there: {processes.describe_descendants()}. Nothing new starts here before "
            "they are gone; state D is a call into storage or a driver that does not return: look at the node, or delete the pod"
        )

    def _settle_if_reaped(self) -> None:
        """The last one may have died by itself just before it was to be ended: no reaping will tell."""
        if not self._running:
            self._settle()

    def _settle(self) -> None:
        """All leaders are gone: end what they left behind, then say so."""
        if self._look is not None:
            self._look.cancel()
        if self._gone:
            return
        rest = processes.descendants() if self._adopts_orphans else frozenset()
        if rest:
            processes.kill_all(rest)
            self._watch_killed()
            self._look = self._loop.call_later(self._look_seconds, self._settle)
            self._look_seconds = min(_LOOK_GROWTH * self._look_seconds, _LONGEST_LOOK_SECONDS)
            return
        self._gone = True
        self._cancel_kill()
        if self._unkillable is not None:
            self._unkillable.cancel()
        for output in self._outputs.values():
            output.close()
        self._on_gone()
