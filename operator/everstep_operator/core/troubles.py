"""What does not work while nothing has ended: saves, the storage, the API server, pods that stay. Facts with their remedies, for conditions."""

from __future__ import annotations

from everstep_protocol.messages import SidecarStatus
from everstep_protocol.messages import Trouble as Said

from everstep_operator.core import pods, sights
from everstep_operator.core.model import JobStatus, Observed, PodView
from everstep_operator.core.outcome import Trouble

SILENT_SECONDS = 60.0  # a coordinator that has not answered for so long may not save either
REMAIN_SECONDS = 120.0  # a pod that is still there so long after its grace does not go by itself
# Words of ours, whose sentences name pod, node and remedy; all others are the system's, as ENOSPC.
OUR_WORDS = (
    "StateRefused",
    "SaveFailed",
    "SavesOverdue",
    "StorageNotShared",
    "StorageHangs",
    "StorageError",
    "DeletionFails",
    "StopNotHeard",
    "StopNotSaved",
)


def of_saving(seen: Observed) -> Trouble | None:
    """Why checkpoints are not healthy, the surest first; None: nothing is known against them."""
    answer = pods.sidecar_of(seen)
    return _silence(seen) or _failing(answer) or _members(seen, answer) or _blind(seen) or _storage(seen, answer)


def _silence(seen: Observed) -> Trouble | None:
    attempt = seen.status.attempt
    if attempt is None or attempt.plan is None or attempt.state != "Started":
        return None
    head = attempt.plan.coordinator
    if seen.coordinator_age_seconds <= SILENT_SECONDS:
        return None
    return Trouble(
        "CoordinatorSilent",
        f"the sidecar of worker {head.id}{_on(seen, head.uid)}, which commits the checkpoints, does not answer the operator: "
        "whether anything is saved is not known; look at that container and at the network to it",
    )


def _failing(answer: SidecarStatus | None) -> Trouble | None:
    if answer is None or answer.failing is None:
        return None
    failing = answer.failing
    if failing.reason in OUR_WORDS:
        return Trouble(failing.reason, failing.message)
    return Trouble("CheckpointFailing", f"saves fail ({failing.reason}): {failing.message}")


def _members(seen: Observed, answer: SidecarStatus | None) -> Trouble | None:
    """What members say that keeps them from their part."""
    found = [summary.trouble for summary in answer.members if summary.trouble] if answer else []
    if not found:
        return None
    return Trouble(_word(found[0]), "; ".join(trouble.message for trouble in found))


def _blind(seen: Observed) -> Trouble | None:
    """R11: pods that may be members, and are known not to see the storage."""
    live = {row.id for row in seen.status.workers if row.state in ("Wanted", "Joined")}
    attempt = seen.status.attempt
    if attempt is None or attempt.state == "Ended":
        return None
    those = sorted((pod for pod in seen.pods if pod.worker_id in live), key=lambda pod: pod.worker_id)
    blind = [pod for pod in those if sights.is_blind(seen, pod) and not pods.is_over(pod)]
    if not blind:
        return None
    return Trouble(sights.reason(seen, blind), sights.lines(seen, blind))


def _storage(seen: Observed, answer: SidecarStatus | None) -> Trouble | None:
    if answer is None or answer.storage is None:
        return None
    return Trouble(_word(answer.storage), answer.storage.message)


def _word(trouble: Said) -> str:
    return trouble.reason if trouble.reason in OUR_WORDS else "CheckpointFailing"


def _on(seen: Observed, uid: str) -> str:
    pod = pods.by_uid(seen).get(uid)
    return f" on node {pod.node}" if pod else ""


def refused(seen: Observed) -> str:
    """What the API server refuses, in its own words, and what to do; empty: nothing."""
    lines = [f"{action.what}: {action.why}" for action in seen.refused_actions]
    if not lines:
        return ""
    return f"the API server refuses what the operator asks ({'; '.join(lines)}); it asks again; allow it, or take away what forbids it"


def pods_that_remain(seen: Observed, status: JobStatus) -> str:
    """Pods of a job that is at rest which were deleted minutes ago and are still there, and what to do; empty: none."""
    if not status.result and not (status.attempt and status.attempt.state == "Ended"):
        return ""
    left = sorted((pod for pod in seen.pods if _remains(pod)), key=lambda pod: pod.worker_id)
    if not left:
        return ""
    return (
        f"pods were deleted and are still there ({', '.join(f'{pod.name}, {sights.where(pod)}' for pod in left)}): "
        "their kubelet does not confirm that they ended, or a finalizer holds them; where a node is gone for good, "
        "delete its Node object or taint it node.kubernetes.io/out-of-service"
    )


def _remains(pod: PodView) -> bool:
    age = pod.deletion_age_seconds
    return age is not None and age >= REMAIN_SECONDS + (pod.deletion_grace_seconds or 0.0)
