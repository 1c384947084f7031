"""R4, R11, R12: prepare on real folders: whose storage, what is there, where to go on."""

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from everstep_protocol import codec
from everstep_protocol.plan import Resume
from everstep_protocol.records import Owner
from everstep_sidecar.store import go
from everstep_sidecar.store.fence import highest, raise_fence, read_fence
from everstep_sidecar.store.files import Files
from everstep_sidecar.store.owner import claim
from everstep_sidecar.store.prepare import prepare
from store_support import stock, world


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "volume" / "team" / "gpt"


def owner_on(root: Path) -> Owner:
    return codec.loads(Owner, (root / "everstep.json").read_bytes())


def again(attempt: int, **changes: object):  # type: ignore[no-untyped-def]
    return world.make_request(attempt, storage_known=True, **changes)


def test_r11_the_first_prepare_claims_and_begins_at_0(root: Path) -> None:
    answer = world.ask(root, world.make_request(1))
    assert (answer.outcome, answer.reason, answer.resume, answer.lineage) == ("ready", "FirstStart", Resume("none"), ())
    assert owner_on(root) == world.OWNER
    assert world.ask(root, world.make_request(1)) == answer, "repeated with the same intent"


def test_r11_storage_that_is_not_mounted_is_waited_for(root: Path) -> None:
    for there in (False, True):
        if there:
            root.mkdir(parents=True)
        answer = world.ask(root, again(2, last_attempt=1))
        assert (answer.outcome, answer.reason, answer.resume.kind) == ("wait", "StorageMissing", "none")
        assert there == root.exists(), "nothing is made where nothing is mounted"
    assert list(root.iterdir()) == []


def test_r11_another_job_is_refused_and_touches_nothing(root: Path, tmp_path: Path) -> None:
    world.begin(root, world.make_plan(1))
    before = sorted(root.rglob("*"))
    for changed in ({"name": "bert"}, {"namespace": "other"}, {"cluster_uid": "c2"}):
        other = replace(world.OWNER, job_uid="job-uid-2", **changed)
        answer = world.ask(root, world.make_request(1), owner=other)
        assert (answer.outcome, answer.reason) == ("stop", "StorageOwnedByAnother")
        assert "team/gpt" in answer.message
        assert "checkpoint.storage.path" in answer.message
    assert sorted(root.rglob("*")) == before


def test_r11_two_jobs_at_once_one_wins(root: Path) -> None:
    root.mkdir(parents=True)
    other = replace(world.OWNER, job_uid="job-uid-2", name="bert")

    def before(verb: str, path: Path) -> None:
        if verb == "link":
            assert claim(root, other, known=False).outcome == "claimed"

    mine = claim(root, world.OWNER, known=False, files=Files(before))
    assert (mine.outcome, mine.owner) == ("another", other)


def test_r11_a_path_above_or_below_another_jobs_is_refused(tmp_path: Path) -> None:
    mount = tmp_path
    assert claim(mount / "a" / "b", world.OWNER, known=False, mount=mount).outcome == "claimed"
    other = replace(world.OWNER, job_uid="job-uid-2", name="bert")
    for path in ("a", "a/b/c", "."):
        refused = claim(mount / path, other, known=False, mount=mount)
        assert (refused.outcome, refused.where) == ("another", mount / "a" / "b" / "everstep.json"), path
    assert claim(mount / "a" / "d", other, known=False, mount=mount).outcome == "claimed"


def test_a_path_through_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume" / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(NotADirectoryError):
        claim(tmp_path / "volume" / "link" / "gpt", world.OWNER, known=False, mount=tmp_path / "volume")
    assert list((tmp_path / "outside").iterdir()) == []


def test_an_owner_file_that_cannot_be_read_stops(root: Path) -> None:
    root.mkdir(parents=True)
    (root / "everstep.json").write_text("")
    answer = world.ask(root, world.make_request(1))
    assert (answer.outcome, answer.reason) == ("stop", "StorageOwnerUnreadable")


def test_r11_a_job_made_anew_adopts_and_numbers_go_on(root: Path, tmp_path: Path) -> None:
    world.begin(root, world.make_plan(1))
    plan = world.make_plan(7, lineage=((1, 40),))
    world.begin(root, plan)
    world.committed(root, tmp_path / "memory", plan, 50)
    anew = replace(world.OWNER, job_uid="job-uid-2")
    first = world.ask(root, world.make_request(1), owner=anew)
    assert (first.outcome, first.highest) == ("fenced", 7)
    second = world.ask(root, world.make_request(8), owner=anew)
    assert (second.outcome, second.resume.step, second.lineage) == ("ready", 50, ((1, 40), (7, 50)))
    assert owner_on(root) == replace(anew, adopted=(world.JOB,))
    assert world.ask(root, world.make_request(8), owner=anew) == second
    ghost = world.ask(root, again(9, last_attempt=7), owner=world.OWNER)
    assert (ghost.outcome, ghost.reason) == ("stop", "StorageOwnedByAnother")


def test_a_job_made_anew_over_a_finished_run_asks(root: Path, tmp_path: Path) -> None:
    plan = world.make_plan(1)
    world.begin(root, plan)
    world.committed(root, tmp_path / "memory", plan, 50)
    go.mark_finished(root, 1)
    anew = replace(world.OWNER, job_uid="job-uid-2")
    for number in (2, 3):  # and again, after its own fence is there
        answer = world.ask(root, world.make_request(number), owner=anew)
        assert (answer.outcome, answer.reason) == ("stop", "FinishedRunInStorage")
    third = replace(world.OWNER, job_uid="job-uid-3")
    assert world.ask(root, world.make_request(4), owner=third).reason == "FinishedRunInStorage"
    told = world.ask(root, world.make_request(5, resume_from="step_50"), owner=third)
    assert (told.outcome, told.resume.step) == ("ready", 50)
    fresh = world.ask(root, world.make_request(6, resume_from="none"), owner=third)
    assert (fresh.outcome, fresh.resume) == ("ready", Resume("none"))


def test_r4_a_higher_fence_refuses(root: Path) -> None:
    world.begin(root, world.make_plan(3))
    answer = world.ask(root, again(2, last_attempt=1))
    assert (answer.outcome, answer.highest) == ("fenced", 3)
    answer = world.ask(root, again(3, intent="another", last_attempt=1))
    assert (answer.outcome, answer.highest) == ("fenced", 3), "a number has one intent"


def test_r5_a_number_left_half_made_by_a_crash_is_finished(root: Path) -> None:
    world.begin(root, world.make_plan(1))
    (root / "attempts" / "0002").mkdir()
    assert highest(root) == 2
    assert raise_fence(root, world.make_fence(2)).outcome == "raised"
    assert read_fence(root, 2) == world.make_fence(2)
    assert raise_fence(root, world.make_fence(2)).outcome == "mine"
    assert raise_fence(root, world.make_fence(2, intent="late")).outcome == "higher"


def test_r5_a_torn_fence_burns_its_number_and_blocks_nothing(root: Path) -> None:
    world.begin(root, world.make_plan(1))
    (root / "attempts" / "0002").mkdir()
    (root / "attempts" / "0002" / "fence.json").touch()
    assert raise_fence(root, world.make_fence(2)).outcome == "higher"
    assert raise_fence(root, world.make_fence(3)).outcome == "raised"


def test_r5_takes_only_older_temporary_directories(root: Path) -> None:
    world.begin(root, world.make_plan(1))
    for name in (
        "step_1.tmp-1",
        "step_2.tmp-1",
        "step_2.tmp-2",
        "step_3.tmp-3",
        "step_600.tmp",
        "best",
        "step_4.tmp-2x",
    ):
        (root / name).mkdir()
    result = raise_fence(root, world.make_fence(2))
    assert result.taken == ("step_1.tmp-1", "step_2.tmp-1")
    assert sorted(path.name for path in (root / "fenced" / "0002").iterdir()) == ["step_1.tmp-1", "step_2.tmp-1"]
    (root / "step_1.tmp-1").mkdir()  # a ghost makes it again
    (root / "step_1.tmp-1" / "x").touch()
    (root / "fenced" / "0002" / "step_1.tmp-1" / "y").touch()
    assert raise_fence(root, world.make_fence(2)).taken == ("step_1.tmp-1",)
    assert (root / "fenced" / "0002" / "step_1.tmp-1.2" / "x").exists()
    assert (root / "step_3.tmp-3").is_dir()
    assert (root / "step_2.tmp-2").is_dir(), "its own is not older"


def test_r7_go_is_given_once(root: Path) -> None:
    plan = world.make_plan(1)
    world.begin(root, plan)
    assert go.has_go(root, 1)
    assert not go.give_go(root, 1, world.Go(1, plan.plan_id, {}))
    assert not go.is_finished(root, 1)
    go.mark_finished(root, 1)
    go.mark_finished(root, 1)
    assert go.is_finished(root, 1)
    with pytest.raises(FileNotFoundError):
        go.write_plan(root, world.make_plan(2))


def make_zoo(root: Path) -> None:
    """B01."""
    stock.make_stock_checkpoint(root / "step_100")
    (stock.make_stock_checkpoint(root / "step_200") / ".metadata").unlink()
    cut = stock.make_stock_checkpoint(root / "step_300")
    (cut / ".metadata").rename(cut / ".metadata.tmp")
    (root / "step_400").mkdir()
    (root / "step_500").write_text("")
    stock.make_stock_checkpoint(root / "step_600.tmp")
    for name in ("best", "step_12a", "step_-5", "step_1e3", "Step_7"):
        stock.make_stock_checkpoint(root / name)


def test_b01_the_newest_complete_one_is_taken_and_the_others_are_told(root: Path) -> None:
    make_zoo(root)
    answer = world.ask(root, world.make_request(1))
    assert (answer.outcome, answer.reason, answer.resume) == (
        "ready",
        "Imported",
        Resume("import", "", "step_100", 0, 100),
    )
    told = {refusal.dir: refusal.reason for refusal in answer.refused}
    assert set(told) == {"step_200", "step_300", "step_400", "step_500"}
    assert all(told.values())
    assert (root / "best" / ".metadata").exists()
    second = world.ask(root, again(2, lineage=answer.lineage, last_attempt=1))
    assert second.resume == answer.resume


@pytest.mark.parametrize("reverse", [False, True])
def test_b02_order_is_by_number_whatever_the_times_say(root: Path, reverse: bool) -> None:
    names = ["step_200", "step_1000", "step_900", "step_010000", "step_9999"]
    for i, name in enumerate(names):
        directory = stock.make_stock_checkpoint(root / name)
        os.utime(directory, (i, i) if reverse else (-i, -i))
    answer = world.ask(root, world.make_request(1))
    assert (answer.resume.dir, answer.resume.step) == ("step_010000", 10000)


@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "no metadata", "empty metadata"])
def test_b04_a_damaged_one_is_passed_over(root: Path, tmp_path: Path, damage: str) -> None:
    plan = world.make_plan(1, world=2)
    world.begin(root, plan)
    world.committed(root, tmp_path / "memory", plan, 10, 20)
    newest = root / "step_20"
    if damage == "gone":
        (newest / "__1_0.distcp").unlink()
    elif damage == "no metadata":
        (newest / ".metadata").unlink()
    elif damage == "empty metadata":
        os.truncate(newest / ".metadata", 0)
    else:
        os.truncate(newest / "__1_0.distcp", 0 if damage == "empty" else 36)
    answer = world.ask(root, again(2, last_attempt=1, ever=True))
    assert (answer.outcome, answer.reason, answer.resume.step) == ("ready", "Older", 10)
    assert [refusal.dir for refusal in answer.refused] == ["step_20"]
    assert [info.dir for info in answer.checkpoints] == ["step_10"]


def test_r12_all_deleted_by_hand_stops(root: Path, tmp_path: Path) -> None:
    plan = world.make_plan(1)
    world.begin(root, plan)
    world.committed(root, tmp_path / "memory", plan, 10)
    shutil.rmtree(root / "step_10")
    answer = world.ask(root, again(2, last_attempt=1, ever=True))
    assert (answer.outcome, answer.reason) == ("stop", "NoUsableCheckpoint")


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EACCES, errno.ENOENT])
def test_r12_an_error_at_any_step_is_unknown_never_empty(root: Path, tmp_path: Path, number: int) -> None:
    plan = world.make_plan(1)
    world.begin(root, plan)
    world.committed(root, tmp_path / "memory", plan, 10)
    request = again(2, last_attempt=1, ever=True)
    shutil.copytree(root, tmp_path / "count")
    for at in range(world.count_steps(lambda files: world.ask(tmp_path / "count", request, files=files))):
        copy = tmp_path / str(at)
        shutil.copytree(root, copy)
        answer = world.ask(copy, request, files=Files(failing_at(at, number)))
        assert answer.outcome == "wait" or answer.resume.step == 10, (at, answer)
        assert world.ask(copy, request).resume.step == 10, "asked again"


def failing_at(at: int, number: int):  # type: ignore[no-untyped-def]
    steps = iter(range(10**6))

    def before(verb: str, path: Path) -> None:
        if next(steps) == at:
            raise OSError(number, os.strerror(number), str(path))

    return before


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EACCES, ("user 0", "securityContext.runAsUser")),
        (errno.ENOSPC, ("is full", "free some space")),
        (errno.EIO, ("does not answer",)),
    ],
)
def test_r12_what_a_person_can_do_about_the_storage_is_said(root: Path, number: int, said: tuple[str, ...]) -> None:
    world.begin(root, world.make_plan(1))
    answer = world.ask(root, again(2, last_attempt=1), files=Files(failing_at(3, number)))
    assert (answer.outcome, answer.reason) == ("wait", "StorageError")
    assert all(text.replace("user 0", f"user {os.getuid()}") in answer.message for text in said), answer.message


def test_r11_a_path_that_leads_through_a_link_is_told_as_the_users_to_change(tmp_path: Path) -> None:
    mount, elsewhere = tmp_path / "mount", tmp_path / "elsewhere"
    mount.mkdir()
    elsewhere.mkdir()
    (mount / "gpt").symlink_to(elsewhere)
    answer = prepare(mount / "gpt", world.make_request(1), owner=world.OWNER, pod_uid="u", mount=mount)
    assert answer.outcome == "wait"
    assert "is a symbolic link" in answer.message
    assert "choose another checkpoint.storage.path" in answer.message
    assert list(elsewhere.iterdir()) == []
