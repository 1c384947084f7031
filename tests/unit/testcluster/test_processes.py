"""A process is known by its pid, its start time and the boot: a pid used again is somebody else."""

import dataclasses
import json
import os
import subprocess
from dataclasses import asdict
from pathlib import Path

from testcluster.processes import Ledger, Process, boot_id, parse_start_time, start_time

STAT = "42 (a (b) c) {state} 1 42 42 0 -1 4194560 100 0 0 0 1 2 0 0 20 0 1 0 98765 1000 10"


def test_start_time_is_read_behind_a_name_with_blanks_and_brackets() -> None:
    assert parse_start_time(STAT.format(state="S")) == 98765


def test_a_zombie_has_no_start_time() -> None:
    assert parse_start_time(STAT.format(state="Z")) is None


def _process(pid: int) -> Process:
    return Process("test", pid, start_time(pid) or 0, boot_id())


def test_we_are_alive() -> None:
    assert _process(os.getpid()).is_alive()


def test_a_pid_used_again_is_not_ours_and_is_not_killed() -> None:
    with subprocess.Popen(["sleep", "60"]) as somebody:
        ours = dataclasses.replace(_process(somebody.pid), start_time=1)
        assert not ours.is_alive()
        ours.kill()
        assert somebody.poll() is None
        somebody.kill()


def test_a_record_of_another_boot_is_dead() -> None:
    assert not dataclasses.replace(_process(os.getpid()), boot="another").is_alive()


def test_a_dead_process_is_dead() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        process = _process(child.pid)
        process.kill()
        child.wait()
        assert not process.is_alive()


def test_a_line_cut_short_by_a_kill_is_no_record(tmp_path: Path) -> None:
    file = tmp_path / "processes"
    whole = _process(os.getpid())
    file.write_text(json.dumps(asdict(whole)) + '\n{"role": "etcd", "pi')
    assert Ledger(file).processes() == [whole]
    assert Ledger(file).alive("test") == whole
    assert Ledger(file).alive("etcd") is None
