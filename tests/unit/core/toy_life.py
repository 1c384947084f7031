"""What happens by itself in a second of the toy's time: kubelets, sidecars, launchers and trainers do their part, where they can."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from everstep_protocol.messages import CheckpointInfo, Over, Trouble
from everstep_protocol.plan import Member
from unit.core.toy_parts import STEPS_PER_SAVE, STEPS_PER_TICK, Pod, Run

if TYPE_CHECKING:
    from unit.core.toy_world import World

OVERDUE_SECONDS = 10.0
MOST_DUE = 3
RESTART_SECONDS = 2.0


def tick(world: World) -> None:
    """One second of everybody's work; what one leads to comes in the next."""
    run = world.current_run()
    if run:
        _conclude(world, run)
        _stop(world, run)
        _save(world, run)
        _train(world, run)
        _talk(world, run)
    _delete(world, run)
    _follow_plan(world)
    for p in world.pods.values():
        _container(world, p)
    for name in list(world.pods):
        _kubelet(world, world.pods[name])


# ------------------------------------------------------------ pods


def _kubelet(world: World, p: Pod) -> None:
    if not p.view.node:
        _schedule(world, p)
    elif not world.has_kubelet(p.view.node):
        return
    elif p.deleted_at is not None:
        if world.now - p.deleted_at >= p.grace and not world.silence.stuck:
            del world.pods[p.view.name]
            world.wake()
    elif p.view.phase == "Pending":
        p.started_at = world.now
        p.view = replace(p.view, phase="Running", sidecar_running=True, ip=f"10.{p.view.worker_id}.0.1")
        world.wake()
    elif world.speaks(p.view.uid):
        p.obeys = max(p.obeys, p.view.plan_attempt)


def _schedule(world: World, p: Pod) -> None:
    taken = {other.view.node for other in world.pods.values()}
    free = [name for name in world.nodes if name not in taken and name not in p.avoid and world.is_ready(name)]
    node = free[0] if free and not world.silence.no_room else ""
    silent = sum(not world.has_kubelet(name) for name in world.nodes)
    unschedulable = "" if node else f"0/4 nodes are available: {silent} unreachable, the others have no room"
    if (node, unschedulable) != (p.view.node, p.view.unschedulable):
        p.view = replace(p.view, node=node, unschedulable=unschedulable)
        world.wake()


def _container(world: World, p: Pod) -> None:
    """The trainer container: started again when it ended, then its launcher connects."""
    if not world.is_up(p.view.uid):
        return
    if p.view.worker_id in world.silence.containers and p.container_ended_at is None:
        end_container(world, p)
    elif p.container_ended_at is not None:
        started_again = world.now - p.container_ended_at >= RESTART_SECONDS and world.has_kubelet(p.view.node)
        if started_again and p.view.worker_id not in world.silence.containers and p.deleted_at is None:
            p.container_ended_at = None
            p.launcher_starts += 1
            p.view = replace(p.view, trainer_terminated=False)
            world.wake()
    elif world.hears_launcher(p, "LauncherHello"):
        p.connected = True
        if p.is_exiting and world.hears_launcher(p, "Exit"):
            p.view = replace(p.view, phase="Succeeded", trainer_terminated=True)
            world.wake()


def end_container(world: World, p: Pod) -> None:
    """All that ran in it is gone."""
    p.container_ended_at, p.connected = world.now, False
    p.view = replace(p.view, trainer_terminated=True, trainer_restarts=p.view.trainer_restarts + 1)
    run = world.current_run()
    if run and p.ran == run.plan.attempt and run.gone:
        run.crashed = True
    p.ran = 0
    world.wake()


# ------------------------------------------------------------ the attempt


def _follow_plan(world: World) -> None:
    attempt = world.status.attempt
    if attempt and attempt.plan and attempt.state in ("Planned", "Started") and world.current_run() is None:
        world.run = Run(attempt.plan, attempt.plan.resume.step, world.now)


def _talk(world: World, run: Run) -> None:
    """R7: states and hellos reach the coordinator; when all are there it says go."""
    head = world.pod(run.coordinator)
    if head is None or not world.speaks(run.coordinator) or head.obeys != run.plan.attempt:
        return
    is_open = len(run.hellos) == len(run.plan.members) and world.can_write(head.view.node)
    if is_open and not run.gone and not run.over and world.hears_launcher(head, "ChoosePort", "PortChosen"):
        _go(world, run)
    for member in run.plan.members:
        if world.speaks(member.uid) and world.arrives("MemberState", member.uid, run):
            run.heard[member.uid] = world.now
        if not run.over and _says_hello(world, run, member):
            _hear_hello(world, run, member.uid)


def _says_hello(world: World, run: Run, member: Member) -> bool:
    p = world.pod(member.uid)
    if p is None or not world.speaks(member.uid) or p.obeys != run.plan.attempt or not p.connected:
        return False
    is_clean = world.hears_launcher(p) and (p.ran == 0 or world.hears_launcher(p, "Stop", "Stopped"))
    return is_clean and world.trouble_of(p) is None and world.arrives("Hello", member.uid, run)


def _hear_hello(world: World, run: Run, uid: str) -> None:
    """R7: before go a launcher that was started anew takes the old one's place; from then on the attempt is over."""
    starts = world.by_uid[uid].launcher_starts
    if not run.gone:
        run.hellos[uid] = starts
    elif run.hellos[uid] != starts:
        _end(
            world,
            run,
            Over("launcher-gone", "a trainer container was restarted after the attempt had started", uid=uid),
        )


def _go(world: World, run: Run) -> None:
    run.gone, run.stepped_at, run.lived_at = True, world.now, world.now
    for member in run.plan.members:
        p = world.pod(member.uid)
        if p and world.hears_launcher(p, "Start"):
            p.ran = run.plan.attempt


def _train(world: World, run: Run) -> None:
    is_over = run.over is not None or run.finished or run.crashed or run.is_stopped or run.step >= world.until
    if not run.gone or is_over:
        return
    if not all(_trains(world, run, member) for member in run.plan.members):
        return
    run.step, run.stepped_at = run.step + STEPS_PER_TICK, world.now
    if any(_tells_of_life(world, run, member) for member in run.plan.members):
        run.lived_at = world.now
    if not world.library:
        return
    if run.step % STEPS_PER_SAVE == 0 or run.step >= world.until or run.is_stopped:
        run.due.append((run.step, world.now))


def _trains(world: World, run: Run, member: Member) -> bool:
    p = world.pod(member.uid)
    return p is not None and world.is_up(member.uid) and p.ran == run.plan.attempt and _is_awake(world, p)


def _tells_of_life(world: World, run: Run, member: Member) -> bool:
    """R7: its launcher tells its sidecar, and that tells the coordinator's."""
    return world.hears_launcher(world.pod(member.uid), "Activity") and world.arrives("MemberState", member.uid, run)


def _is_awake(world: World, p: Pod) -> bool:
    return p.container_ended_at is None and p.view.worker_id not in world.silence.launchers


# ------------------------------------------------------------ saves


def _save(world: World, run: Run) -> None:
    if not run.due or not world.speaks(run.coordinator) or run.over:
        return
    trouble = _what_fails(world, run)
    if trouble is None:
        step = run.due[-1][0]
        number = f"c{run.plan.attempt}-{step}"
        shared = world.places["shared"]
        shared.checkpoints[number] = CheckpointInfo(number, f"step_{step}", run.plan.attempt, step, 1)
        run.committed_at, run.failing = world.now, None
        run.due.clear()
    elif trouble.reason != "SavesOverdue" or _is_overdue(world, run):
        if run.failing is None:
            run.failing_since = world.now
        run.failing = trouble


def _is_overdue(world: World, run: Run) -> bool:
    return len(run.due) >= MOST_DUE and world.now - run.due[0][1] >= OVERDUE_SECONDS


def _what_fails(world: World, run: Run) -> Trouble | None:
    for member in run.plan.members:
        p = world.pod(member.uid)
        who = f"worker {member.id} on node {member.node}"
        if p and world.speaks(member.uid) and member.node in world.silence.apart:
            return Trouble(
                "StorageNotShared", f"{who} does not see the job's storage at /c; mount the same claim there", 0
            )
        told = p and world.speaks(member.uid) and world.arrives("SaveNotice", member.uid, run)
        if not told or member.node in world.silence.hanging:
            return Trouble(
                "SavesOverdue",
                f"{who} has not written its part of three saves to /c; check its sidecar and its mount",
                0,
            )
    if world.silence.full:
        return Trouble("ENOSPC", f"{who} cannot write to /c: no space left on device; free or add space", 0)
    return None


def _delete(world: World, run: Run | None) -> None:
    """R13: the coordinator deletes what status condemned."""
    condemned = [i for i in world.status.checkpoints.condemned if i in world.places["shared"].checkpoints]
    if run and not (world.speaks(run.coordinator) and not world.trouble_of(world.pod(run.coordinator))):
        return
    if not world.silence.kept:
        for number in condemned:
            del world.places["shared"].checkpoints[number]
    if run and run.failing is None and world.silence.kept and condemned:
        run.failing, run.failing_since = (
            Trouble("DeletionFails", "cannot delete /c/step_4: permission denied; delete it by hand", 0),
            world.now,
        )
    elif run and run.failing and run.failing.reason == "DeletionFails" and not condemned:
        run.failing = None


# ------------------------------------------------------------ ends


def _stop(world: World, run: Run) -> None:
    """R19: all agree on a step within the deadline, stop there, and its save is awaited. Who reports no steps stops at once."""
    if run.leave_until is None or not world.speaks(run.coordinator):
        return
    if run.stop_step >= 0:
        if run.is_stopped and not run.due and run.over is None:
            _end(world, run, Over("stopped", "stopped as asked", step=run.step))
    elif world.now >= run.leave_until:
        run.leave_until = None
    elif run.gone and not run.over and all(_agrees(world, run, member) for member in run.plan.members):
        if world.library:
            run.stop_step = run.step + STEPS_PER_TICK
        else:
            _end(world, run, Over("stopped", "stopped as asked", step=-1))


def _agrees(world: World, run: Run, member: Member) -> bool:
    return world.speaks(member.uid) and world.arrives("StopOrder", member.uid, run) and _trains(world, run, member)


def _conclude(world: World, run: Run) -> None:
    """R31, R32: all finished and their last step is committed; or somebody ended badly."""
    if run.over or run.finished or not world.speaks(run.coordinator):
        return
    head = world.pod(run.coordinator)
    assert head
    if run.crashed and world.hears_launcher(head, "ProcessExited") and world.arrives("Exited", "", run):
        _end(world, run, Over("crash", "rank 0 ended with exit code 1", uid=run.plan.members[0].uid))
    is_told = all(
        world.now - run.heard.get(m.uid, -math.inf) <= 1.0 and world.hears_launcher(world.pod(m.uid), "Finished")
        for m in run.plan.members
    )
    if run.step >= world.until and not run.due and is_told and world.can_write(head.view.node):
        run.finished = True


def _end(world: World, run: Run, over: Over) -> None:
    run.over, run.over_at = over, world.now
