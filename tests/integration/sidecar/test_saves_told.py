"""Real sidecars: a save that does not come, or a deletion that fails, is told with a name; what is lost is never called finished."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from everstep_protocol import local
from everstep_protocol.messages import Trouble
from everstep_protocol.plan import Plan
from integration.sidecar.sidecar_harness import Trainer, World, until

Make = Callable[..., World]


def _trainers(world: World, one: Plan) -> list[Trainer]:
    return [Trainer(pod.memory, rank, 0, one) for rank, pod in enumerate(world.pods)]


def _save(world: World, trainers: list[Trainer], step: int) -> list[Path]:
    """A step whose state is whole in memory on all ranks."""
    places = [trainer.snapshot(step) for trainer in trainers]
    for trainer in trainers:
        trainer.report(step)
    for pod in world.pods:
        assert pod.launcher is not None
        pod.launcher.say(local.Saved(trainers[0].plan.attempt, step, 0))
    return places


def _settled(world: World, places: list[Path], what: str) -> None:
    world.pump_until(lambda: not any(place.exists() for place in places), what)


def _told(world: World, reason: str) -> Trouble:
    def look() -> Trouble | None:
        failing = world.pods[0].poll(None, 1, wait=0.0).failing
        return failing if failing is not None and failing.reason == reason else None

    return world.pump_until(look, f"{reason} is told")


def test_r16_a_member_whose_sidecar_hangs_is_named_within_three_intervals(make_world: Make) -> None:
    world = make_world(2)
    trainers = _trainers(world, world.begin(1, world.pods))
    hung = world.pods[1].process
    assert hung is not None
    hung.send_signal(signal.SIGSTOP)
    places = _save(world, trainers, 10)
    for step in (20, 30, 40):
        trainers[0].report(step)
    told = _told(world, "SavesOverdue")
    assert "the sidecar of pod w1 on node-1 is silent" in told.message
    assert "step 0 and none has reached the storage" in told.message
    hung.send_signal(signal.SIGCONT)
    _settled(world, places, "it is committed in the end")
    world.pump_until(lambda: world.pods[0].poll(None, 1, wait=0.0).failing is None, "nothing is overdue")


def test_r16_a_member_that_loses_the_storage_says_so(make_world: Make, tmp_path: Path) -> None:
    world = make_world(2)
    mount = tmp_path / "mount"
    mount.symlink_to(world.storage_mount)
    odd = world.pods[1]
    odd.kill()
    odd.storage_mount = mount
    odd.start()
    until(odd.is_up, "up with a mount of its own")
    odd.connect_launcher()
    trainers = _trainers(world, world.begin(1, world.pods))
    mount.unlink()
    (tmp_path / "empty" / "gpt").mkdir(parents=True)
    mount.symlink_to(tmp_path / "empty")
    places = _save(world, trainers, 10)
    told = _told(world, "StorageNotShared")
    path = world.root / "step_10.tmp-1"
    assert told.message.startswith(f"pod w1 on node-1 does not see {path}, which pod w0 on node-0 has made")
    assert "ReadWriteMany" in told.message
    assert path.exists(), "what the others have written stays"
    mount.unlink()
    mount.symlink_to(world.storage_mount)
    _settled(world, places, "it is committed in the end")
    assert world.pods[0].poll(None, 1, wait=0.0).failing is None


@contextmanager
def _undeletable(folder: Path) -> Iterator[None]:
    """As a file that somebody holds open on NFS: a mount in the folder. Root may do everything else."""
    held = folder / ".nfs0001"
    held.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "busy", str(held)], check=True)
    try:
        yield
    finally:
        (where,) = folder.parent.glob("*/.nfs0001")
        subprocess.run(["umount", str(where)], check=True)


def test_r13_a_checkpoint_that_cannot_be_deleted_keeps_nothing_else_and_is_told(make_world: Make) -> None:
    world = make_world(1)
    trainers = _trainers(world, world.begin(1, world.pods))
    for step in (10, 20, 30):
        _settled(world, _save(world, trainers, step), f"step {step} is committed")
    pod = world.pods[0]
    ids = {info.step: info.id for info in pod.status().checkpoints}
    condemned = (ids[10], ids[20])
    with _undeletable(world.root / "step_10"):
        version, polls, began = pod.poll(None, 1, wait=0.0).version, 0, time.monotonic()
        while (answer := pod.poll(version, 1, wait=5.0, condemned=condemned)).failing is None:
            version, polls = answer.version, polls + 1
            assert time.monotonic() - began < 60.0
        assert polls <= 10, "no answer where nothing has changed"
        assert answer.failing.reason == "DeletionFails"
        assert f".trash-{ids[10]}/.nfs0001 cannot be deleted: Device or resource busy" in answer.failing.message
        assert answer.deleted == (ids[20],)
        assert [info.step for info in answer.checkpoints] == [30]
        assert pod.log.read_text().count("cannot be deleted") == 1
        _settled(world, _save(world, trainers, 40), "saving goes on")
    world.pump_until(
        lambda: ids[10] in pod.poll(None, 1, wait=0.0, condemned=condemned).deleted, "deleted when it is free"
    )
    assert pod.poll(None, 1, wait=0.0, condemned=condemned).failing is None
    assert sorted(path.name for path in world.root.iterdir() if path.name.startswith((".trash", "step_"))) == [
        "step_30",
        "step_40",
    ]


def _finish(world: World, trainers: list[Trainer], step: int) -> None:
    for trainer in trainers:
        trainer.report(step, "finished")
    for pod in world.pods:
        assert pod.launcher is not None
        pod.launcher.say(local.Finished(1))


def _lose_by_damage(place: Path) -> None:
    (place / "ready_1.json").write_text("{")


def _lose_by_length(place: Path) -> None:
    (place / "__1_0.distcp").write_bytes(b"")


def _lose_all(place: Path) -> None:
    (place / "ready_1.json").unlink()


@pytest.mark.parametrize(
    ("lose", "why"),
    [
        (_lose_by_damage, "the snapshot of step 20 in the memory of pod w1 on node-1 is damaged"),
        (_lose_by_length, "the snapshot of step 20 in the memory of pod w1 on node-1 is damaged"),
        (_lose_all, "no checkpoint of step 20 is on storage, and no pod holds one in memory any more"),
    ],
)
def test_r31_a_last_save_that_is_lost_ends_the_attempt_and_is_never_finished(
    make_world: Make, lose: Callable[[Path], None], why: str
) -> None:
    world = make_world(2)
    trainers = _trainers(world, world.begin(1, world.pods))
    _settled(world, _save(world, trainers, 10), "step 10 is committed")
    last = [trainers[1].snapshot(20)]
    lose(last[0])
    if lose is not _lose_all:
        last.append(trainers[0].snapshot(20))
    _finish(world, trainers, 20)
    over = world.pump_until(lambda: world.pods[0].status().over, "the attempt is over")
    assert over.cause == "crash"
    assert over.message.startswith(f"the state after the last step, 20, could not be saved: {why}. ")
    assert not world.pods[0].status().finished
    assert not (world.root / "attempts/0001/finished").exists()
    assert world.begin(2, world.pods).resume.step == 10


def test_r31_a_script_that_leaves_its_loop_finishes_with_its_newest_save(make_world: Make) -> None:
    """Its last steps are saved nowhere, and it does not ask for that: `break` is no `finish_early`."""
    world = make_world(2)
    trainers = _trainers(world, world.begin(1, world.pods))
    _save(world, trainers, 10)
    for trainer in trainers:
        trainer.report(17)
    for pod in world.pods:
        assert pod.launcher is not None
        pod.launcher.say(local.Finished(1))
    world.pump_until(lambda: all(pod.launcher.find(local.Exit) for pod in world.pods), "launchers may end")
    assert world.pods[0].status().finished
    assert [info.step for info in world.pods[0].status().checkpoints] == [10]
