"""ST4: whatever the launcher waits for either ends by itself or is told to whoever reads its log."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from everstep.launcher import link, processes, supervisor, trainers
from everstep.launcher.link import Link
from everstep.launcher.loop import Action, Loop, Timer
from everstep.launcher.output import Console, Sink
from everstep.launcher.probe import LibuvProbe
from everstep.launcher.processes import Launch
from everstep.launcher.reverse_dns import ReverseLookup
from everstep.launcher.settings import read_settings
from everstep.launcher.trainers import Trainers
from everstep_protocol import local, names
from everstep_protocol.command import parse_command
from hang_limit import hang_seconds
from integration.launcher.launcher_harness import FakeSidecar, make_plan

HANG_SECONDS = hang_seconds(30.0)


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="link-") as folder:  # a unix socket's path has 107 bytes at most
        yield Path(folder) / "socket"


def in_time(action: Callable[[], object]) -> None:
    """Fails where the action hangs."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(HANG_SECONDS)
    assert not thread.is_alive(), "it hangs"


# a sidecar that is not there, or does not listen


class CountingLoop(Loop):
    num_calls = 0

    def call_later(self, seconds: float, action: Action) -> Timer:
        self.num_calls += 1
        return super().call_later(seconds, action)


def make_link(loop: Loop, place: Path, told: list[str]) -> Link:
    return Link(loop, place, on_open=lambda: None, on_message=lambda message: None, say=told.append)


def test_a_sidecar_that_never_comes_is_told_once_and_asked_for_less_and_less(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "_ALONE_SECONDS", 0.2)
    loop, told = CountingLoop(), []
    make_link(loop, place, told).open()
    loop.call_later(1.5, lambda: loop.stop(0))
    loop.run()
    assert len(told) == 1
    assert "everstep-sidecar" in told[0]
    assert loop.num_calls - 2 <= 7, "no more than five a second, falling off"


def test_a_sidecar_that_comes_in_time_is_not_missed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "_ALONE_SECONDS", 0.2)
    loop, told = Loop(), []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        listener.listen()
        make_link(loop, place, told).open()
        loop.call_later(0.5, lambda: loop.stop(0))
        loop.run()
    assert told == []


def test_what_is_said_again_and_again_does_not_heap_up_before_a_sidecar_that_hangs(place: Path) -> None:
    loop, told = Loop(), []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        listener.listen()
        connection = make_link(loop, place, told)
        connection.open()
        for _ in range(20_000):
            connection.offer(local.Activity(1, 5.0))
        connection.send(local.Finished(1))
        sidecar, _ = listener.accept()
        received = bytearray()

        def read() -> None:
            received.extend(sidecar.recv(1 << 20))
            if b"Finished" in received:
                loop.stop(0)

        loop.on_readable(sidecar.fileno(), read)
        loop.run()
        sidecar.close()
    lines = bytes(received).splitlines()
    assert local.decode(lines[-1]) == local.Finished(1)
    assert all(local.decode(line) == local.Activity(1, 5.0) for line in lines[:-1])
    assert len(lines) < 10_000


# processes that no signal ends


def test_processes_that_survive_a_kill_are_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trainers, "_UNKILLABLE_SECONDS", 0.3)
    monkeypatch.setattr(processes, "send_signal", lambda pid, number, *, group: None)  # as in state D
    loop, gone = Loop(), []
    console = Console(loop)
    running = Trainers(
        loop,
        console,
        explain_finish=lambda failure: None,
        on_failed=lambda failure: None,
        on_gone=lambda: gone.append(True),
    )
    running.start([Launch(0, (sys.executable, "-c", "input()"), dict(os.environ))], prefixed=False)
    (pid,) = running.pids
    running.end(0)
    loop.call_later(1.0, lambda: loop.stop(0))
    loop.run()
    assert gone == []
    said = capfd.readouterr().err
    assert said.count(f"{pid} (") == 1
    assert "state" in said
    monkeypatch.undo()
    processes.send_signal(pid, 9, group=True)
    os.waitpid(pid, 0)
    running.reaped(pid, 9)
    assert gone == [True]


@pytest.fixture
def own_signals() -> Iterator[None]:
    """As they were, afterwards."""
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    yield
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        if handler is not None and signal.getsignal(number) != handler:
            signal.signal(number, handler)


@pytest.mark.usefixtures("own_signals")
def test_r31_told_to_end_the_launcher_ends_although_a_trainer_does_not(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_EXIT_SECONDS", 0.3)
    monkeypatch.setattr(processes, "send_signal", lambda pid, number, *, group: None)  # as in state D
    script = place.with_name("train.py")
    script.write_text("import time\ntime.sleep(1000)\n")
    variables = {**os.environ, names.ENV_MEMORY: str(place.parent), "USE_LIBUV": "1"}
    command = parse_command([sys.executable, str(script)])
    loop = Loop()
    sidecar = FakeSidecar(place.parent)
    sidecar.listen()
    launcher = supervisor.Supervisor(
        read_settings(command, variables, Path("/lib")),
        (sys.executable,),
        loop=loop,
        console=Console(loop),
        log=place.with_name("termination-log"),
    )
    launcher.open()
    sidecar.accept()
    plan = make_plan(1)
    sidecar.send(local.Start(1, local.codec.dumps(plan), (0, 1), 1, "127.0.0.1", 29500, ""))
    sidecar.send(local.Exit("finished"))
    try:
        loop.call_later(HANG_SECONDS, lambda: loop.stop(99))
        assert loop.run() == 0
        assert '"finished"' in place.with_name("termination-log").read_text()
    finally:
        monkeypatch.undo()
        processes.kill_all(processes.descendants())
        os.waitpid(-1, 0)
        sidecar.close()


# the question for libuv


def make_interpreter(folder: Path, text: str) -> tuple[str, ...]:
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return (str(program),)


def test_an_interpreter_that_leaves_somebody_behind_is_not_read_for_ever(tmp_path: Path) -> None:
    done: list[bool] = []
    probe = LibuvProbe(Loop(), lambda: done.append(True))
    probe.start(make_interpreter(tmp_path, f"sleep {2 * HANG_SECONDS} &\necho $! >{tmp_path}/left"), {"PATH": "/bin"})
    pid, _ = os.waitpid(-1, 0)
    in_time(lambda: probe.reaped(pid))
    assert (done, probe.is_running, probe.has_libuv) == ([True], False, None)
    processes.send_signal(int((tmp_path / "left").read_text()), 9, group=False)


def test_an_interpreter_that_never_ends_keeps_no_attempt_from_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop()
    probe = LibuvProbe(loop, lambda: loop.stop(7), limit_seconds=0.1)
    probe.start(make_interpreter(tmp_path, f"exec sleep {2 * HANG_SECONDS}"), {"PATH": "/bin"})
    monkeypatch.setattr(processes, "send_signal", lambda pid, number, *, group: None)  # as in state D
    assert probe.is_running
    in_time(loop.run)
    assert not probe.is_running
    monkeypatch.undo()
    processes.kill_all(processes.descendants())
    pid, _ = os.waitpid(-1, 0)
    assert not probe.reaped(pid), "it was given up"


# readers of our output, and threads


def test_the_last_words_do_not_wait_for_a_reader_that_takes_a_little_at_a_time() -> None:
    reader, writer = os.pipe()
    sink = Sink(Loop(), writer)
    sink.write(b"x" * (4 << 20))
    done = threading.Event()

    def trickle() -> None:
        while not done.wait(0.1):
            os.read(reader, 4096)

    thread = threading.Thread(target=trickle)
    thread.start()
    began = time.monotonic()
    in_time(lambda: sink.flush(0.5))
    done.set()
    thread.join()
    assert time.monotonic() - began < HANG_SECONDS
    os.close(reader)
    os.close(writer)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_look_up_that_fails_in_its_thread_ends_nothing() -> None:
    loop, told = Loop(), []

    def look_up(address: str) -> None:
        raise RuntimeError("a resolver that breaks")

    ReverseLookup(loop, told.append, look_up=look_up, slow_seconds=0.0).start("10.0.0.7")
    loop.call_later(0.3, lambda: loop.stop(5))
    assert loop.run() == 5


def test_a_look_up_for_which_there_is_no_thread_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    loop, told = Loop(), []
    ReverseLookup(loop, told.append, slow_seconds=60.0).start("10.0.0.7")
    loop.call_later(0.1, lambda: loop.stop(5))
    assert loop.run() == 5
