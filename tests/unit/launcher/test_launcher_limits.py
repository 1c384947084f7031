"""What the launcher waits for, and for how long: each limit by itself, with timers that the test runs."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from everstep.launcher import activity, link, master, processes, supervisor, trainers
from everstep.launcher.activity import ActivityWatch
from everstep.launcher.link import Link
from everstep.launcher.loop import Action, Loop, Timer
from everstep.launcher.output import Console
from everstep.launcher.settings import read_settings
from everstep.launcher.trainers import Trainers
from everstep_protocol import local, names
from everstep_protocol.command import parse_command


class HandLoop(Loop):
    """Timers are kept, and run where the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[tuple[float, Timer]] = []
        self.stopped = False

    def call_later(self, seconds: float, action: Action) -> Timer:
        timer = Timer(seconds, len(self.kept), action)
        self.kept.append((seconds, timer))
        return timer

    def stop(self, code: int) -> None:
        self.stopped = True

    def pop(self) -> float:
        """Runs the newest timer, and gives its seconds."""
        seconds, timer = self.kept.pop()
        if not timer.cancelled:
            timer.action()
        return seconds

    def find(self, seconds: float) -> Timer:
        """The timer of so many seconds."""
        (found,) = [timer for after, timer in self.kept if after == seconds]
        return found


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="limits-") as folder:  # a unix socket's path has 107 bytes at most
        yield Path(folder)


def test_a_sidecar_that_is_away_is_looked_for_soon_and_then_twice_a_second(place: Path) -> None:
    loop, told = HandLoop(), []
    Link(loop, place / "socket", on_open=lambda: None, on_message=lambda message: None, say=told.append).open()
    alone = loop.find(link._ALONE_SECONDS)
    loop.kept = [(seconds, timer) for seconds, timer in loop.kept if timer is not alone]
    assert [loop.pop() for _ in range(6)] == [0.05, 0.1, 0.2, 0.4, 0.5, 0.5]
    assert told == []
    alone.action()
    assert "everstep-sidecar" in told[0]


def trainers_of(loop: Loop, on_gone: Callable[[], None]) -> Trainers:
    return Trainers(
        loop,
        Console(loop),
        explain_finish=lambda failure: None,
        on_failed=lambda failure: None,
        on_gone=on_gone,
    )


def test_what_is_left_of_an_attempt_is_looked_at_again_and_again_until_it_is_gone(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    left = [frozenset({2**22 + 1})] * 60
    monkeypatch.setattr(processes, "descendants", lambda: left.pop() if left else frozenset())
    loop, gone = HandLoop(), []
    running = trainers_of(loop, lambda: gone.append(True))
    running.end(0)
    unkillable = loop.find(trainers._UNKILLABLE_SECONDS)
    loop.kept = [(seconds, timer) for seconds, timer in loop.kept if timer is not unkillable]
    looks = [loop.pop() for _ in range(60)]
    assert (looks[0], looks[-1], looks == sorted(looks)) == (0.02, 1.0, True)
    assert (gone, unkillable.cancelled) == ([True], True)
    unkillable.action()
    assert "killed 10 s ago and still there" in capfd.readouterr().err


@pytest.fixture
def launcher(place: Path, monkeypatch: pytest.MonkeyPatch) -> supervisor.Supervisor:
    monkeypatch.setattr(HandLoop, "on_signals", lambda loop, signals, action: None)
    loop = HandLoop()
    variables = {**os.environ, names.ENV_MEMORY: str(place), names.ENV_GRACE_SECONDS: "40", "USE_LIBUV": "1"}
    settings = read_settings(parse_command(["python3", "train.py"]), variables, Path("/lib"))
    made = supervisor.Supervisor(settings, ("python3",), loop=loop, console=Console(loop), log=place / "log")
    made.open()
    loop.kept.clear()
    return made


def loop_of(launcher: supervisor.Supervisor) -> HandLoop:
    assert isinstance(launcher._loop, HandLoop)
    return launcher._loop


def test_a_launcher_that_is_to_leave_ends_soon_if_nothing_runs_and_in_time_whatever_runs(
    launcher: supervisor.Supervisor, place: Path
) -> None:
    loop = loop_of(launcher)
    launcher._hear(signal.SIGTERM)
    assert sorted(seconds for seconds, _ in loop.kept) == [2.0, 35.0, 37.5]
    for seconds in (2.0, 35.0, 37.5):
        loop.stopped = False
        loop.find(seconds).action()
        assert loop.stopped
    assert '"left"' in (place / "log").read_text()


def test_who_has_finished_and_is_not_told_to_end_says_what_it_waits_for(
    launcher: supervisor.Supervisor, capfd: pytest.CaptureFixture[str]
) -> None:
    loop = loop_of(launcher)
    launcher._trainers = trainers_of(loop, launcher._gone)
    launcher._gone()
    assert not loop.stopped
    loop.find(60.0).action()
    assert "for 60 s nobody has said that its last checkpoint is on storage" in capfd.readouterr().err


def test_told_to_end_it_ends_half_a_minute_after_its_trainers_should_have(launcher: supervisor.Supervisor) -> None:
    loop = loop_of(launcher)
    launcher._trainers = running = trainers_of(loop, lambda: None)
    running.end = lambda grace_seconds, *, groups=False: None  # type: ignore[method-assign]
    launcher._obey(local.Exit("finished"))
    assert not loop.stopped
    loop.find(30.0).action()
    assert loop.stopped


def test_the_grace_is_what_kubernetes_gives_where_the_pod_does_not_say_it(place: Path) -> None:
    command = parse_command(["python3", "train.py"])
    assert read_settings(command, {}, place).grace_seconds == 30.0
    assert read_settings(command, {names.ENV_GRACE_SECONDS: "90"}, place).grace_seconds == 90.0


def test_signs_of_life_are_looked_for_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, told = HandLoop(), []
    watch = ActivityWatch(loop, told.append)
    watch.begin(3, lambda: 0)
    assert [loop.pop() for _ in range(3)] == [activity.SAMPLE_SECONDS] * 3 == [5.0] * 3
    assert [message.attempt for message in told] == [3, 3, 3]


def test_whatever_is_printed_is_a_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "read_cpu_seconds", dict)  # nobody uses any CPU time
    loop, told = HandLoop(), []
    printed = [0, 0, 5, 5]
    ActivityWatch(loop, told.append).begin(3, lambda: printed.pop(0))
    for _ in range(3):
        loop.pop()
    assert [message.idle_seconds > 0 for message in told] == [True, False, True]


def test_r22_a_master_that_is_not_there_yet_is_looked_for_every_few_milliseconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += 1.0

    monkeypatch.setattr(master, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    assert not master.wait_for_master("127.0.0.1", 1, timeout_seconds=3.0)
    assert 0.0 < max(slept) <= 0.01
