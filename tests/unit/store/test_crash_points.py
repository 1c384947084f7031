"""The machine stops before the k-th system call, for every k; what was not fsynced is lost. The protocol goes on from there."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from everstep_protocol import storage
from everstep_protocol.plan import Resume
from everstep_sidecar.store import retention
from everstep_sidecar.store.commit import commit
from everstep_sidecar.store.files import Files
from everstep_sidecar.store.listing import list_checkpoints
from everstep_sidecar.store.temporary import open_temporary
from store_support import world

UIDS = frozenset({world.JOB})
FIRST = world.make_plan(1, world=2)

Scenario = Callable[[Path, Path, Files], object]


def save_next(root: Path, memory: Path, files: Files) -> None:
    world.save(root, memory, FIRST, 10, files)


def prepare_next(root: Path, memory: Path, files: Files) -> None:
    world.ask(root, world.make_request(2, last_attempt=1, storage_known=True), files=files)


def start_next(root: Path, memory: Path, files: Files) -> None:
    prepare_next(root, memory, files)
    world.start(root, world.make_plan(2), files)


def delete_older(root: Path, memory: Path, files: Files) -> None:
    oldest = next(v.id for v in list_checkpoints(root, UIDS) if v.step == 4)
    retention.take_away(root, oldest, files)
    retention.empty_trash(root, oldest, files)


SCENARIOS: dict[str, Scenario] = {
    "save": save_next,
    "prepare": prepare_next,
    "start": start_next,
    "delete": delete_older,
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps 4 and 5 are committed, step 9 was being written when its coordinator died."""
    folder = tmp_path_factory.mktemp("base")
    root, memory = folder / "root", folder / "memory"
    world.begin(root, FIRST)
    world.committed(root, memory, FIRST, 4, 5)
    open_temporary(root, 1, 9)
    world.write_ranks(root, world.make_snapshot(memory, FIRST, 9), FIRST)
    return folder


@pytest.mark.parametrize("name", SCENARIOS)
def test_after_a_crash_at_any_step_the_newest_is_there_and_the_job_goes_on(
    base: Path, tmp_path: Path, name: str
) -> None:
    scenario = SCENARIOS[name]
    num_crashes = 0
    while True:
        folder = tmp_path / str(num_crashes)
        shutil.copytree(base, folder)
        recorder = world.Recorder(crash_at=num_crashes)
        try:
            scenario(folder / "root", folder / "memory", Files(recorder))
        except world.Crash:
            go_on(folder, is_retry=name in ("prepare", "start"))
            num_crashes += 1
            shutil.rmtree(folder)
            continue
        break
    assert num_crashes > 8


def go_on(folder: Path, *, is_retry: bool) -> None:
    root, memory = folder / "root", folder / "memory"
    verdicts = list_checkpoints(root, UIDS)
    complete = [v for v in verdicts if v.state == "complete"]
    assert max(v.step for v in complete) in (5, 10)
    assert all(v.state == "complete" for v in verdicts), "no half is ever under a committed name"
    if is_retry:  # the same number and intent again (R4)
        again = world.ask(root, world.make_request(2, last_attempt=1, storage_known=True))
        assert (again.outcome, again.resume.step) == ("ready", 5), again
    number = 3
    answer = world.ask(root, world.make_request(number, last_attempt=1, storage_known=True))
    assert (answer.outcome, answer.resume.kind) == ("ready", "checkpoint"), answer
    assert answer.resume.step == max(v.step for v in complete)
    assert not [name for name in root.iterdir() if storage.parse_temporary_name(name.name)], "the old saves are taken"
    plan = world.make_plan(number, world=2, resume=answer.resume, lineage=answer.lineage)
    world.start(root, plan)
    world.committed(root, memory, plan, 10, 11)


@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_gets_its_name_before_it_is_durable(base: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(base, tmp_path / "run")
    recorder = world.Recorder()
    SCENARIOS[name](tmp_path / "run" / "root", tmp_path / "run" / "memory", Files(recorder))
    assert recorder.unsynced == set()
    assert recorder.changed_folders == set(), "entries are durable when it returns"


def test_r14_order_of_writes(base: Path, tmp_path: Path) -> None:
    shutil.copytree(base, tmp_path / "run")
    root = tmp_path / "run" / "root"
    recorder = world.Recorder()
    save_next(root, tmp_path / "run" / "memory", Files(recorder))
    milestones = [
        recorder.has("mkdir", "step_10.tmp-1"),
        recorder.has("write", "__0_0.distcp"),
        recorder.has("fsync", "__0_0.distcp"),
        last(recorder, "rename", ".rank_1.json."),
        last(recorder, "rename", ".manifest.json."),
        recorder.has("rename", ".metadata.rank-0"),
        last(recorder, "fsync", "step_10.tmp-1"),
        last(recorder, "list", "attempts"),
        last(recorder, "rename", "step_10.tmp-1"),
        last(recorder, "fsync", "root"),
    ]
    assert milestones == sorted(milestones)
    assert milestones[-1] == len(recorder.steps) - 1


def test_r4_order_of_prepare(base: Path, tmp_path: Path) -> None:
    shutil.copytree(base, tmp_path / "run")
    root = tmp_path / "run" / "root"
    recorder = world.Recorder()
    prepare_next(root, tmp_path, Files(recorder))
    milestones = [
        recorder.has("read", "everstep.json"),
        recorder.has("mkdir", "0002"),
        recorder.has("link", "fence.json"),
        recorder.has("fsync", "0002"),
        recorder.has("list", "root"),
        recorder.has("rename", "step_9.tmp-1"),
        recorder.has("inspect", "step_4"),
    ]
    assert milestones == sorted(milestones)


def last(recorder: world.Recorder, verb: str, prefix: str) -> int:
    return max(i for i, s in enumerate(recorder.steps) if s.verb == verb and s.path.name.startswith(prefix))


def test_r14_a_failed_rename_that_was_done_is_a_commit(base: Path, tmp_path: Path) -> None:
    """NFS may answer a repeated rename with ENOENT although the first one was done."""
    shutil.copytree(base, tmp_path / "run")
    root = tmp_path / "run" / "root"

    class Retransmitting(Files):
        def rename(self, source: Path, target: Path) -> None:
            super().rename(source, target)
            if storage.parse_temporary_name(source.name):
                raise FileNotFoundError(2, "No such file or directory", str(source))

    done = world.save(root, tmp_path / "run" / "memory", FIRST, 10, Retransmitting())
    assert (done.outcome, done.checkpoint and done.checkpoint.dir) == ("committed", "step_10")
    again = commit(root, FIRST, 10, samples_consumed=640, torch="2.6.0")
    assert again == done


@pytest.mark.parametrize(
    "plan_resume", [Resume("none"), Resume("checkpoint", "id", "step_5", 1, 5), Resume("import", "", "step_5", 0, 5)]
)
def test_a_commit_names_its_parent(tmp_path: Path, plan_resume: Resume) -> None:
    plan = world.make_plan(2, resume=plan_resume)
    world.begin(tmp_path / "root", plan)
    assert world.committed(tmp_path / "root", tmp_path / "memory", plan, 6)
