"""Real sidecars: what a member does before its hello, what it is told and tells, what it refuses."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from everstep_protocol import local
from everstep_protocol.messages import Announce, Hello, SaveNotice, Sight, SightRequest
from integration.sidecar.sidecar_harness import Pod, Trainer, World, until


def _remount(pod: Pod, folder: Path) -> None:
    """The same pod with another volume."""
    pod.kill()
    pod.storage_mount = folder
    pod.start()
    until(pod.is_up, "up")
    pod.connect_launcher()


def _with_odd_mount(world: World, tmp_path: Path) -> Path:
    """The second pod has a volume of its own, on which a former copy of the job's folder lies."""
    odd = tmp_path / "odd"
    odd.mkdir()
    _remount(world.pods[1], odd)
    return odd


def test_st1_a_member_that_does_not_see_the_storage_says_so_and_condemns_nothing(
    make_world: Any, tmp_path: Path
) -> None:
    world = make_world(2)
    trainers = [
        Trainer(pod.memory, rank, 0, one) for one in [world.begin(1, world.pods)] for rank, pod in enumerate(world.pods)
    ]
    places = [trainer.snapshot(10) for trainer in trainers]
    world.pump_until(lambda: not any(place.exists() for place in places), "committed")
    odd = _with_odd_mount(world, tmp_path)

    answer = world.prepare(world.pods[0], 2, expected=world.pods)
    assert (answer.outcome, answer.resume.step) == ("ready", 10)
    seen = {sight.uid: sight for sight in answer.sights}
    assert seen["uid-0"] == Sight("uid-0", None, launcher=True, highest=2)
    storage = seen["uid-1"].storage
    assert storage is not None
    assert storage.reason == "StorageNotShared"
    assert "gpt-w1 on node-1" in storage.message
    assert str(odd / "gpt" / "everstep.json") in storage.message

    two = world.plan(2, world.pods, answer.resume)
    for pod in world.pods:
        pod.publish(two)
    member = world.pump_until(
        lambda: (line := world.pods[0].status().members[1:]) and line[0].trouble and line[0], "told"
    )
    assert (member.state, member.trouble.reason) == ("absent", "StorageNotShared")
    assert member.heard_age_seconds is not None
    assert world.pods[0].status().over is None

    (odd / "gpt").symlink_to(world.root)
    world.pump_until(lambda: all(pod.launcher.find(local.Start, 2) for pod in world.pods), "it is seen: both start")
    until(lambda: world.pods[0].status().members[1].trouble is None, "and said so")


def test_st1_mounts_that_are_all_apart_stay_apart_whoever_is_asked(make_world: Any, tmp_path: Path) -> None:
    """Each pod in turn fences its own folder for the same number and intent: none may take its own fence for another's."""
    world = make_world(3)
    for pod in world.pods[1:]:
        folder = tmp_path / f"apart-{pod.index}"
        folder.mkdir()
        _remount(pod, folder)
    for pod in (*world.pods, world.pods[0]):
        answer = world.prepare(pod, 1, expected=world.pods)
        assert (answer.outcome, answer.raised_by) == ("ready", pod.uid)
        blind = {sight.uid for sight in answer.sights if sight.storage is not None}
        assert blind == {other.uid for other in world.pods} - {pod.uid}


def test_st1_a_file_of_the_checkpoint_that_is_not_seen_is_a_trouble_and_no_verdict(make_world: Any) -> None:
    world = make_world(2)
    trainers = [
        Trainer(pod.memory, rank, 0, one) for one in [world.begin(1, world.pods)] for rank, pod in enumerate(world.pods)
    ]
    places = [trainer.snapshot(10) for trainer in trainers]
    world.pump_until(lambda: not any(place.exists() for place in places), "committed")
    answer = world.prepare(world.pods[0], 2)
    file = world.root / "step_10" / "__1_0.distcp"
    file.rename(file.with_name("hidden"))
    for pod in world.pods:
        pod.publish(world.plan(2, world.pods, answer.resume))
    trouble = world.pump_until(lambda: (line := world.pods[0].status().members[1:]) and line[0].trouble, "told")
    assert trouble.reason == "StorageNotShared"
    assert str(file) in trouble.message
    file.with_name("hidden").rename(file)
    world.pump_until(lambda: all(pod.launcher.find(local.Start, 2) for pod in world.pods), "both start")
    assert world.pods[0].status().over is None


def test_st12_sight_tells_whether_the_trainer_container_runs(make_world: Any) -> None:
    world = make_world(2)
    world.prepare(world.pods[0], 1)
    world.pods[1].launcher.close()
    request = SightRequest(1, "intent-1")
    until(lambda: not world.pods[1].ask_ok("/v1/sight", request, Sight).launcher, "it is gone")
    world.pods[1].connect_launcher()
    until(lambda: world.pods[1].ask_ok("/v1/sight", request, Sight).launcher, "it is back")
    world.pods[1].process.send_signal(signal.SIGSTOP)
    answer = world.prepare(world.pods[0], 2, expected=world.pods)
    assert (answer.outcome, [sight.uid for sight in answer.sights]) == ("ready", ["uid-0"]), "silence is no answer"


def test_r7_no_hello_before_the_old_processes_are_gone(make_world: Any) -> None:
    world = make_world(2)
    world.begin(1, world.pods)
    slow = world.pods[1].launcher
    slow.ignored = (local.Stop,)
    answer = world.prepare(world.pods[0], 2)
    two = world.plan(2, world.pods, answer.resume)
    for pod in world.pods:
        pod.publish(two)
    world.pump_until(
        lambda: world.pods[0].status().members[0:1] and world.pods[0].status().members[0].state == "ready", "one"
    )
    for _ in range(3):  # it has obeyed the plan, and says how it is, again and again
        version = world.pods[1].status().version
        world.pump_until(
            lambda: (line := world.pods[0].status().members)[1].heard_age_seconds is not None and line, "heard"
        )
        world.pods[1].poll(version, 2, wait=0.3)
    assert world.pods[0].status().members[1].state == "absent"
    world.pump()
    assert [pod.launcher.count(local.Start) for pod in world.pods] == [1, 1]
    slow.say(local.Stopped(1))
    world.pump_until(lambda: all(pod.launcher.find(local.Start, 2) for pod in world.pods), "both start")


def test_r4_a_number_below_what_this_pod_knows_is_not_prepared(make_world: Any) -> None:
    world = make_world(1)
    world.pods[0].ask("/v1/announce", Announce(3))
    answer = world.prepare(world.pods[0], 2)
    assert (answer.outcome, answer.highest) == ("fenced", 3)
    assert not world.root.exists(), "nothing was fenced"


def test_r4_pods_that_are_in_no_plan_hear_of_the_attempt_that_is_prepared(make_world: Any) -> None:
    world = make_world(2)  # without a plan nobody pings anybody
    world.prepare(world.pods[0], 1)
    until(lambda: world.pods[1].status().highest == 1, "told")


def test_r22_hello_and_save_of_another_plan_are_refused(make_world: Any) -> None:
    world = make_world(2)
    world.begin(1, world.pods)
    for path, message in (
        ("/v1/hello", Hello(1, "another plan", "nonce")),
        ("/v1/save", SaveNotice(1, "another plan", 10, (1, 2), "ready")),
    ):
        status, problem = world.pods[0].ask(path, message, sender="uid-1")
        assert (status, problem["error"]) == (409, "attempt 1 has another plan here")
    assert world.pods[0].status().over is None


def test_r13_what_is_condemned_for_another_attempt_stays(make_world: Any) -> None:
    world = make_world(1)
    pod = world.pods[0]
    trainer = Trainer(pod.memory, 0, 0, world.begin(1, world.pods))
    for step in (10, 20, 30):
        place = trainer.snapshot(step)
        pod.launcher.say(local.Saved(1, step, 0))
        until(lambda place=place: not place.exists(), f"step {step} is committed")
    first, second, _ = pod.status().checkpoints
    pod.poll(None, 7, wait=0.0, condemned=(first.id,))
    until(lambda: pod.poll(None, 1, wait=0.0, condemned=(second.id,)).deleted == (second.id,), "the second is deleted")
    assert (world.root / first.dir).exists()


def test_r19_a_restarted_coordinator_tells_again_what_was_confirmed(make_world: Any) -> None:
    world = make_world(2)
    one = world.begin(1, world.pods)
    trainers = [Trainer(pod.memory, rank, 0, one) for rank, pod in enumerate(world.pods)]
    for trainer in trainers:
        trainer.report(7)
    coordinator = world.pods[0]
    coordinator.leave(1)
    until(lambda: all(t.control() and t.control().confirmed for t in trainers), "confirmed to all")
    step = trainers[0].control().stop_step
    coordinator.kill()
    coordinator.start()
    until(coordinator.is_up, "up")
    coordinator.connect_launcher(nonce=coordinator.launcher.nonce, running=1)
    for trainer in trainers:
        trainer.report(step, "stopped")
        trainer.snapshot(step)
    over = world.pump_until(lambda: coordinator.status().over, "over")
    assert (over.cause, over.step) == ("stopped", step)
    assert [(t.control().stop_step, t.control().confirmed) for t in trainers] == [(step, 1)] * 2


def test_st10_a_script_without_the_library_is_as_old_as_its_last_sign_of_life(make_world: Any) -> None:
    world = make_world(1)
    world.begin(1, world.pods)
    pod = world.pods[0]
    until(lambda: pod.status().training.age_seconds > 0.5, "nothing is known but its start")
    pod.launcher.say(local.Activity(1, 0.0))
    training = until(lambda: (seen := pod.status().training).age_seconds < 0.4 and seen, "it lives")
    assert (training.library, training.phase) == (False, "starting")
    pod.launcher.say(local.Activity(7, 0.0))  # of another attempt
    until(lambda: pod.status().training.age_seconds > 0.5, "and is silent again")


def test_st10_a_script_lives_as_long_as_any_of_its_pods_does(make_world: Any) -> None:
    world = make_world(2)
    world.begin(1, world.pods)
    coordinator, member = world.pods
    for pod in world.pods:
        pod.launcher.say(local.Activity(1, 0.0))
    until(lambda: coordinator.status().training.age_seconds > 4.0, "all of them wait")
    member.launcher.say(local.Activity(1, 0.0))
    assert until(lambda: (seen := coordinator.status().training).age_seconds < 3.0 and seen, "one works")
