"""Real sidecars where something is slow, half-done or gone: what needs its time gets it, and nobody waits for what never comes."""

from __future__ import annotations

import shutil
from typing import Any

from everstep_protocol import codec, local
from everstep_protocol.complete import inspect
from everstep_protocol.plan import Plan
from everstep_protocol.records import FORMAT, Go
from integration.sidecar.sidecar_harness import JOB_UID, Trainer, World, until


def _trainers(world: World, one: Plan, step: int, phase: str = "training") -> list[Trainer]:
    found = [Trainer(pod.memory, rank, 0, one) for rank, pod in enumerate(world.pods)]
    for trainer in found:
        trainer.report(step, phase)
    return found


def _save(trainers: list[Trainer], step: int, world: World) -> None:
    folders = [trainer.snapshot(step) for trainer in trainers]
    for pod in world.pods:
        pod.launcher.say(local.Saved(trainers[0].plan.attempt, step, 0))
    world.pump_until(lambda: not any(folder.exists() for folder in folders), f"step {step} is committed")


def test_r28_a_member_that_verifies_its_share_is_preparing_and_not_absent(make_world: Any) -> None:
    world = make_world(2)
    _save(_trainers(world, world.begin(1, world.pods), 10), 10, world)
    answer = world.prepare(world.pods[0], 2)
    file = world.root / "step_10" / "__1_0.distcp"  # of the second member's share
    file.rename(file.with_name("not-seen-yet"))
    two = world.plan(2, world.pods, answer.resume)
    for pod in world.pods:
        pod.publish(two)
    world.pump_until(
        lambda: [member.state for member in world.pods[0].status().members] == ["ready", "preparing"], "preparing"
    )
    file.with_name("not-seen-yet").rename(file)
    world.pump_until(lambda: all(pod.launcher.find(local.Start, 2) for pod in world.pods), "both start")


def test_r28_a_member_without_a_launcher_prepares_nothing(make_world: Any) -> None:
    world = make_world(2, launchers=False)
    world.pods[0].connect_launcher()
    answer = world.prepare(world.pods[0], 1)
    one = world.plan(1, world.pods, answer.resume)
    for pod in world.pods:
        pod.publish(one)
    world.pump_until(lambda: world.pods[0].status().members[:1] and world.pods[0].status(), "the plan is obeyed")
    world.pump_until(
        lambda: [member.state for member in world.pods[0].status().members] == ["ready", "absent"], "absent"
    )


def test_r19_before_the_first_step_of_a_resumed_attempt_the_stop_lies_ahead_of_the_resume(make_world: Any) -> None:
    world = make_world(2)
    _save(_trainers(world, world.begin(1, world.pods), 10), 10, world)
    two = world.begin(2, world.pods)
    assert two.resume.step == 10
    trainers = _trainers(world, two, -1, "loading")
    world.pods[0].leave(2)
    until(lambda: all(t.control() and t.control().confirmed for t in trainers), "confirmed to all")
    assert [trainer.control().stop_step for trainer in trainers] == [12, 12]


def test_b14_a_save_that_one_rank_could_not_finish_does_not_stand_in_the_way_of_the_next(make_world: Any) -> None:
    world = make_world(2)
    trainers = _trainers(world, world.begin(1, world.pods), 10)
    half = trainers[1].snapshot(10)
    temporary = world.root / "step_10.tmp-1"
    until((temporary / "rank_1.json").exists, "its half is on storage")
    shutil.rmtree(half)  # what the ranks do when they have agreed that the save failed on one of them
    _save(trainers, 20, world)
    assert inspect(world.root / "step_20", job_uids=frozenset({JOB_UID})).state == "complete"
    until(lambda: not temporary.exists(), "the half is taken away")


def test_r10_what_former_attempts_left_in_memory_is_gone_before_trainers_start(make_world: Any) -> None:
    world = make_world(2)
    half = _trainers(world, world.begin(1, world.pods), 10)[1].snapshot(10)
    world.begin(2, world.pods)
    assert not half.exists()


def test_r31_a_member_that_missed_the_coordinators_last_word_finds_it_on_storage(make_world: Any) -> None:
    world = make_world(2)
    world.begin(1, world.pods)
    world.pods[0].kill()
    (world.root / "attempts/0001/finished").touch()
    world.pods[1].launcher.say(local.Finished(1))
    ended = world.pump_until(lambda: world.pods[1].launcher.find(local.Exit), "may end")
    assert ended.result == "finished"


def test_a_commit_under_way_is_finished_before_the_sidecar_obeys_sigterm(make_world: Any) -> None:
    world = make_world(1)
    trainers = _trainers(world, world.begin(1, world.pods), 10)
    trainers[0].snapshot(10, content=bytes(30_000_000))
    until((world.root / "step_10.tmp-1").exists, "the save is under way")
    assert world.pods[0].terminate() == 0
    assert inspect(world.root / "step_10", job_uids=frozenset({JOB_UID})).state == "complete"


def test_r7_go_found_on_storage_before_anybody_said_hello_is_no_start(make_world: Any) -> None:
    world = make_world(1)
    answer = world.prepare(world.pods[0], 1)
    one = world.plan(1, world.pods, answer.resume)
    (world.root / "attempts/0001/go").write_text(codec.dumps(Go(FORMAT, one.plan_id, {"uid-0": "another"})))
    world.pods[0].publish(one)
    world.pump_until(lambda: world.pods[0].status().over, "over")
    assert world.pods[0].launcher.find(local.Start) is None
