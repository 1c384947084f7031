"""The one definition of a complete checkpoint, on real folders (B01, B04, B29)."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from everstep_protocol import codec, records
from everstep_protocol.complete import Verdict, inspect
from store_support import stock, world

UIDS = frozenset({world.JOB})


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """A checkpoint of two ranks that Everstep committed at step 40."""
    root = tmp_path / "root"
    plan = world.make_plan(3, world=2, lineage=((1, 20),))
    world.begin(root, plan)
    world.committed(root, tmp_path / "memory", plan, 40)
    return root / "step_40"


def test_ours_is_complete_with_identity_and_size(ours: Path) -> None:
    verdict = inspect(ours, job_uids=UIDS)
    manifest = records.parse_manifest((ours / "manifest.json").read_bytes())
    size = 200 + (ours / ".metadata").stat().st_size
    assert verdict == Verdict("step_40", "complete", "", 40, manifest.id, 3, ((1, 20),), size, 2)


@pytest.mark.parametrize("name", ["__0_0.distcp", "__1_0.distcp", ".metadata"])
@pytest.mark.parametrize("change", [lambda n: 0, lambda n: n - 1, lambda n: n + 1])
def test_b04_ours_of_another_length_is_refused(ours: Path, name: str, change) -> None:  # type: ignore[no-untyped-def]
    length = (ours / name).stat().st_size
    os.truncate(ours / name, change(length))
    verdict = inspect(ours, job_uids=UIDS)
    assert verdict.state == "refused"
    assert verdict.reason == f"{name} has {change(length)} bytes, {length} are needed"
    assert (verdict.attempt, verdict.step) == (3, 40)


@pytest.mark.parametrize("name", ["__0_0.distcp", "__1_0.distcp", ".metadata"])
def test_ours_with_a_file_gone_or_linked_is_refused(ours: Path, name: str) -> None:
    (ours / name).rename(ours / "elsewhere")
    assert inspect(ours, job_uids=UIDS).reason == f"{name} is missing"
    (ours / name).symlink_to(ours / "elsewhere")
    assert inspect(ours, job_uids=UIDS).reason == f"{name} is not a regular file"


def test_ours_with_a_changed_manifest_is_refused(ours: Path) -> None:
    manifest = records.parse_manifest((ours / "manifest.json").read_bytes())
    (ours / "manifest.json").write_text(codec.dumps(replace(manifest, step=41)))
    assert "not the digest" in inspect(ours, job_uids=UIDS).reason
    for text in ("", "{", "[]", '{"format": 1}'):
        (ours / "manifest.json").write_text(text)
        assert inspect(ours, job_uids=UIDS).state == "refused"


def test_r12_whose_manifest_cannot_be_read_is_attributed_by_its_rank_records_then_by_its_name(ours: Path) -> None:
    (ours / "manifest.json").write_text("{")
    verdict = inspect(ours, job_uids=UIDS)
    assert (verdict.state, verdict.attempt, verdict.step, verdict.id) == ("refused", 3, 40, "")
    assert inspect(ours, job_uids=None).attempt == 3
    assert inspect(ours, job_uids=frozenset({"somebody"})).attempt == 0, "another job's records say nothing of ours"
    (ours / "rank_0.json").write_text("[]")
    assert inspect(ours, job_uids=UIDS).attempt == 3, "one record is enough"
    (ours / "rank_1.json").unlink()
    assert inspect(ours, job_uids=UIDS).attempt == 0
    named = ours.rename(ours.with_name("step_40.a5"))
    assert inspect(named, job_uids=UIDS).attempt == 5


def test_a_manifest_that_names_a_file_outside_is_refused(ours: Path) -> None:
    manifest = records.parse_manifest((ours / "manifest.json").read_bytes())
    outside = replace(manifest.files[0], name="../../secret")
    (ours / "manifest.json").write_text(codec.dumps(records.sealed(replace(manifest, files=(outside,)))))
    assert "outside its directory" in inspect(ours, job_uids=UIDS).reason


def test_another_jobs_is_refused_and_lends_nothing_to_the_lineage(ours: Path) -> None:
    verdict = inspect(ours, job_uids=frozenset({"somebody"}))
    assert (verdict.state, verdict.id, verdict.attempt) == ("refused", "", 0)
    assert "belongs to another job" in verdict.reason
    assert "remove its manifest.json" in verdict.reason


def test_ours_without_its_manifest_is_judged_as_stock(ours: Path) -> None:
    (ours / "manifest.json").unlink()
    (ours / ".metadata").write_bytes(stock.metadata_bytes([("__0_0.distcp", 0, 100), ("__1_0.distcp", 0, 100)]))
    verdict = inspect(ours, job_uids=UIDS)
    assert (verdict.state, verdict.id, verdict.attempt, verdict.step) == ("complete", "", 0, 40)


def test_stock_is_complete(tmp_path: Path) -> None:
    directory = stock.make_stock_checkpoint(tmp_path / "step_007")
    assert inspect(directory, job_uids=UIDS) == Verdict("step_007", "complete", "", 7, bytes=2000)


@pytest.mark.parametrize("length", [0, 936, 999])
def test_b04_stock_that_is_too_short_is_refused(tmp_path: Path, length: int) -> None:
    directory = stock.make_stock_checkpoint(tmp_path / "step_7")
    os.truncate(directory / "__1_0.distcp", length)
    verdict = inspect(directory, job_uids=UIDS)
    assert (verdict.state, verdict.reason) == ("refused", f"__1_0.distcp has {length} bytes, at least 1000 are needed")


def test_stock_may_be_longer_than_its_items(tmp_path: Path) -> None:
    directory = stock.make_stock_checkpoint(tmp_path / "step_7")
    os.truncate(directory / "__1_0.distcp", 5000)
    assert inspect(directory, job_uids=UIDS).state == "complete"


def test_b04_stock_with_a_shard_gone_or_an_empty_metadata_is_refused(tmp_path: Path) -> None:
    directory = stock.make_stock_checkpoint(tmp_path / "step_7")
    (directory / "__0_0.distcp").unlink()
    assert inspect(directory, job_uids=UIDS).reason == "__0_0.distcp is missing"
    os.truncate(directory / ".metadata", 0)
    assert inspect(directory, job_uids=UIDS).state == "refused"


def recorded(directory: Path, **changes: object) -> Path:
    """A stock checkpoint with the record of a run: run 4 of its folder saved step 40."""
    stock.make_stock_checkpoint(directory)
    run = replace(records.Run(records.FORMAT, "", 4, 40, ((2, 30),), 2), **changes)  # type: ignore[arg-type]
    (directory / "run.json").write_text(codec.dumps(records.sealed_run(run)))
    return directory


def test_outside_a_cluster_a_record_says_which_run_made_it(tmp_path: Path) -> None:
    directory = recorded(tmp_path / "step_7")
    record = records.parse_run((directory / "run.json").read_bytes())
    assert inspect(directory, job_uids=None) == Verdict("step_7", "complete", "", 40, record.id, 4, ((2, 30),), 2000, 2)
    (directory / "__0_0.distcp").unlink()
    verdict = inspect(directory, job_uids=None)
    assert (verdict.state, verdict.attempt, verdict.reason) == ("refused", 4, "__0_0.distcp is missing")
    (directory / ".metadata").unlink()
    verdict = inspect(directory, job_uids=None)
    assert (verdict.state, verdict.attempt) == ("incomplete", 4)


def test_in_a_cluster_a_record_is_nothing(tmp_path: Path) -> None:
    directory = recorded(tmp_path / "step_7")
    (directory / "run.json").write_text("damaged")
    assert inspect(directory, job_uids=UIDS) == Verdict("step_7", "complete", "", 7, bytes=2000)


def test_a_damaged_record_makes_no_import(tmp_path: Path) -> None:
    directory = recorded(tmp_path / "step_7")
    whole = (directory / "run.json").read_text()
    for text in ("", "[]", whole.replace('"step":40', '"step":41')):
        (directory / "run.json").write_text(text)
        verdict = inspect(directory, job_uids=None)
        assert (verdict.state, verdict.attempt, verdict.id) == ("refused", 0, "")
        assert verdict.reason.startswith("run.json is damaged: ")
    recorded(tmp_path / "step_8", format=2)
    assert "format: 2 is not known here" in inspect(tmp_path / "step_8", job_uids=None).reason
    (directory / "run.json").unlink()
    (directory / "run.json").symlink_to(tmp_path / "step_8" / "run.json")
    assert inspect(directory, job_uids=None).state == "refused"
    (directory / ".metadata").unlink()
    assert inspect(directory, job_uids=None).state == "incomplete"


def test_outside_a_cluster_any_jobs_checkpoint_counts(ours: Path) -> None:
    assert inspect(ours, job_uids=None) == inspect(ours, job_uids=UIDS)
    os.truncate(ours / ".metadata", 1)
    assert inspect(ours, job_uids=None).state == "refused"


def test_b29_stock_whose_metadata_is_a_link_or_a_gigabyte_is_refused(tmp_path: Path) -> None:
    directory = stock.make_stock_checkpoint(tmp_path / "step_7")
    shutil.move(directory / ".metadata", tmp_path / "outside")
    (directory / ".metadata").symlink_to(tmp_path / "outside")
    assert inspect(directory, job_uids=UIDS).reason == ".metadata is not a regular file"
    (directory / ".metadata").unlink()
    (directory / ".metadata").touch()
    os.truncate(directory / ".metadata", 2**30)
    assert "larger than" in inspect(directory, job_uids=UIDS).reason


def test_b01_what_was_never_finished_is_no_checkpoint(tmp_path: Path) -> None:
    directory = stock.make_stock_checkpoint(tmp_path / "step_200")
    (directory / ".metadata").rename(directory / ".metadata.tmp")
    assert inspect(directory, job_uids=UIDS).state == "incomplete"
    (tmp_path / "step_400").mkdir()
    assert inspect(tmp_path / "step_400", job_uids=UIDS).state == "incomplete"
    (tmp_path / "step_500").write_text("a file")
    assert inspect(tmp_path / "step_500", job_uids=UIDS) == Verdict("step_500", "incomplete", "is not a directory", 500)
    assert inspect(tmp_path / "step_600", job_uids=UIDS).reason == "is gone"


def test_a_link_to_a_checkpoint_is_refused(tmp_path: Path) -> None:
    stock.make_stock_checkpoint(tmp_path / "elsewhere")
    (tmp_path / "step_7").symlink_to(tmp_path / "elsewhere")
    assert inspect(tmp_path / "step_7", job_uids=UIDS).state == "refused"


def test_r12_storage_that_does_not_answer_is_unknown_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = stock.make_stock_checkpoint(tmp_path / "step_7")
    lstat = Path.lstat

    def stale(path: Path) -> os.stat_result:
        if path.name == "__1_0.distcp":
            raise OSError(116, "Stale file handle")
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", stale)
    with pytest.raises(OSError, match="Stale"):
        inspect(directory, job_uids=UIDS)
