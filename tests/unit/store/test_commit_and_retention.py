"""R6, R13, R14, R16, R17 on real folders."""

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import xxhash
from everstep_protocol import records
from everstep_protocol.plan import Resume
from everstep_protocol.records import Parent
from everstep_sidecar.store import retention, temporary
from everstep_sidecar.store.commit import commit
from everstep_sidecar.store.fence import raise_fence
from everstep_sidecar.store.files import Files
from everstep_sidecar.store.hashing import BLOCK_BYTES
from everstep_sidecar.store.listing import info, list_checkpoints
from everstep_sidecar.store.temporary import (
    BadSnapshot,
    Fenced,
    discard,
    open_temporary,
    read_ready,
    read_records,
    write_rank,
)
from everstep_sidecar.store.verify import Share, verify_share
from store_support import stock, world

UIDS = frozenset({world.JOB})
PLAN = world.make_plan(2, world=3, resume=Resume("checkpoint", "p", "step_5", 1, 5), lineage=((1, 5),))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    world.begin(tmp_path / "root", PLAN)
    return tmp_path / "root"


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    return tmp_path / "memory"


def do_commit(root: Path, step: int = 10, files: Files | None = None):  # type: ignore[no-untyped-def]
    return commit(root, PLAN, step, samples_consumed=640, torch="2.6.0", files=files or Files())


def delete(root: Path, identity: str, files: Files | None = None, *, where: str = "") -> None:
    """As the coordinator does."""
    retention.take_away(root, identity, files or Files(), where=where)
    retention.empty_trash(root, identity, files or Files())


def test_a_commit_says_what_is_there(root: Path, memory: Path) -> None:
    done = world.save(root, memory, PLAN, 10)
    assert done.checkpoint is not None
    manifest = records.parse_manifest((root / "step_10" / "manifest.json").read_bytes())
    assert (manifest.attempt, manifest.step, manifest.world, manifest.samples_consumed) == (2, 10, 3, 640)
    assert (manifest.parent, manifest.lineage) == (Parent("p", 1, 5), ((1, 5),))
    data = (root / "step_10" / "__2_0.distcp").read_bytes()
    assert manifest.files[2] == records.FileRecord("__2_0.distcp", 100, xxhash.xxh3_128_hexdigest(data))
    (verdict,) = list_checkpoints(root, UIDS)
    assert info(root, verdict) == done.checkpoint


def test_files_larger_than_a_block_arrive_whole(root: Path, memory: Path) -> None:
    snapshot = world.make_snapshot(memory, PLAN, 10)
    data = os.urandom(BLOCK_BYTES + 12345)
    (snapshot / "__0_0.distcp").write_bytes(data)
    ready = world.ready_of(snapshot, 0)
    ready = replace(ready, files={**ready.files, "__0_0.distcp": len(data)})
    open_temporary(root, 2, 10)
    record = write_rank(root, snapshot, ready, job_uid=world.JOB)
    assert (root / "step_10.tmp-2" / "__0_0.distcp").read_bytes() == data
    assert record.files[1].xxh3_128 == xxhash.xxh3_128_hexdigest(data)


def test_r6_a_name_that_is_taken_stays_as_it_is(root: Path, memory: Path) -> None:
    stock.make_stock_checkpoint(root / "step_10")
    (root / "step_11").write_text("a file")
    (root / "step_12").mkdir()
    before = (root / "step_10" / ".metadata").read_bytes()
    names = [world.save(root, memory, PLAN, step).checkpoint for step in (10, 11, 12)]
    assert [name and name.dir for name in names] == ["step_10.a2", "step_11.a2", "step_12"]
    assert (root / "step_10" / ".metadata").read_bytes() == before
    assert (root / "step_11").read_text() == "a file"


def test_r14_a_rank_never_makes_the_directory(root: Path, memory: Path) -> None:
    snapshot = world.make_snapshot(memory, PLAN, 10)
    with pytest.raises(Fenced):
        world.write_ranks(root, snapshot, PLAN)
    assert not (root / "step_10.tmp-2").exists()


def test_r5_a_fence_in_mid_write_ends_it(root: Path, memory: Path) -> None:
    snapshot = world.make_snapshot(memory, PLAN, 10)
    open_temporary(root, 2, 10)
    write_rank(root, snapshot, world.ready_of(snapshot, 0), job_uid=world.JOB)
    raise_fence(root, world.make_fence(3))
    with pytest.raises(Fenced):
        write_rank(root, snapshot, world.ready_of(snapshot, 1), job_uid=world.JOB)
    assert do_commit(root).outcome == "fenced"
    with pytest.raises(Fenced):
        open_temporary(root, 2, 11)
    assert list_checkpoints(root, UIDS) == ()


def test_r14_nothing_is_committed_before_all_ranks_are_there(root: Path, memory: Path) -> None:
    snapshot = world.make_snapshot(memory, PLAN, 10)
    open_temporary(root, 2, 10)
    write_rank(root, snapshot, world.ready_of(snapshot, 0), job_uid=world.JOB)
    done = do_commit(root)
    assert (done.outcome, done.reason, done.message) == (
        "failed",
        "Incomplete",
        "ranks [1, 2] have not written their part",
    )
    world.write_ranks(root, snapshot, PLAN)
    assert do_commit(root).outcome == "committed"
    assert do_commit(root).outcome == "committed", "repeated"


def test_r14_what_was_written_is_checked_again(root: Path, memory: Path) -> None:
    open_temporary(root, 2, 10)
    world.write_ranks(root, world.make_snapshot(memory, PLAN, 10), PLAN)
    os.truncate(root / "step_10.tmp-2" / "__1_0.distcp", 50)
    done = do_commit(root)
    assert (done.outcome, done.message) == ("failed", "__1_0.distcp has 50 bytes, 100 were written")


def test_r14_a_record_of_another_plan_is_not_taken(root: Path, memory: Path) -> None:
    other = world.make_plan(2, world=3)
    assert other.plan_id != PLAN.plan_id
    open_temporary(root, 2, 10)
    world.write_ranks(root, world.make_snapshot(memory, other, 10), other)
    assert do_commit(root).reason == "Incomplete"
    world.write_ranks(root, world.make_snapshot(memory, PLAN, 10), PLAN)
    assert do_commit(root).outcome == "committed"


def test_a_record_that_is_there_is_not_written_again(root: Path, memory: Path) -> None:
    snapshot = world.make_snapshot(memory, PLAN, 10)
    open_temporary(root, 2, 10)
    world.write_ranks(root, snapshot, PLAN)
    shutil.rmtree(snapshot)
    (memory / "gone").mkdir()
    assert open_temporary(root, 2, 10).name == "step_10.tmp-2"
    by_rank = read_records(root, 2, 10)
    assert sorted(by_rank) == [0, 1, 2]
    assert not (root / "step_10.tmp-2" / ".metadata").exists(), "it gets its name last"


def test_a_snapshot_that_is_not_as_said_is_refused(root: Path, memory: Path) -> None:
    snapshot = world.make_snapshot(memory, PLAN, 10)
    ready = world.ready_of(snapshot, 1)
    open_temporary(root, 2, 10)
    wrong = [
        replace(ready, files={"__1_0.distcp": 99}),
        replace(ready, files={"__0_0.distcp": 100}),
        replace(ready, files={"../../everstep.json": 100}),
        replace(ready, files={".metadata": 100}),
        replace(ready, files={"__1_7.distcp": 100}),
    ]
    for case in wrong:
        with pytest.raises(BadSnapshot):
            write_rank(root, snapshot, case, job_uid=world.JOB)
    (snapshot / "__1_7.distcp").symlink_to("/etc/passwd")
    with pytest.raises(BadSnapshot):
        write_rank(root, snapshot, wrong[-1], job_uid=world.JOB)
    assert read_ready(snapshot, 1) == ready
    assert read_ready(snapshot, 9) is None
    (snapshot / "ready_1.json").write_text("{")
    with pytest.raises(BadSnapshot):
        read_ready(snapshot, 1)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_r16_an_error_at_any_step_of_the_commit_may_be_tried_again(
    tmp_path: Path, root: Path, memory: Path, number: int
) -> None:
    open_temporary(root, 2, 10)
    world.write_ranks(root, world.make_snapshot(memory, PLAN, 10), PLAN)
    shutil.copytree(root, tmp_path / "count")
    for at in range(world.count_steps(lambda files: do_commit(tmp_path / "count", files=files))):
        copy = tmp_path / str(at)
        shutil.copytree(root, copy)
        steps = iter(range(10**6))

        def before(verb: str, path: Path, steps=steps, at=at) -> None:  # type: ignore[no-untyped-def]
            if next(steps) == at:
                raise OSError(number, os.strerror(number), str(path))

        first = do_commit(copy, files=Files(before))
        assert first.outcome in ("failed", "committed")
        assert first.outcome == "committed" or first.reason == errno.errorcode[number]
        assert do_commit(copy).outcome == "committed"


def test_storage_that_went_away_is_not_a_fence(root: Path, memory: Path) -> None:
    open_temporary(root, 2, 10)
    world.write_ranks(root, world.make_snapshot(memory, PLAN, 10), PLAN)
    root.rename(root.with_name("unmounted"))
    assert (do_commit(root).outcome, do_commit(root).reason) == ("failed", "ENOENT")
    root.mkdir()
    (root / "attempts").mkdir()
    assert do_commit(root).outcome == "failed"
    shutil.rmtree(root)
    root.with_name("unmounted").rename(root)
    assert do_commit(root).outcome == "committed"


def test_r16_a_save_is_given_up(root: Path, memory: Path) -> None:
    open_temporary(root, 2, 10)
    snapshot = world.make_snapshot(memory, PLAN, 10)
    world.write_ranks(root, snapshot, PLAN)
    discard(root, 2, 10)
    discard(root, 2, 10)
    assert do_commit(root).outcome == "failed"
    with pytest.raises(Fenced):
        world.write_ranks(root, snapshot, PLAN)


def test_r13_only_what_is_condemned_is_deleted(root: Path, memory: Path) -> None:
    ids = world.committed(root, memory, PLAN, 10, 20, 30)
    for name in ("best", "step_40", "step_600.tmp", ".trash-mine"):
        stock.make_stock_checkpoint(root / name)
    (root / "step_50").mkdir()
    damaged = root / "step_60"
    shutil.copytree(root / "step_10", damaged)
    (damaged / "manifest.json").write_text("{")
    before = {path.name for path in root.iterdir()}
    for identity in (ids[0], "f" * 64):
        delete(root, identity)
    for no_id in ("step_40", "../best", "", ids[1] + "\n"):
        with pytest.raises(ValueError, match="is not the id of a manifest"):
            delete(root, no_id)
    assert before - {path.name for path in root.iterdir()} == {"step_10"}
    delete(root, ids[0])  # gone is gone


def test_r13_leftovers_of_a_deletion_are_removed(root: Path, memory: Path) -> None:
    (first, _) = world.committed(root, memory, PLAN, 10, 20)
    (root / "step_10").rename(root / f".trash-{first}")
    retention.clean_up(root, attempt=2, lineage=())
    assert not (root / f".trash-{first}").exists()


def test_r13_a_deletion_begun_earlier_is_done_with_the_id_alone(root: Path, memory: Path) -> None:
    (first, _) = world.committed(root, memory, PLAN, 10, 20)
    (root / "step_10").rename(root / f".trash-{first}")
    delete(root, first)
    assert not (root / f".trash-{first}").exists()


def test_r13_each_deletion_stands_alone(root: Path, memory: Path) -> None:
    """What lies in the way of one keeps none of the others: not its trash, not a manifest that cannot be read."""
    first, second, third, _ = world.committed(root, memory, PLAN, 10, 20, 30, 40)
    (root / "step_10").rename(root / f".trash-{first}")
    for number in (0, 1):
        (root / "fenced" / f"000{number}" / "step_1.tmp-0").mkdir(parents=True)

    def before(verb: str, path: Path) -> None:
        if (verb == "remove" and (first in str(path) or path.name == "0000")) or path.parent.name == "step_20":
            raise OSError(errno.EBUSY, "Device or resource busy", str(path))

    files = Files(before)
    delete(root, third, files, where="step_30")
    with pytest.raises(OSError, match="busy"):
        delete(root, second, files, where="step_20")
    with pytest.raises(OSError, match="busy"):  # it may be the one in step_20
        delete(root, "f" * 64, files)
    with pytest.raises(OSError, match="busy"):
        delete(root, first, files)
    with pytest.raises(OSError, match="busy"):
        retention.clean_up(root, attempt=2, lineage=(), files=files)
    assert [path.name for path in (root / "fenced").iterdir()] == ["0000"]
    assert {path.name for path in root.iterdir() if path.name.startswith((".trash", "step_"))} == {
        f".trash-{first}",
        "step_20",
        "step_40",
    }


def test_r14_a_commit_that_does_not_see_its_own_fence_is_on_another_storage(root: Path, memory: Path) -> None:
    """The look finds lower fences only: whoever raised ours did it elsewhere, so nothing may get its name here."""
    open_temporary(root, 2, 10)
    world.write_ranks(root, world.make_snapshot(memory, PLAN, 10), PLAN)
    own = root / "attempts" / "0002"
    own.rename(root / "elsewhere")
    (root / "attempts" / "0001").mkdir()
    done = do_commit(root)
    assert (done.outcome, done.reason, done.message) == (
        "failed",
        "ESTALE",
        "attempts/ does not show attempt 2, only 1",
    )
    assert not (root / "step_10").exists()
    (root / "elsewhere").rename(own)
    assert do_commit(root).outcome == "committed"


@pytest.mark.parametrize("end", ["deletes", "is not needed any more", "dies"])
def test_r13_a_deleter_that_wakes_late_deletes_only_what_is_condemned(root: Path, memory: Path, end: str) -> None:
    """Its caller may be gone when it wakes, for a higher attempt began: no second call comes then."""
    dies = end == "dies"
    (first, _) = world.committed(root, memory, PLAN, 10, 20)
    later = world.make_plan(3)
    slept: list[str] = []

    def before(verb: str, path: Path) -> None:
        if verb == "rename" and not slept:
            slept.append(path.name)  # meanwhile another deletes the same, and step 10 is saved anew
            delete(root, first)
            world.begin(root, later)
            world.committed(root, memory, later, 10)
        elif dies and slept and verb == "fsync":
            raise world.Crash

    if dies:
        with pytest.raises(world.Crash):
            delete(root, first, Files(before))
        assert {v.dir for v in list_checkpoints(root, UIDS)} == {"step_20"}, "it moved the wrong one, and died"
        answer = world.ask(root, world.make_request(4, last_attempt=3, storage_known=True))
        assert (answer.resume.dir, answer.resume.attempt) == ("step_10", 3)
    elif end == "deletes":
        delete(root, first, Files(before))
    else:
        retention.take_away(root, first, Files(before))
    assert slept == ["step_10"]
    assert {(v.dir, v.attempt) for v in list_checkpoints(root, UIDS) if v.state == "complete"} == {
        ("step_10", 3),
        ("step_20", 2),
    }
    assert not list(root.glob(".trash-*"))


def test_r13_what_a_dead_deleter_took_by_mistake_is_put_back_by_whoever_empties_the_trash(
    root: Path, memory: Path
) -> None:
    (only,) = world.committed(root, memory, PLAN, 10)
    another = "a" * 64
    (root / "step_10").rename(retention.trash_path(root, another))
    retention.empty_trash(root, another)
    assert [(v.dir, v.id) for v in list_checkpoints(root, UIDS) if v.state == "complete"] == [("step_10", only)]


def test_r13_links_in_what_is_deleted_are_not_followed(root: Path, memory: Path, tmp_path: Path) -> None:
    (only,) = world.committed(root, memory, PLAN, 10)
    outside = stock.make_stock_checkpoint(tmp_path / "outside")
    (root / "step_10" / "link").symlink_to(outside)
    delete(root, only)
    assert (outside / ".metadata").exists()
    assert not (root / "step_10").exists()


def test_r13_fenced_of_older_attempts_is_emptied(root: Path) -> None:
    for m in (1, 2, 3):
        (root / "fenced" / f"000{m}" / "step_1.tmp-0").mkdir(parents=True)
    retention.empty_fenced(root, below=3)
    assert [path.name for path in (root / "fenced").iterdir()] == ["0003"]


def test_old_attempts_are_pruned_but_the_lineage_and_the_last_20(root: Path) -> None:
    for number in range(3, 41):
        raise_fence(root, world.make_fence(number))
    retention.prune_attempts(root, lineage=((3, 10), (7, 50)))
    assert sorted(int(path.name) for path in (root / "attempts").iterdir()) == [3, 7, *range(21, 41)]


def test_r17_every_file_is_hashed_by_one_member(root: Path, memory: Path) -> None:
    (only,) = world.committed(root, memory, PLAN, 10)
    resume = Resume("checkpoint", only, "step_10", 2, 10)
    shares = [verify_share(root, resume, index=k, count=2) for k in range(2)]
    assert all(share.ok for share in shares)
    assert sum(share.num_bytes for share in shares) == 300 + (root / "step_10" / ".metadata").stat().st_size
    for name in ("__0_0.distcp", "__1_0.distcp", "__2_0.distcp", ".metadata"):
        flip(root / "step_10" / name)
        found = [verify_share(root, resume, index=k, count=2) for k in range(2)]
        assert [share.mismatched for share in found if share.is_bad] == [(name,)]
        flip(root / "step_10" / name)


def test_r17_a_file_not_seen_is_not_yet_bad(root: Path, memory: Path) -> None:
    (only,) = world.committed(root, memory, PLAN, 10)
    resume = Resume("checkpoint", only, "step_10", 2, 10)
    (root / "step_10" / "__1_0.distcp").unlink()
    share = verify_share(root, resume, index=0, count=1)
    assert (share.missing, share.is_bad, share.ok) == (("__1_0.distcp",), False, False)
    assert verify_share(root, replace(resume, dir="step_11"), index=0, count=1).missing == ("manifest.json",)
    assert verify_share(root, replace(resume, id="other"), index=0, count=1).is_bad
    assert verify_share(root, Resume("none"), index=0, count=1) == Share()


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[0] ^= 255
    path.write_bytes(data)


def test_r1_no_hard_links_is_fine(tmp_path: Path, memory: Path) -> None:
    class NoLinks(Files):
        def link(self, source: Path, target: Path) -> None:
            raise OSError(errno.EPERM, "Operation not permitted")

    files = NoLinks()
    world.begin(tmp_path / "root2", PLAN, files)
    assert world.save(tmp_path / "root2", memory, PLAN, 10, files).outcome == "committed"
    assert raise_fence(tmp_path / "root2", world.make_fence(2, intent="x"), files).outcome == "higher"
    assert temporary.METADATA_STAGED not in os.listdir(tmp_path / "root2" / "step_10")  # noqa: PTH208
