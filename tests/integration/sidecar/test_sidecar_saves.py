"""Real sidecars: saves become complete checkpoints, or do not; save-and-stop; retention; a full disk."""

from __future__ import annotations

import signal
import subprocess
import tempfile
from pathlib import Path

from everstep_protocol import codec, local, names, records
from everstep_protocol.complete import inspect
from everstep_protocol.messages import SaveNotice
from everstep_protocol.plan import Plan
from integration.sidecar.sidecar_harness import JOB_UID, Trainer, World, until


def _trainers(world: World, one: Plan, step: int) -> list[Trainer]:
    pods = {pod.uid: pod for pod in world.pods}
    found = [Trainer(pods[m.uid].memory, rank, rank - m.ranks[0], one) for m in one.members for rank in range(*m.ranks)]
    for trainer in found:
        trainer.report(step)
    return found


def _save(trainers: list[Trainer], step: int, world: World) -> None:
    folders = [trainer.snapshot(step) for trainer in trainers]
    for pod in world.pods:
        pod.launcher.say(local.Saved(trainers[0].plan.attempt, step, 0))
    world.pump_until(lambda: not any(folder.exists() for folder in folders), f"step {step} is committed or dropped")


def test_r14_a_save_of_two_pods_becomes_a_complete_checkpoint_and_leaves_memory(make_world):
    world = make_world(2)
    one = world.begin(1, world.pods, ranks_a_pod=2)
    trainers = _trainers(world, one, 10)
    version = world.pods[0].status().version
    _save(trainers, 10, world)
    verdict = inspect(world.root / "step_10", job_uids=frozenset({JOB_UID}))
    assert (verdict.state, verdict.step, verdict.attempt, verdict.world) == ("complete", 10, 1, 4)
    assert not (world.root / "step_10.tmp-1").exists()
    answer = world.pods[0].poll(version, 1)
    assert [(info.step, info.id) for info in answer.checkpoints] == [(10, verdict.id)]
    assert "everstep_saves_total 1.0" in world.pods[0].get("/metrics", metrics=True).decode()


def test_half_a_save_is_no_checkpoint(make_world):
    world = make_world(2)
    trainers = _trainers(world, world.begin(1, world.pods), 10)
    trainers[1].snapshot(10)
    until((world.root / "step_10.tmp-1" / "rank_1.json").exists, "rank 1's part is written")
    assert not (world.root / "step_10").exists()
    assert world.pods[0].status().checkpoints == ()
    _save(trainers, 10, world)
    assert (world.root / "step_10").exists()


def test_a_crash_does_not_lose_a_snapshot_that_is_whole_in_memory(make_world):
    world = make_world(1)
    trainers = _trainers(world, world.begin(1, world.pods), 10)
    world.pods[0].launcher.say(local.ProcessExited(1, 0, 1, None, False, False, "boom"))
    world.pump_until(lambda: world.pods[0].status().over, "over")
    _save(trainers, 10, world)
    assert (world.root / "step_10").exists()


def test_r5_what_an_old_coordinator_saves_after_the_fence_is_never_committed(make_world):
    world = make_world(3)
    trainers = _trainers(world, world.begin(1, world.pods), 10)
    _save(trainers, 10, world)
    zombie = world.pods[0]
    for trainer in trainers:
        trainer.snapshot(20)
    zombie.process.send_signal(signal.SIGSTOP)  # somewhere in the middle of the save
    assert world.prepare(world.pods[1], 2).outcome == "ready"
    before = sorted(path.name for path in world.root.iterdir() if path.name.startswith("step_"))
    zombie.process.send_signal(signal.SIGCONT)
    world.pump_until(lambda: zombie.status().highest == 2, "the zombie knows")
    after = sorted(path.name for path in world.root.iterdir() if path.name.startswith("step_"))
    assert after == before
    assert "step_10" in after


def test_r22_a_save_of_an_older_attempt_is_refused(make_world):
    world = make_world(2)
    one = world.begin(1, world.pods)
    two = world.begin(2, world.pods)
    assert two.resume.kind == "none"
    notice = SaveNotice(1, one.plan_id, 10, (1, 2), "ready")
    status, problem = world.pods[0].ask("/v1/save", notice, sender="uid-1")
    assert (status, problem["highest"]) == (409, 2)


def test_r10_snapshots_of_other_attempts_are_dropped(make_world):
    world = make_world(2)
    trainers = _trainers(world, world.begin(1, world.pods), 10)
    folder = trainers[1].snapshot(10)  # only half of it: cannot be committed
    world.begin(2, world.pods)
    until(lambda: not folder.parent.exists(), "dropped")


def test_r19_all_ranks_stop_at_one_step_and_it_is_committed(make_world):
    world = make_world(2)
    trainers = _trainers(world, world.begin(1, world.pods), 7)
    until(lambda: world.pods[0].status().training.step == 7, "steps are seen")
    world.pods[0].leave(1)
    until(lambda: all(t.control() and t.control().confirmed for t in trainers), "confirmed to all")
    steps = {trainer.control().stop_step for trainer in trainers}
    assert len(steps) == 1
    (step,) = steps
    assert step > 7
    for trainer in trainers:
        trainer.report(step, "stopped")
    _save(trainers, step, world)
    over = world.pump_until(lambda: world.pods[0].status().over, "over")
    assert (over.cause, over.step) == ("stopped", step)
    assert (world.root / f"step_{step}").exists()


def test_r19_a_rank_that_is_past_the_step_makes_it_withdrawn_and_a_later_one_named(make_world):
    world = make_world(2)
    trainers = _trainers(world, world.begin(1, world.pods), 7)
    trainers[1].report(500)  # far ahead of what the coordinator has heard
    world.pods[0].leave(1)
    until(lambda: all(t.control() and t.control().confirmed for t in trainers), "confirmed to all")
    assert {trainer.control().stop_step for trainer in trainers} == {trainers[0].control().stop_step}
    assert trainers[0].control().stop_step > 500


def test_r13_the_coordinator_deletes_what_is_condemned_and_nothing_else(make_world):
    world = make_world(1)
    trainers = _trainers(world, world.begin(1, world.pods), 10)
    for step in (10, 20):
        _save(trainers, step, world)
    pod = world.pods[0]
    old = pod.status().checkpoints[0]
    answer = pod.poll(None, 7, wait=0.0, condemned=(old.id,))
    assert answer.deleted == ()
    version = pod.poll(None, 1, wait=0.0, condemned=(old.id,)).version
    answer = pod.poll(version, 1)
    assert answer.deleted == (old.id,)
    assert [path.name for path in world.root.iterdir() if path.name.startswith("step_")] == ["step_20"]


def test_r17_a_checkpoint_that_does_not_match_its_manifest_ends_the_start(make_world):
    world = make_world(2)
    trainers = _trainers(world, world.begin(1, world.pods), 10)
    _save(trainers, 10, world)
    file = world.root / "step_10" / "__1_0.distcp"
    file.write_bytes(bytes(len(file.read_bytes())))
    answer = world.prepare(world.pods[0], 2)
    two = world.plan(2, world.pods, answer.resume)
    for pod in world.pods:
        pod.publish(two)
    over = world.pump_until(lambda: world.pods[0].status().over, "over")
    assert (over.cause, over.bad) == ("bad-checkpoint", (answer.resume.id,))
    assert [pod.launcher.find(local.Start, 2) for pod in world.pods] == [None, None]


def test_r16_a_full_disk_is_told_and_training_and_saving_go_on(make_world):
    with tempfile.TemporaryDirectory(prefix="full-") as folder:
        mount = Path(folder)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(mount)], check=True)
        try:
            _fill_and_free(make_world(2, storage_mount=mount))
        finally:
            subprocess.run(["umount", "-l", str(mount)], check=True)


def _fill_and_free(world: World) -> None:
    trainers = _trainers(world, world.begin(1, world.pods), 10)
    ballast = world.storage_mount / "ballast"
    ballast.write_bytes(bytes(1_500_000))
    folders = [trainer.snapshot(10, content=bytes(400_000)) for trainer in trainers]
    failing = world.pump_until(lambda: world.pods[0].status().failing, "saves fail")
    assert failing.reason == "ENOSPC"
    assert world.pods[0].status().over is None
    ballast.unlink()
    world.pump_until(lambda: not any(folder.exists() for folder in folders), "committed in the end")
    status = world.pods[0].status()
    assert status.failing is None
    assert [info.step for info in status.checkpoints] == [10]


def test_why_trainers_cannot_save_is_in_the_status_until_they_can(make_world):
    """A state that could never be loaded again never becomes a snapshot: only the trainer can say why."""
    world = make_world(2)
    _trainers(world, world.begin(1, world.pods), 10)
    note = world.pods[0].memory / f"{names.UNSAVED_PREFIX}0"
    note.write_text(codec.dumps(records.Unsaved(1, 9, "StateRefused", "progress.best: a function", 1)))
    failing = world.pump_until(lambda: world.pods[0].status().failing, "saves fail")
    assert (failing.reason, failing.message) == ("StateRefused", "progress.best: a function")
    note.unlink()
    world.pump_until(lambda: world.pods[0].status().failing is None, "saves are good again")


def test_r19_ranks_that_wait_at_a_proposed_step_go_on_when_not_all_agree_in_time(make_world):
    world = make_world(2)
    trainers = _trainers(world, world.begin(1, world.pods), 7)
    world.pods[1].process.send_signal(signal.SIGSTOP)
    world.pods[0].leave(1, deadline_seconds=0.5)
    until(lambda: trainers[0].control() and trainers[0].control().stop_step > 7, "proposed to the one that answers")
    until(lambda: trainers[0].control().stop_step == -1, "withdrawn")
    assert world.pods[0].status().over is None


def test_r19_a_restarted_coordinator_withdraws_what_it_had_only_proposed(make_world):
    world = make_world(2)
    trainers = _trainers(world, world.begin(1, world.pods), 7)
    world.pods[1].process.send_signal(signal.SIGSTOP)
    coordinator = world.pods[0]
    coordinator.leave(1)
    until(lambda: trainers[0].control() and trainers[0].control().stop_step > 7, "proposed")
    coordinator.kill()
    world.pods[1].process.send_signal(signal.SIGCONT)
    coordinator.start()
    until(coordinator.is_up, "up")
    coordinator.connect_launcher(nonce=coordinator.launcher.nonce, running=1)
    world.pump_until(lambda: all(t.control().stop_step == -1 for t in trainers), "withdrawn everywhere")
    assert coordinator.status().over is None
