"""The answer to a poll, made from what is true now (R25: the trainers' clock is read when the answer is made)."""

from __future__ import annotations

import errno
from dataclasses import replace

from everstep_protocol.messages import FORMAT, SidecarStatus, Training, Trouble

from everstep_sidecar.agent import Agent
from everstep_sidecar.core.training import among
from everstep_sidecar.loop_watch import LoopWatch
from everstep_sidecar.pod import Pod

NOTHING = Training(False, -1, 0.0, 0.0, "none")
# What sidecars say in their own words. Every other reason may carry what a trainer said, and is told to the operator only.
OWN_REASONS = frozenset(errno.errorcode.values()) | {
    "StorageError",
    "StorageHangs",
    "StorageNotShared",
    "StopNotHeard",
    "StopNotSaved",
    "SavesOverdue",
    "DeletionFails",
    "invalid",
}
WITHHELD = Trouble("Withheld", "what is wrong is in the conditions of the TrainingJob", 0.0)


def build_status(pod: Pod, agent: Agent, watch: LoopWatch) -> SidecarStatus:
    """What /v1/poll says."""
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
        training=among(run.training(), coordinator.words.idle_seconds() if coordinator else None) if run else NOTHING,
        members=coordinator.members() if coordinator else (),
        lost_peers=pod.peers.lost(),
        over=coordinator.over if coordinator else None,
        checkpoints=coordinator.commits.checkpoints if coordinator else (),
        deleted=coordinator.commits.deleted if coordinator else (),
        failing=coordinator.failing(run.unsaved() if run else None) if coordinator else None,
        num_skipped_saves=run.num_skipped_saves() if run else 0,
        num_failed_saves=run.num_failed_saves() if run else 0,
        storage=pod.calls.trouble(),
        bytes_age_seconds=coordinator.words.bytes_age_seconds() if coordinator else None,
    )


def public(status: SidecarStatus) -> SidecarStatus:
    """What /status says without a signature: nothing that trainers said, for their last lines may hold secrets."""
    return replace(
        status,
        over=status.over and replace(status.over, details=""),
        failing=_public(status.failing),
        storage=_public(status.storage),
        members=tuple(replace(member, trouble=_public(member.trouble)) for member in status.members),
    )


def _public(trouble: Trouble | None) -> Trouble | None:
    if trouble is None or trouble.reason in OWN_REASONS:
        return trouble
    return replace(WITHHELD, age_seconds=trouble.age_seconds)
