"""What of a sidecar's answer is worth a pass at once: whatever has happened. Steps, ages and what was deleted wait for the next one."""

from __future__ import annotations

from collections.abc import Hashable

from everstep_protocol.messages import SidecarStatus, Training, Trouble

_LATE_SECONDS = 10.0


def news(status: SidecarStatus) -> Hashable:
    """Equal for two answers between which nothing has happened: time went by, steps were finished, a save went on, deletions were done."""
    training = status.training
    return (
        status.pod_uid,
        status.attempt,
        status.plan_id,
        status.highest,
        status.role,
        status.gone,
        status.finished,
        status.over is not None,
        training.library,
        training.step >= 0,
        "training" if training.phase == "saving" else training.phase,
        max(((info.attempt, info.step) for info in status.checkpoints), default=None),
        _said(status.failing),
        _said(status.storage),
        frozenset(status.lost_peers),
        tuple((m.uid, m.state, m.lost_by, m.asked, m.leaving, _said(m.trouble)) for m in status.members),
    )


def gets_on(training: Training) -> bool:
    """Whether a step was finished, or a sign of life given, lately: then no timer is near its end."""
    return training.age_seconds < max(3 * training.usual_seconds, _LATE_SECONDS)


def _said(trouble: Trouble | None) -> Hashable:
    return trouble and (trouble.reason, trouble.message)
