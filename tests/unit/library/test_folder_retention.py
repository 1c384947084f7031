"""What goes from a folder, and that what cannot go stops nothing."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from everstep_protocol import complete
from store_support import stock
from store_support.folders import damage, names, run, save, train


def test_r13_the_newest_stay_and_what_a_run_stands_on(tmp_path: Path) -> None:
    train(tmp_path, 10, 20, 30, 40)
    assert names(tmp_path) == ["step_20", "step_30", "step_40"]
    train(tmp_path, keep_last=1)
    assert names(tmp_path) == ["step_40"]
    train(tmp_path, 50, 60, keep_last=1)
    assert names(tmp_path) == ["step_60"]


def test_r13_before_its_first_commit_a_run_keeps_what_it_resumed_from(tmp_path: Path) -> None:
    train(tmp_path, 10, 20, 30)
    data = {step: damage(tmp_path / f"step_{step}") for step in (20, 30)}
    with run(tmp_path, keep_last=1) as place:
        assert place.resume() == (tmp_path / "step_10", 10)
        for step, content in data.items():
            (tmp_path / f"step_{step}" / "__0_0.distcp").write_bytes(content)
        place._prune()
        assert names(tmp_path) == ["step_10", "step_30"]
        save(place, 15)
        assert names(tmp_path) == ["step_15"]


def test_an_old_one_that_cannot_be_moved_is_no_failed_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rename, tried = Path.rename, []

    def refuse(path: Path, target: Path) -> Path:
        if path.name in ("step_10", "step_20"):
            tried.append(path.name)
            raise PermissionError(errno.EPERM, "Operation not permitted", str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with run(tmp_path, keep_last=1) as place:
        place.resume()
        for step in (5, 30, 40, 50):
            save(place, step)
        capsys.readouterr()
        for step in (10, 20):
            stock.make_stock_checkpoint(tmp_path / f"step_{step}", world=1)
        save(place, 60, 70, 80)
    assert names(tmp_path) == ["step_10", "step_20", "step_80"]
    assert tried == ["step_10", "step_20"], "once each, and the failing first one stops no other"
    sentence = "Operation not permitted): training goes on, remove it by hand to free its room"
    assert capsys.readouterr().err.splitlines() == [
        f"everstep: {tmp_path}/step_{step} cannot be deleted ({tmp_path}/step_{step}: {sentence}" for step in (10, 20)
    ]


def test_trash_that_cannot_be_removed_is_told_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Left by a killed run: a folder with two things in it that cannot go, and others. All else goes."""
    rmdir = os.rmdir

    def busy(path: str, **more: int) -> None:
        if os.fspath(path).endswith("mounted"):
            raise OSError(errno.EBUSY, "Device or resource busy", os.fspath(path))
        rmdir(path, **more)

    monkeypatch.setattr(os, "rmdir", busy)
    for name in (".trash-step_1/a", ".trash-step_1/b", ".trash-step_2", "step_9.tmp-0"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "__0_0.distcp").write_bytes(b"data")
    for name in "ab":
        (tmp_path / ".trash-step_1" / name / "mounted").mkdir()
    with run(tmp_path, keep_last=1) as place:
        place.resume()
        save(place, 1, 2, 3)
        place.close()
        place.open()
    assert names(tmp_path) == [".trash-step_1", "step_3"]
    assert not list((tmp_path / ".trash-step_1").rglob("*.distcp"))
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "deleted" in line]
    assert line.startswith(f"everstep: {tmp_path}/.trash-step_1 cannot be deleted (")
    assert "Device or resource busy" in line


def test_retention_that_cannot_look_is_no_failed_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stale(directory: Path, **more: object) -> object:
        raise OSError(errno.ESTALE, "Stale file handle")

    with run(tmp_path, keep_last=1) as place:
        place.resume()
        with monkeypatch.context() as patch:
            patch.setattr(complete, "inspect", stale)
            save(place, 10, 20)
        assert names(tmp_path) == ["step_10", "step_20"]
        assert "old checkpoints are kept this time" in capsys.readouterr().err
        save(place, 30)
    assert names(tmp_path) == ["step_30"]
