"""Checkpoints in a folder: runs that follow each other, on real files."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from everstep.errors import EverstepError, LoadError
from everstep.folder import FolderPlace
from everstep.room import free_bytes
from everstep_protocol import complete, records, storage
from everstep_protocol.plan import Resume
from store_support import stock, world
from store_support.folders import damage, names, run, save, train


def test_runs_follow_each_other_and_each_is_recorded(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "checkpoints"
    assert train(folder, 10, 20) is None
    assert train(folder, 30) == (folder / "step_20", 20)
    assert train(folder) == (folder / "step_30", 30)
    record = records.parse_run((folder / "step_30" / "run.json").read_bytes())
    assert (record.run, record.step, record.lineage, record.world) == (2, 30, ((1, 20),), 1)
    assert names(folder) == ["step_10", "step_20", "step_30"]


def test_r9_a_repaired_checkpoint_of_an_abandoned_branch_is_not_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, 100, 200, 300)
    data = damage(tmp_path / "step_300")
    capsys.readouterr()
    assert train(tmp_path, 250) == (tmp_path / "step_200", 200)
    told = capsys.readouterr().err
    assert f"everstep: {tmp_path}/step_300 is passed over: __0_0.distcp has 3 bytes, at least 1000 are needed\n" in told
    assert f"everstep: {tmp_path}: resumes from step_200: a newer one cannot be used\n" in told
    (tmp_path / "step_300" / "__0_0.distcp").write_bytes(data)
    assert train(tmp_path) == (tmp_path / "step_250", 250)
    told = capsys.readouterr().err
    assert (
        told == f"everstep: {tmp_path}/step_300 is passed over: is off the lineage: a later run did not build on it\n"
    )
    damage(tmp_path / "step_250")
    assert train(tmp_path) == (tmp_path / "step_200", 200), "never the other branch"


def test_a_taken_name_gets_the_number_of_the_run(tmp_path: Path) -> None:
    train(tmp_path, 100, 200)
    damage(tmp_path / "step_200")
    train(tmp_path, 200)
    assert names(tmp_path) == ["step_100", "step_200", "step_200.a2"]
    assert train(tmp_path) == (tmp_path / "step_200.a2", 200)


def test_b01_unfinished_directories_alone_are_told_and_step_0_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "step_40").mkdir()
    (tmp_path / "step_50").mkdir()
    assert train(tmp_path) is None
    reason = "has no .metadata and no manifest.json: never finished"
    assert capsys.readouterr().err.splitlines() == [
        f"everstep: {tmp_path}/step_40 is passed over: {reason}",
        f"everstep: {tmp_path}/step_50 is passed over: {reason}",
        f"everstep: {tmp_path}: begins at step 0: there is no checkpoint",
    ]


def test_r12_where_nothing_can_be_chosen_every_directory_is_told(tmp_path: Path) -> None:
    train(tmp_path, *range(100, 115), keep_last=20)
    for directory in tmp_path.glob("step_*"):
        damage(directory)
    with run(tmp_path) as place, pytest.raises(LoadError) as raised:
        place.resume()
    assert str(raised.value).startswith(f"{tmp_path}: no checkpoint can be resumed from (step_100: __0_0.distcp has 3")
    assert all(f"step_{step}: " in str(raised.value) for step in range(100, 115))


def test_r12_storage_that_does_not_answer_is_not_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(directory: Path, **more: object) -> object:
        raise OSError(errno.ESTALE, "Stale file handle", str(directory))

    train(tmp_path, 10)
    with run(tmp_path) as place:
        monkeypatch.setattr(complete, "inspect", stale)
        with pytest.raises(LoadError, match=r"cannot be read \(.*step_10: Stale file handle\)"):
            place.resume()


def test_a_clusters_checkpoint_is_resumed_from_whatever_job_wrote_it(tmp_path: Path) -> None:
    plan = world.make_plan(7, world=2, lineage=((3, 20),), job_uid="some-other-job")
    world.begin(tmp_path / "root", plan)
    world.committed(tmp_path / "root", tmp_path / "memory", plan, 40)
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copytree(tmp_path / "root" / "step_40", folder / "step_40")
    assert train(folder, 50) == (folder / "step_40", 40)
    record = records.parse_run((folder / "step_50" / "run.json").read_bytes())
    assert (record.run, record.lineage) == (8, ((7, 40),))
    assert train(folder) == (folder / "step_50", 50)


def test_in_a_cluster_it_can_be_imported(tmp_path: Path) -> None:
    train(tmp_path / "folder", 40)
    shutil.copytree(tmp_path / "folder", tmp_path / "root")
    answer = world.ask(tmp_path / "root", world.make_request(1))
    assert (answer.reason, answer.resume) == ("Imported", Resume("import", "", "step_40", 0, 40))


def test_two_runs_in_turn_do_not_share_a_number(tmp_path: Path) -> None:
    first = FolderPlace(tmp_path, rank=0, keep_last=9)
    first.open()
    first.open()
    first.resume()
    save(first, 10)
    second = FolderPlace(tmp_path, rank=0, keep_last=9)
    with pytest.raises(EverstepError, match="in use by another run"):
        second.open()
    first.close()
    second.open()
    assert second.resume() == (tmp_path / "step_10", 10)
    save(second, 20)
    second.close()
    first.open()
    save(first, 15)
    first.close()
    assert train(tmp_path) == (tmp_path / "step_15", 15)
    record = records.parse_run((tmp_path / "step_15" / "run.json").read_bytes())
    assert (record.run, record.lineage) == (3, ((1, 10),))


def test_a_name_says_nothing_where_there_is_a_record(tmp_path: Path) -> None:
    train(tmp_path, 10)
    (tmp_path / "step_10").rename(tmp_path / "step_90")
    assert train(tmp_path) == (tmp_path / "step_90", 10)


def test_opening_again_while_open_leaves_a_save_alone(tmp_path: Path) -> None:
    with run(tmp_path) as place:
        place.resume()
        stock.make_stock_checkpoint(place.make(10), world=1)
        place.open()
        place.publish(10, 0)
    assert names(tmp_path) == ["step_10"]


@pytest.mark.parametrize("where", ["file", "file/below", "loop/below"])
def test_a_folder_that_cannot_be_is_told_with_its_path_and_a_remedy(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("a file")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(EverstepError) as raised:
        FolderPlace(tmp_path / where, rank=0, keep_last=3).open()
    assert str(raised.value).startswith(f"checkpoints cannot be written to {tmp_path / where} ({tmp_path}/")
    assert str(raised.value).endswith(
        "): let this user write there, or choose another directory= (or EVERSTEP_CHECKPOINT_DIR)"
    )


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_folder_that_cannot_be_written_is_told_before_the_first_step_and_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    mkdir = os.mkdir

    def refuse(path: str, *more: int) -> None:
        if storage.TRASH_PREFIX in os.fspath(path):
            raise OSError(number, os.strerror(number), path)
        mkdir(path, *more)

    place = FolderPlace(tmp_path, rank=0, keep_last=3)
    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", refuse)
        with pytest.raises(EverstepError, match=os.strerror(number)):
            place.open()
    train(tmp_path, 10)


def test_a_full_disk_is_no_reason_not_to_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: str, *more: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", path)

    monkeypatch.setattr(os, "mkdir", full)
    with run(tmp_path) as place:
        assert place.resume() is None


def test_other_ranks_touch_nothing(tmp_path: Path) -> None:
    place = FolderPlace(tmp_path / "absent", rank=1, keep_last=3)
    place.open()
    assert place.resume() is None
    place.make(10)
    place.publish(10, 0)
    place.discard(10)
    place.close()
    assert not (tmp_path / "absent").exists()


def test_b04_statvfs_that_reports_nothing_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert free_bytes(tmp_path) == FolderPlace(tmp_path, rank=0, keep_last=1).free_bytes()
    assert free_bytes(tmp_path / "absent") is None
    answers = SimpleNamespace(f_blocks=0, f_bavail=0, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: answers)
    assert free_bytes(tmp_path) is None
    answers.f_blocks = 10
    assert free_bytes(tmp_path) == 0
    answers.f_bavail = 3
    assert free_bytes(tmp_path) == 3 * 4096
