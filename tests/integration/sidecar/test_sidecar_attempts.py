"""Real sidecars: an attempt starts once, ends with the right cause, survives restarts of sidecars, is left by ghosts."""

from __future__ import annotations

import json

from everstep_protocol import local
from everstep_protocol.messages import Hello, MemberState, Ping, SaveNotice
from everstep_protocol.plan import Plan
from integration.sidecar.sidecar_harness import Trainer, World, until


def _train(world: World, one: Plan, step: int) -> list[Trainer]:
    pods = {pod.uid: pod for pod in world.pods}
    trainers = [Trainer(pods[m.uid].memory, m.ranks[0], 0, one) for m in one.members]
    for trainer in trainers:
        trainer.report(step)
    return trainers


def test_r7_an_attempt_of_three_starts_once_and_all_get_the_coordinators_port(make_world):
    world = make_world(3)
    one = world.begin(1, world.pods)
    starts = [pod.launcher.find(local.Start) for pod in world.pods]
    assert [start.ranks for start in starts] == [(0, 1), (1, 2), (2, 3)]
    assert {(start.master_addr, start.master_port) for start in starts} == {(world.pods[0].ip, 20001)}
    assert (world.root / "attempts/0001/go").exists()
    assert (world.root / "attempts/0001/plan.json").exists()
    status = until(lambda: _all_running(world.pods[0].status()), "members run")
    assert (status.gone, status.role, status.attempt, status.plan_id) == (True, "coordinator", 1, one.plan_id)


def _all_running(status):
    return status if all(member.state == "running" for member in status.members) else None


def test_r7_a_second_hello_with_another_nonce_ends_the_attempt(make_world):
    world = make_world(2)
    one = world.begin(1, world.pods)
    hello = Hello(1, one.plan_id, "another nonce")
    status, answer = world.pods[0].ask("/v1/hello", hello, sender="uid-1")
    assert (status, answer["answer"]) == (200, "over")
    assert world.pods[0].status().over.cause == "launcher-gone"
    assert [pod.launcher.count(local.Start) for pod in world.pods] == [1, 1]


def test_r7_a_restarted_trainer_container_ends_the_attempt_and_is_not_started_again(make_world):
    world = make_world(2)
    world.begin(1, world.pods)
    world.pods[1].launcher.close()
    launcher = world.pods[1].connect_launcher()
    over = world.pump_until(lambda: world.pods[0].status().over, "over")
    assert (over.cause, over.uid) == ("launcher-gone", "uid-1")
    world.pump()
    assert launcher.count(local.Start) == 0


def test_r32_a_crash_goes_before_what_its_peers_see_of_it(make_world):
    world = make_world(3)
    world.begin(1, world.pods)
    version = world.pods[0].status().version
    world.pods[1].launcher.say(local.ProcessExited(1, 1, 1, None, False, True, "Connection closed by peer"))
    world.pods[2].launcher.say(local.ProcessExited(1, 2, None, 9, False, False, "boom"))
    over = None
    while over is None:
        answer = world.pods[0].poll(version, 1)
        version, over = answer.version, answer.over
    assert over.cause == "crash"
    assert over.rank == 2
    assert over.message == "rank 2 (pod w2 on node-2) was killed by signal 9 (SIGKILL)"
    assert over.details == "boom"
    public = json.loads(world.pods[0].get("/status"))
    assert (public["over"]["message"], public["over"]["details"]) == (over.message, "")


def test_a_pod_that_leaves_does_not_crash(make_world):
    world = make_world(2)
    world.begin(1, world.pods)
    world.pods[1].launcher.say(local.Terminating(30.0))
    world.pods[1].launcher.say(local.ProcessExited(1, 1, None, 15, False, False, ""))
    over = world.pump_until(lambda: world.pods[0].status().over, "over")
    assert over.cause == "launcher-gone"
    assert world.pods[0].status().members[1].leaving


def test_r4_prepare_stops_older_trainers_everywhere_without_a_plan(make_world):
    world = make_world(3)
    world.begin(1, world.pods)
    answer = world.prepare(world.pods[1], 2)
    assert answer.outcome == "ready"
    world.pump_until(lambda: all(pod.launcher.find(local.Stop, 1) for pod in world.pods), "all stop")
    assert world.prepare(world.pods[1], 2).outcome == "ready"
    assert world.prepare(world.pods[0], 1).outcome == "fenced"
    two = world.plan(2, [world.pods[1], world.pods[2]])
    for pod in world.pods:
        pod.announce(two)  # R23, R28: gossip is enough, and who is not in it waits
    world.pump_until(lambda: all(pod.launcher.find(local.Start, 2) for pod in world.pods[1:]), "two start")
    assert world.pods[0].launcher.find(local.Start, 2) is None
    assert world.pods[0].status().role == "none"


def test_r8_an_older_plan_is_ignored_after_a_restart(make_world):
    world = make_world(1)
    one = world.begin(1, world.pods)
    world.prepare(world.pods[0], 2)
    pod = world.pods[0]
    pod.kill()
    pod.publish(one)
    pod.start()
    until(pod.is_up, "up")
    pod.connect_launcher(nonce=pod.launcher.nonce)
    world.pump_until(lambda: pod.launcher.find(local.Stop, 1), "told to stop")
    assert (pod.status().highest, pod.status().attempt) == (2, 0)
    assert pod.launcher.count(local.Start) == 0


def test_r23_whoever_pings_a_peer_with_a_higher_attempt_stops(make_world):
    world = make_world(2)
    world.begin(1, world.pods)
    world.prepare(world.pods[1], 2, peers=False)
    world.pump_until(lambda: world.pods[0].launcher.find(local.Stop, 1), "the zombie stops by itself")


def test_r22_strangers_replays_and_ghosts_are_refused(make_world):
    world = make_world(2)
    one = world.begin(1, world.pods)
    pod = world.pods[0]
    notice = SaveNotice(1, one.plan_id, 10, (1, 2), "ready")
    assert pod.ask("/v1/save", notice, sender="uid-1", token="wrong")[0] == 401
    assert pod.ask("/v1/save", notice, sender="uid-9")[0] == 403
    assert pod.ask("/v1/hello", Hello(1, one.plan_id, "n"), sender="uid-9")[0] == 403
    assert pod.ask("/v1/leave", {"attempt": 1, "deadlineSeconds": 1.0}, sender="uid-1")[0] == 403
    assert pod.ask("/v1/ping", Ping(1), recipient="uid-1")[0] == 421
    assert pod.ask("/v1/ping", {"highest": "one"})[0] == 400
    assert pod.ask("/v1/ping", Ping(1), nonce="a" * 32)[0] == 200
    assert pod.ask("/v1/ping", Ping(1), nonce="a" * 32)[0] == 409
    old = MemberState(0, "running", 5, {})
    status, problem = pod.ask("/v1/state", old, sender="uid-1")
    assert (status, problem["highest"]) == (409, 1)
    assert pod.log.read_text().count("not signed with this job's token") == 1


def test_a_members_sidecar_restarts_in_mid_attempt_and_training_goes_on(make_world):
    world = make_world(2)
    one = world.begin(1, world.pods)
    trainers = _train(world, one, 5)
    member = world.pods[1]
    member.kill()
    trainers[0].snapshot(10)
    trainers[1].snapshot(10)
    member.start()
    until(member.is_up, "up")
    member.connect_launcher(nonce=member.launcher.nonce, running=1)
    found = world.pump_until(lambda: world.pods[0].status().checkpoints, "committed")
    assert [info.step for info in found] == [10]
    assert world.pods[0].status().over is None
    assert member.launcher.count(local.Start) == 0
    assert member.status().training.step == 5


def test_the_coordinators_sidecar_restarts_in_mid_attempt_and_commits_on(make_world):
    world = make_world(2)
    one = world.begin(1, world.pods)
    trainers = _train(world, one, 5)
    coordinator = world.pods[0]
    trainers[1].snapshot(10)
    coordinator.kill()
    trainers[0].snapshot(10)
    coordinator.start()
    until(coordinator.is_up, "up")
    coordinator.connect_launcher(nonce=coordinator.launcher.nonce, running=1)
    found = world.pump_until(lambda: coordinator.status().checkpoints, "committed")
    assert [info.step for info in found] == [10]
    status = coordinator.status()
    assert (status.over, status.gone, status.role) == (None, True, "coordinator")
    assert coordinator.launcher.count(local.Start) == 0


def test_r7_a_restarted_coordinators_pod_finds_go_and_the_attempt_is_over(make_world):
    world = make_world(2)
    world.begin(1, world.pods)
    coordinator = world.pods[0]
    coordinator.kill()
    coordinator.launcher.close()
    coordinator.start()
    until(coordinator.is_up, "up")
    launcher = coordinator.connect_launcher()
    over = world.pump_until(lambda: coordinator.status().over, "over")
    assert over.cause == "launcher-gone"
    world.pump()
    assert launcher.count(local.Start) == 0


def test_r31_the_job_is_finished_when_all_said_so(make_world):
    world = make_world(2)
    one = world.begin(1, world.pods)
    trainers = _train(world, one, 9)
    for trainer in trainers:
        trainer.snapshot(10)
        trainer.report(10, "finished")
    world.pods[0].launcher.say(local.Finished(1))
    until(lambda: world.pods[0].status().members[0].state == "finished", "the coordinator's member has finished")
    assert not world.pods[0].status().finished
    world.pods[1].launcher.say(local.Finished(1))
    world.pump_until(lambda: all(pod.launcher.find(local.Exit) for pod in world.pods), "launchers may end")
    status = world.pods[0].status()
    assert status.finished
    assert [info.step for info in status.checkpoints] == [10]
    assert (world.root / "attempts/0001/finished").exists()


def test_a_trainer_that_never_uses_the_library(make_world):
    world = make_world(2)
    world.begin(1, world.pods)
    training = world.pods[0].status().training
    assert (training.library, training.step, training.phase) == (False, -1, "starting")
    world.pods[0].leave(1)
    over = world.pump_until(lambda: world.pods[0].status().over, "over")
    assert (over.cause, over.step) == ("stopped", -1)


def test_a_leaving_pod_that_is_in_no_plan_may_go(make_world):
    world = make_world(2)
    world.begin(1, world.pods)
    world.pods[1].launcher.say(local.Terminating(30.0))
    until(lambda: world.pods[0].status().members[1].leaving, "leaving is told")
    world.prepare(world.pods[0], 2)
    ended = world.pump_until(lambda: world.pods[1].launcher.find(local.Exit), "may end")
    assert ended.result == "left"


def test_r25_a_refused_peer_is_not_lost(make_world):
    world = make_world(2)
    world.begin(1, world.pods)
    world.pods[1].kill()
    world.pods[1].start()
    until(world.pods[1].is_up, "up again")
    assert world.pods[0].status().lost_peers == {}
    assert "is silent" not in world.pods[0].log.read_text()


def test_status_and_metrics_for_people(make_world):
    world = make_world(1)
    world.begin(1, world.pods)
    assert json.loads(world.pods[0].get("/status"))["podUID"] == "uid-0"
    text = world.pods[0].get("/metrics", metrics=True).decode()
    assert 'everstep_save_failures_total{reason="ENOSPC"} 0.0' in text
    assert "everstep_saves_total 0.0" in text
    assert world.pods[0].terminate() == 0
