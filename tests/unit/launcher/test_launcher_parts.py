"""The launcher's pure parts, and those that need only a file or a socket."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from everstep.launcher import environment, host, master, processes
from everstep.launcher.environment import Placement, build_argv, build_common_variables, build_rank_variables
from everstep.launcher.interpreter import find_interpreter, read_shebang
from everstep.launcher.output import TAIL_BYTES, clip
from everstep.launcher.processes import Exit, Launch
from everstep.launcher.settings import Settings, read_settings, termination_log
from everstep.launcher.termination import LIMIT_BYTES, encode
from everstep_protocol.command import parse_command
from everstep_protocol.local import Start, TerminationMessage
from integration.launcher.launcher_harness import make_plan

PLACEMENT = Placement(
    attempt=3, ranks=(2, 4), world=6, group_rank=1, group_world=3, master_addr="10.0.0.1", master_port=23456, run_id="u"
)


def settings(**variables: str) -> Settings:
    return read_settings(parse_command(["torchrun", "t.py"]), variables, Path("/lib"))


def common(given: dict[str, str], *, has_libuv: bool | None = None, cores: int = 8) -> dict[str, str]:
    start = Start(3, "", (2, 4), 6, "10.0.0.1", 23456, "")
    return build_common_variables(settings(**given), start, has_libuv=has_libuv, cores=cores)


def test_rank_variables() -> None:
    assert build_rank_variables(PLACEMENT, 1) == {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "6",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "3",
        "ROLE_RANK": "3",
        "ROLE_WORLD_SIZE": "6",
        "ROLE_NAME": "default",
        "NODE_RANK": "1",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "23456",
        "TORCHELASTIC_RUN_ID": "u",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_MAX_RESTARTS": "100",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


@pytest.mark.parametrize(
    ("given", "has_libuv", "expected"),
    [({}, False, "0"), ({}, True, None), ({}, None, None), ({"USE_LIBUV": "1"}, False, "1")],
)
def test_use_libuv_only_where_torch_lacks_it(
    given: dict[str, str], has_libuv: bool | None, expected: str | None
) -> None:
    assert common(given, has_libuv=has_libuv).get("USE_LIBUV") == expected


@pytest.mark.parametrize(("cores", "threads"), [(1, "1"), (2, "1"), (9, "4")])
def test_threads_are_cores_by_processes(cores: int, threads: str) -> None:
    assert common({}, cores=cores)["OMP_NUM_THREADS"] == threads


def test_nccl_and_gloo_are_not_touched() -> None:
    assert not [
        name for name in {**common({}), **build_rank_variables(PLACEMENT, 0)} if "NCCL" in name or "GLOO" in name
    ]


@pytest.mark.parametrize(
    ("line", "argv"),
    [
        ("torchrun t.py ${local_rank} $x", ("py", "-u", "t.py", "1", "$x")),
        ("torchrun -m pkg", ("py", "-u", "-m", "pkg")),
        ("torchrun --no-python ./t", ("./t",)),
        ("python -u t.py ${local_rank}", ("py", "t.py", "${local_rank}")),
    ],
)
def test_argv(line: str, argv: tuple[str, ...]) -> None:
    command = parse_command(line.split())
    assert build_argv(command, () if command.no_python else ("py",), 1) == argv


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("#!/v/bin/python3\nimport x\n", ("/v/bin/python3",)),
        ("#!/usr/bin/env python3\n", ("/usr/bin/env", "python3")),
        ("#!/bin/sh\n'''exec' \"/a long/python3\" \"$0\" \"$@\"\n' '''\n", ("/a long/python3",)),
        ("#!/bin/sh\n'''exec' /a/python3 \"$0\" \"$@\"\n' '''\n", ("/a/python3",)),
        ("\x7fELF", ()),
        ("", ()),
    ],
)
def test_shebangs(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    (tmp_path / "torchrun").write_text(text)
    assert read_shebang(tmp_path / "torchrun") == words


def test_without_a_torchrun_python3_is_taken(tmp_path: Path) -> None:
    (tmp_path / "python3").symlink_to(sys.executable)
    found = find_interpreter(parse_command(["torchrun", "t.py"]), {"PATH": str(tmp_path)})
    assert found == (str(tmp_path / "python3"),)


def test_a_bad_number_is_told() -> None:
    with pytest.raises(ValueError, match="EVERSTEP_GRACE_SECONDS is 'soon'"):
        settings(EVERSTEP_GRACE_SECONDS="soon")


def test_where_the_last_word_goes() -> None:
    assert termination_log({}) == Path("/dev/termination-log")
    assert termination_log({"TERMINATION_LOG": "/x"}) == Path("/x")


@pytest.mark.parametrize("text", ["x" * 9000, "\x00" * 3000, "\ufffd" * 2000, "\U0001f600" * 2000, "short"])
def test_the_termination_message_fits(text: str) -> None:
    raw = encode(TerminationMessage(1, "failed", last_lines=text))
    assert len(raw) <= LIMIT_BYTES
    assert text.endswith(json.loads(raw)["lastLines"])
    assert json.loads(raw)["lastLines"]


@pytest.mark.parametrize(
    ("text", "limit", "expected"),
    [
        ("abc\n", 10, "abc\n"),
        ("first\nsecond\n", 9, "second\n"),
        ("one long line", 4, "line"),
        ("é" * 3, 3, "é"),
        ("x", 0, ""),
    ],
)
def test_clip(text: str, limit: int, expected: str) -> None:
    assert clip(text, limit) == expected


def test_clip_never_exceeds_its_limit() -> None:
    assert len(clip("\ufffd" * TAIL_BYTES).encode()) <= TAIL_BYTES


class TestHost:
    def test_version_2(self, tmp_path: Path) -> None:
        own = self._own(tmp_path, "0::/pod/trainer\n")
        self._file(tmp_path / "pod/trainer/memory.events", "low 0\noom 3\noom_kill 2\noom_group_kill 1\n")
        self._file(tmp_path / "pod/trainer/cpu.max", "150000 100000\n")
        assert host.count_oom_kills(tmp_path, own) == 2
        assert host.count_cores(tmp_path, own) == 1

    def test_version_1_seen_from_inside(self, tmp_path: Path) -> None:
        own = self._own(tmp_path, "9:memory:/kubepods/x\n4:cpu,cpuacct:/kubepods/x\n")
        self._file(tmp_path / "memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
        assert host.count_oom_kills(tmp_path, own) == 1

    def test_nothing_known(self, tmp_path: Path) -> None:
        own = self._own(tmp_path, "")
        self._file(tmp_path / "cpu.max", "max 100000\n")
        assert host.count_oom_kills(tmp_path, own) is None
        assert host.count_cores(tmp_path, own) >= 1

    def _own(self, folder: Path, text: str) -> Path:
        path = folder / "self"
        path.write_text(text)
        return path

    def _file(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_r22_ports_are_new_and_free() -> None:
    ports = [master.choose_port(frozenset()) for _ in range(3)]
    for port in ports:
        with socket.socket() as listener:
            listener.bind(("", port))
    every = frozenset(range(20000, 30000))
    with pytest.raises(OSError, match="no port"):
        master.choose_port(every)


def test_r22_a_rank_waits_until_the_master_listens() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        assert not master.wait_for_master("127.0.0.1", port, 0.1)
        timer = threading.Timer(0.1, listener.listen)
        timer.start()
        assert master.wait_for_master("127.0.0.1", port, 30)
        timer.join()


def test_exits_are_described() -> None:
    assert processes.describe_exit(4, 3 << 8) == Exit(4, 3, None)
    assert processes.describe_exit(4, signal.SIGKILL) == Exit(4, None, 9)


def test_a_program_that_is_not_there_leaves_no_pipe_open() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(processes.CannotExecute, match="no-such: no such program"):
        processes.spawn(Launch(0, ("no-such",), {"PATH": "/bin"}))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_placement_needs_a_member_with_its_ranks() -> None:
    start = Start(1, "", (0, 7), 7, "a", 1, "")
    with pytest.raises(ValueError, match="no member with the ranks"):
        environment.place(start, make_plan(1, (2, 2)))


def test_the_launcher_imports_neither_torch_nor_the_library() -> None:
    code = (
        "import sys, everstep.launcher.main, everstep.launcher.shim\n"
        "bad = [m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy', 'aiohttp')"
        " or m.startswith('everstep.') and not m.startswith('everstep.launcher')]\n"
        "assert not bad, bad\n"
    )
    library = str(Path(processes.__file__).parents[2])
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": library})
