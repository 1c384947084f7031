"""What the launcher obeys, reports and when it ends. One attempt runs at a time; losing the sidecar never stops it."""

from __future__ import annotations

import dataclasses
import signal
import time
import uuid
from collections import deque
from pathlib import Path

from everstep_protocol import local, names

from everstep.launcher import finish, host, master, processes, starter
from everstep.launcher.activity import ActivityWatch
from everstep.launcher.cause import Failure
from everstep.launcher.link import Link
from everstep.launcher.loop import Loop
from everstep.launcher.output import Console
from everstep.launcher.pages import Pages
from everstep.launcher.probe import LibuvProbe
from everstep.launcher.reverse_dns import ReverseLookup
from everstep.launcher.settings import Settings
from everstep.launcher.termination import clear_termination_message, write_result
from everstep.launcher.trainers import Trainers

_PASSED_ON = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_MARGIN_SECONDS = 5.0  # the launcher ends so long before the kubelet kills: the sidecar's last upload needs it
_IDLE_SECONDS = 2.0  # a leaving launcher with nothing to wait for stays so long for the sidecar's word
_EXIT_SECONDS = 30.0  # told to end, with processes that no kill ends: the container's own end is the last means
_KEPT_PORTS = 1000  # the newest: a port that was chosen so long ago may be chosen again
_WAIT_SECONDS = 60.0  # finished, and not told to end for so long: the reader of this log is told what is waited for
_CANNOT_START = 127  # as shells say it


class Supervisor:
    """R7: starts an attempt once, after go, and never while anything of an older one is left."""

    def __init__(
        self, settings: Settings, interpreter: tuple[str, ...], *, loop: Loop, console: Console, log: Path
    ) -> None:
        self._settings = settings
        self._interpreter = interpreter
        self._loop = loop
        self._console = console
        self._log = log
        self._nonce = uuid.uuid4().hex
        self._link = Link(loop, settings.socket, on_open=self._say_hello, on_message=self._obey, say=console.say)
        self._probe = LibuvProbe(loop, self._begin_pending)
        self._reverse_lookup = ReverseLookup(loop, console.say)
        self._activity = ActivityWatch(loop, self._link.offer)
        self._trainers: Trainers | None = None
        self._attempt = 0  # the last that was started
        self._pages: Pages | None = None  # of that attempt
        self._stopped = 0  # the highest that was ordered to stop
        self._stops: list[int] = []  # to be answered when nothing is left
        self._pending: local.Start | None = None
        self._report: local.ProcessExited | local.Finished | None = (
            None  # of the last attempt; told again to a new sidecar
        )
        self._oom_kills: int | None = None
        self._ports: deque[int] = deque(maxlen=_KEPT_PORTS)
        self._kill_at: float | None = None  # when the kubelet will kill; None: nobody wants the pod to end
        self._waits_for_exit = False  # leaving, with something in memory that the sidecar must still bring to storage
        self._result: str | None = None  # why the launcher ends, once that is decided
        self._why = ""  # that the job has failed, for people

    def open(self) -> None:
        """Begin to listen: signals, children, the sidecar."""
        self._loop.on_signals((signal.SIGCHLD, signal.SIGTERM, *_PASSED_ON), self._hear)
        if not processes.become_subreaper():
            self._console.say("orphaned processes cannot be adopted here: they are ended only with their process group")
        self._probe.start(self._interpreter, self._settings.environment)
        self._link.open()

    # signals -------------------------------------------------------------------------------------

    def _hear(self, number: int) -> None:
        if number == signal.SIGCHLD:
            self._reap()
        elif number == signal.SIGTERM:
            self._leave()
        elif self._trainers is not None:
            self._trainers.signal(number, groups=self._is_shell)

    def _reap(self) -> None:
        leaders = self._trainers.pids if self._trainers is not None else frozenset()
        for pid, status in processes.reap(leaders):
            if not self._probe.reaped(pid) and self._trainers is not None:
                self._trainers.reaped(pid, status)

    def _leave(self) -> None:
        """SIGTERM: the pod is to end. A second one changes nothing."""
        if self._kill_at is not None:
            return
        grace = self._settings.grace_seconds
        margin = min(_MARGIN_SECONDS, grace / 2)
        self._kill_at = time.monotonic() + grace
        self._console.say(f"SIGTERM: the pod is to end within {grace:g} s")
        self._link.send(local.Terminating(grace))
        self._loop.call_later(grace - margin, lambda: self._end("left", margin / 5))
        self._loop.call_later(grace - margin / 2, lambda: self._finish("left"))
        self._waits_for_exit = isinstance(self._report, local.Finished)
        if self._trainers is not None:
            self._tell_trainers(self._trainers, grace - margin)
        self._end_if_idle_later()

    def _tell_trainers(self, trainers: Trainers, grace_seconds: float) -> None:
        if self._pages is not None and self._pages.is_any_there:
            self._waits_for_exit = True  # they save and stop at a step that all ranks agree on (R19)
        else:
            trainers.end(grace_seconds, groups=self._is_shell)

    # the sidecar ---------------------------------------------------------------------------------

    def _say_hello(self) -> None:
        running = self._attempt if self._trainers is not None else 0
        self._link.send(local.LauncherHello(self._nonce, self._settings.processes, running))
        if self._kill_at is not None:
            self._link.send(local.Terminating(max(0.0, self._kill_at - time.monotonic())))
        if self._report is not None:
            self._link.send(self._report)

    def _obey(self, message: local.Message) -> None:
        if isinstance(message, local.Stop):
            self._obey_stop(message)
        elif isinstance(message, local.Start):
            self._obey_start(message)
        elif isinstance(message, local.ChoosePort):
            port = master.choose_port(self._ports)
            self._ports.append(port)
            self._link.send(local.PortChosen(message.attempt, port))
        elif isinstance(message, local.Exit):
            self._obey_exit(message)

    def _obey_exit(self, order: local.Exit) -> None:
        if order.why and not self._why:
            self._why = order.why
            self._console.say(f"the job has failed, and this worker ends: {order.why}")
        self._end(order.result, order.grace_seconds)

    def _obey_stop(self, stop: local.Stop) -> None:
        self._stopped = max(self._stopped, stop.attempt)
        if self._pending is not None and self._pending.attempt <= stop.attempt:
            self._pending = None
        if self._attempt <= stop.attempt:
            self._report = None
        if self._trainers is None or self._attempt > stop.attempt:
            self._link.send(local.Stopped(stop.attempt))
            return
        self._stops.append(stop.attempt)
        self._trainers.end(stop.grace_seconds, groups=self._is_shell)

    def _obey_start(self, start: local.Start) -> None:
        """R7: an attempt starts once; one that was stopped or is older never does."""
        if start.attempt <= max(self._attempt, self._stopped):
            self._console.say(f"attempt {start.attempt} is not started again")
            return
        self._pending = start
        if self._trainers is not None:
            self._trainers.end(0)
        self._begin_pending()

    # the attempt ---------------------------------------------------------------------------------

    def _begin_pending(self) -> None:
        if self._pending is None or self._trainers is not None or self._probe.is_running or self._result:
            return
        start, self._pending = self._pending, None
        self._attempt = start.attempt
        self._pages = Pages(self._settings.memory, start.attempt, start.ranks)
        self._report = None
        self._oom_kills = host.count_oom_kills()
        clear_termination_message(self._log)
        self._console.say(f"attempt {start.attempt}: ranks {start.ranks[0]} to {start.ranks[1] - 1} of {start.world}")
        try:
            self._begin(start)
        except (OSError, ValueError) as error:
            how = (_CANNOT_START, None, False, False, f"everstep: cannot start: {error}")
            refused = isinstance(error, processes.CannotExecute)
            self._tell(local.ProcessExited(self._attempt, start.ranks[0], *how, refused))

    def _begin(self, start: local.Start) -> None:
        launches = starter.prepare_launches(self._settings, start, self._interpreter, has_libuv=self._probe.has_libuv)
        self._trainers = trainers = Trainers(
            self._loop,
            self._console,
            explain_finish=self._explain_finish,
            on_failed=self._failed,
            on_gone=self._gone,
        )
        self._trainers.start(launches, prefixed=len(launches) > 1)
        self._activity.begin(start.attempt, lambda: trainers.num_printed)
        peer = starter.address_of_peer(start)
        if peer:
            self._reverse_lookup.start(peer)

    def _explain_finish(self, failure: Failure) -> str | None:
        assert self._pages is not None
        if self._is_shell:
            return finish.explain_shell(failure, self._pages)
        return finish.explain_rank(failure, self._pages, wrapped=self._settings.command.no_python)

    def _failed(self, failure: Failure) -> None:
        seen, end = starter.read_report(self._settings, self._attempt), failure.exit
        how = (end.rank, end.exit_code, end.signal, False, failure.is_peer_lost, failure.last_lines)
        self._tell(seen or local.ProcessExited(self._attempt, *how))

    def _gone(self) -> None:
        """Nothing of the attempt is left."""
        assert self._trainers is not None
        succeeded = not self._trainers.failed
        self._trainers = None
        self._activity.end()
        stops, self._stops = self._stops, []
        for attempt in stops:
            self._link.send(local.Stopped(attempt))
        refusal = starter.read_refusal(self._settings, self._attempt) if succeeded else None
        if refusal is not None:  # a shell that goes on after what failed in it
            self._tell(refusal)
        elif succeeded:
            self._report = finished = local.Finished(self._attempt)
            self._waits_for_exit = True
            self._link.send(finished)
            self._loop.call_later(_WAIT_SECONDS, lambda: self._tell_waiting(finished))
        if self._result is not None:
            self._finish(self._result)
        self._begin_pending()
        self._end_if_idle_later()

    def _tell(self, exited: local.ProcessExited) -> None:
        kills = host.count_oom_kills()
        exited = dataclasses.replace(exited, oom_killed=kills is not None and kills > (self._oom_kills or 0))
        how = f"exit code {exited.exit_code}" if exited.signal is None else f"signal {exited.signal}"
        when = ""
        if self._pages is not None and self._pages.said_finished(exited.rank):
            when = " after its last step was saved"
        self._console.say(f"attempt {exited.attempt}: rank {exited.rank} ended with {how}{when}; the others are ended")
        self._report = exited
        self._link.send(exited)
        self._leave_word("failed")  # should this container be killed before it can say more

    # the end -------------------------------------------------------------------------------------

    def _end(self, result: str, grace_seconds: float) -> None:
        """End what runs, then the launcher."""
        self._result = self._result or result
        if self._trainers is None:
            self._finish(self._result)
        else:
            self._trainers.end(grace_seconds, groups=self._is_shell)
            self._loop.call_later(grace_seconds + _EXIT_SECONDS, lambda: self._finish(self._result or result))

    def _tell_waiting(self, finished: local.Finished) -> None:
        if self._report is finished:
            self._console.say(
                f"attempt {finished.attempt} has finished, and for {_WAIT_SECONDS:g} s nobody has said that its last checkpoint is on "
                f"storage: this container ends then; look at the containers {names.SIDECAR_CONTAINER} of the job's pods"
            )

    def _finish(self, result: str) -> None:
        self._result = result
        self._leave_word("failed" if result == "left" and isinstance(self._report, local.ProcessExited) else result)
        self._console.flush(1.0)
        self._loop.stop(0)

    def _end_if_idle_later(self) -> None:
        if self._kill_at is not None and self._is_idle:
            self._loop.call_later(_IDLE_SECONDS, lambda: self._end("left", 0) if self._is_idle else None)

    @property
    def _is_idle(self) -> bool:
        return self._trainers is None and self._pending is None and not self._waits_for_exit

    def _leave_word(self, result: str) -> None:
        exited = self._report if isinstance(self._report, local.ProcessExited) else None
        write_result(self._log, result, self._attempt, exited, self._why)

    @property
    def _is_shell(self) -> bool:
        return self._settings.command.kind == "shell"
