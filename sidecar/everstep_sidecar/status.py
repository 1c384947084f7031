"""The answer to a poll, made from what is true now (R25: the trainers' clock is read when the answer is made)."""

from __future__ import annotations

import dataclasses

from everstep_protocol.messages import FORMAT, SidecarStatus, Training

from everstep_sidecar.agent import Agent
from everstep_sidecar.loop_watch import LoopWatch
from everstep_sidecar.pod import Pod

NOTHING = Training(False, -1, 0.0, 0.0, "none")


def build_status(pod: Pod, agent: Agent, watch: LoopWatch) -> SidecarStatus:
    """What /v1/poll says, to the operator alone."""
    plan, run, coordinator = agent.plan, agent.run, agent.coordinator
    role = "coordinator" if coordinator else "member" if run else "none"
    return SidecarStatus(
        format=FORMAT,
        version=pod.changes.version,
        pod_uid=pod.uid,
        highest=pod.highest,
        attempt=plan.attempt if plan else 0,
        plan_id=plan.plan_id if plan else "",
        role=role,  # type: ignore[arg-type]
        gone=coordinator.gone if coordinator else False,
        finished=coordinator.finished if coordinator else False,
        late_seconds=watch.late_seconds(),
        training=run.training() if run else NOTHING,
        members=coordinator.members() if coordinator else (),
        lost_peers=pod.peers.lost(),
        over=coordinator.over if coordinator else None,
        checkpoints=coordinator.commits.checkpoints if coordinator else (),
        deleted=coordinator.commits.deleted if coordinator else (),
        failing=(coordinator.commits.failure() or (run.unsaved() if run else None)) if coordinator else None,
        num_skipped_saves=run.num_skipped_saves() if run else 0,
        num_failed_saves=run.num_failed_saves() if run else 0,
    )


def public(status: SidecarStatus) -> SidecarStatus:
    """What anybody may read at /status: nothing that trainers printed."""
    over = dataclasses.replace(status.over, details="") if status.over is not None else None
    return dataclasses.replace(status, over=over)
