"""R20: worker ids are given once. Which rows status should have, and which pods are made and deleted for them.

A row is `Wanted` (a pod that is in no plan yet), `Joined` (member of the last plan), `Leaving` or `Lost` (counts 0; it stays only
while its pod exists, and says why that pod must go), `Finished`. An id without a row is burnt.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from everstep_operator.core import pods, startup
from everstep_operator.core.model import (
    CreatePod,
    DeletePod,
    JobStatus,
    Observed,
    PodView,
    Probe,
    Settings,
    WorkerStatus,
)
from everstep_operator.core.suspicion import do_our_probes_fail, has_doubts

LIVE = ("Wanted", "Joined")
MOST_AVOIDED = (
    50  # in a pod; where more nodes are bad the API server knows it soon, and then the scheduler keeps off them
)
MOST_WITNESSES = 3  # that one of them is lost too, and not known to be yet, must not matter
REPAIR = "repair it, or delete its Node object if it is gone for good"


@dataclass(frozen=True)
class Touch:
    """Whom a settlement may touch: `members` of a running attempt never; `lost` ones are given up."""

    members: frozenset[int] = frozenset()
    lost: frozenset[int] = frozenset()


def settle(seen: Observed, settings: Settings, status: JobStatus, touch: Touch = Touch()) -> JobStatus:
    """R20: the status with its rows as they should be: `spec.workers.max` ids that count, new ones for those that do not."""
    assert seen.spec is not None
    rows = [row for row in (_next(seen, settings, row, touch) for row in status.workers) if row]
    rows = _without_surplus(seen, rows, touch, seen.spec.max_workers)
    missing = max(0, seen.spec.max_workers - num_counted(rows, touch))
    first = status.next_worker_id
    rows += [WorkerStatus(number, "Wanted") for number in range(first, first + missing)]
    return replace(status, workers=tuple(rows), next_worker_id=first + missing)


def num_counted(rows: list[WorkerStatus], touch: Touch) -> int:
    """Capacity in ids: those that work, will work, or have finished in the running attempt."""
    return sum(row.state in LIVE or row.id in touch.members for row in rows)


def _next(seen: Observed, settings: Settings, row: WorkerStatus, touch: Touch) -> WorkerStatus | None:
    pod = pods.by_worker(seen).get(row.id)
    here = replace(row, node=pod.node) if pod and pod.node else row
    if row.id in touch.lost:
        return replace(here, state="Lost")
    if row.id in touch.members:
        return row
    if pod is None:
        return row if row.state == "Wanted" and row.id not in seen.names_taken else None
    if row.state in ("Lost", "Leaving"):
        return row
    if row.state == "Finished" or pods.is_leaving(pod) or is_of_another_template(seen, pod):
        return replace(here, state="Leaving")
    if _is_worn_out(settings, row, pod) or _is_stranded(seen, settings, pod) or _is_tried_elsewhere(settings, row, pod):
        return replace(here, state="Lost")
    return None if _avoids_in_vain(seen, settings, pod) else row


def is_of_another_template(seen: Observed, pod: PodView) -> bool:
    """R29: a plan is of one template, the spec's."""
    assert seen.spec is not None
    return pod.template_hash != seen.spec.template_hash


def _is_worn_out(settings: Settings, row: WorkerStatus, pod: PodView) -> bool:
    """Its pod ended, or its launcher ended with code 0. One that was never a member is replaced slowly: its successor may fail alike."""
    ended = pods.is_over(pod) or (pod.trainer_terminated and pods.last_word(pod)[0] in ("finished", "left"))
    return ended and (row.state == "Joined" or pod.age_seconds >= settings.replace_failed)


def _is_tried_elsewhere(settings: Settings, row: WorkerStatus, pod: PodView) -> bool:
    """Its node cannot start it: its successor keeps off that node, for as long as this pod is there."""
    return row.state == "Wanted" and startup.is_tried_elsewhere(settings, pod)


def _is_stranded(seen: Observed, settings: Settings, pod: PodView) -> bool:
    """Where no running attempt speaks for it: its node was given up, or K and N, or K for very long. R26: not if we doubt ourselves.

    K alone gives nobody up who ever ran; one that has no address yet has nothing to lose.
    """
    if not pod.node or not pods.is_node_bad(seen, pod.node) or has_doubts(seen, settings):
        return False
    if pods.is_given_up(seen, pod.node) or not pod.ip:
        return True
    is_long = seen.nodes[pod.node].lease_age_seconds >= settings.kubelet_deadline
    return is_long or do_our_probes_fail(seen, settings, pod.uid, pod.node)


def _avoids_in_vain(seen: Observed, settings: Settings, pod: PodView) -> bool:
    """Pending, and one of the nodes that it must avoid is well again, or gone: affinity cannot be changed, so another id is made."""
    if pod.phase != "Pending" or pod.node:
        return False
    bad = pods.suspects(seen, settings).union(pods.avoided_nodes(seen))
    return any(pods.is_node_gone(seen, node) or (node in seen.nodes and node not in bad) for node in pod.avoid)


def _without_surplus(seen: Observed, rows: list[WorkerStatus], touch: Touch, most: int) -> list[WorkerStatus]:
    """Fewer are wanted: first those without a running pod go, then the highest ids; members of a running attempt stay."""
    excess = num_counted(rows, touch) - most
    spare = sorted(
        (row for row in rows if row.state in LIVE and row.id not in touch.members), key=lambda r: _worth(seen, r)
    )
    dropped = {row.id for row in spare[: max(0, excess)]}
    kept = (replace(row, state="Leaving") if row.id in dropped and row.state == "Joined" else row for row in rows)
    return [row for row in kept if row.id not in dropped or row.state == "Leaving"]


def _worth(seen: Observed, row: WorkerStatus) -> tuple[bool, bool, int]:
    """Sort key: worth more comes later."""
    pod = pods.by_worker(seen).get(row.id)
    return (row.state == "Joined", pod is not None and pod.phase == "Running", -row.id)


def live_ids(status: JobStatus) -> tuple[int, ...]:
    """Ids that may be members of the next attempt, ascending."""
    return tuple(sorted(row.id for row in status.workers if row.state in LIVE))


@pods.once_a_pass
def usable(seen: Observed, settings: Settings) -> tuple[PodView, ...]:
    """Pods that can be members now, by ascending id."""
    there = pods.by_worker(seen)
    return tuple(there[i] for i in live_ids(seen.status) if i in there and not why_unusable(seen, settings, i))


def why_unusable(seen: Observed, settings: Settings, worker: int) -> str:
    """What stands in the way of this worker, for people; empty: it can be a member."""
    pod = pods.by_worker(seen).get(worker)
    if pod is None:
        refusal = seen.pods_refused.get(worker)
        if not seen.has_template:
            return "its pod is not made: the spec is not valid; correct it"
        return f"its pod is not made: {refusal}" if refusal else "its pod is being created"
    if pods.is_leaving(pod):
        return "its pod is being deleted"
    if pods.is_over(pod):
        return f"its pod ended ({pods.how_it_ended(pod)})"
    return _why_not_running(seen, pod) or _why_not_trusted(seen, settings, pod)


def _why_not_running(seen: Observed, pod: PodView) -> str:
    if pod.unschedulable:
        return f"it cannot be scheduled: {pod.unschedulable}{_held(seen)}; make room for it, or lower spec.workers.max"
    if startup.hindrance(pod):
        return startup.why(pod)
    if startup.is_restarting(pod):
        return f"its trainer container on node {pod.node} ended and is being restarted; look at its last output"
    if pod.phase == "Running" and pod.sidecar_running and pod.ip:
        return ""
    if not pod.node:
        return "it is being scheduled"
    return (
        ""
        if pods.is_node_bad(seen, pod.node)
        else f"it is starting on node {pod.node}; look at its events if it stays so"
    )


@pods.once_a_pass
def _held(seen: Observed) -> str:
    """Pods of workers that were given up, and that hold the room of others for as long as their nodes do not end them."""
    gone = {row.id for row in seen.status.workers if row.state in ("Lost", "Leaving")}
    left = sorted((pod for pod in seen.pods if pod.worker_id in gone and pod.node), key=lambda pod: pod.worker_id)
    names = ", ".join(f"worker {pod.worker_id} on node {pod.node}" for pod in left)
    return f" (the pod of {names} is still there: if that node does not answer, {REPAIR})" if names else ""


def _why_not_trusted(seen: Observed, settings: Settings, pod: PodView) -> str:
    joined = pods.states(seen).get(pod.worker_id) == "Joined"
    if pods.is_node_bad(seen, pod.node):
        return f"node {pod.node} does not answer; {REPAIR}"
    if not joined and pod.node in pods.suspects(seen, settings):
        return f"node {pod.node} came back a moment ago"
    if pod.node not in seen.nodes:
        return f"node {pod.node} is not known to the operator yet; look whether it may list nodes"
    if do_our_probes_fail(seen, settings, pod.uid, pod.node):
        return f"its sidecar on node {pod.node} does not answer; look at that container and at the network to it"
    return ""


def restarting(seen: Observed, settings: Settings) -> tuple[PodView, ...]:
    """R32: members of the last attempt whose trainer container the kubelet is starting again, by ascending id."""
    there = pods.by_worker(seen)
    joined = sorted(row.id for row in seen.status.workers if row.state == "Joined")
    ended = (there[i] for i in joined if i in there and startup.is_restarting(there[i]))
    return tuple(pod for pod in ended if not pods.is_leaving(pod) and not pods.is_over(pod))


def creations(seen: Observed, settings: Settings) -> tuple[CreatePod, ...]:
    """R20: a pod for each wanted id that has none, never where this job lost a worker."""
    there = pods.by_worker(seen)
    wanted = [row.id for row in seen.status.workers if row.state == "Wanted" and row.id not in there]
    if not wanted or not seen.has_template:
        return ()
    avoid, like = pods.avoided_nodes(seen)[:MOST_AVOIDED], _injected(seen)
    return tuple(CreatePod(number, avoid, *like) for number in sorted(wanted) if number not in seen.names_taken)


def _injected(seen: Observed) -> tuple[str, int]:
    """R29: an attempt has one version of Everstep in all of its pods, and an operator that was upgraded restarts nobody for it.

    So new pods have what the others have, as long as there are any: until the job is suspended and resumed, or all are made anew.
    """
    live = set(live_ids(seen.status))
    those = sorted((pod for pod in seen.pods if pod.worker_id in live and pod.image), key=lambda pod: pod.worker_id)
    return next(
        ((pod.image, pod.api_port) for pod in those if not pods.is_over(pod) and not pods.is_leaving(pod)), ("", 0)
    )


def probes(seen: Observed) -> tuple[Probe, ...]:
    """R25, N: those outside a running attempt whose kubelet is silent: whether they are given up depends on their answer.

    R26: their silence counts where others answer, so a few others are asked too.
    """
    members, live = pods.members_by_uid(seen), set(live_ids(seen.status))
    there = sorted((pod for pod in seen.pods if _may_answer(pod)), key=lambda pod: pod.worker_id)
    idle = [pod for pod in there if pod.worker_id in live and pod.uid not in members]
    asked = [pod for pod in idle if pods.is_node_bad(seen, pod.node) and not pods.is_given_up(seen, pod.node)]
    witnesses = [pod for pod in there if not pods.is_node_bad(seen, pod.node)][:MOST_WITNESSES] if asked else []
    return tuple(Probe(pod.uid, pod.ip) for pod in (*asked, *witnesses))


def _may_answer(pod: PodView) -> bool:
    return bool(pod.ip) and not pods.is_over(pod) and not pods.is_leaving(pod)


def strays(seen: Observed) -> tuple[DeletePod, ...]:
    """R20: pods whose id is not in status. An id that status has not given yet means that our status is old: hands off."""
    known = {row.id for row in seen.status.workers}
    burnt = (pod for pod in seen.pods if pod.worker_id not in known and pod.worker_id < seen.status.next_worker_id)
    return deletions(seen, tuple(burnt))


def departures(seen: Observed) -> tuple[DeletePod, ...]:
    """Pods of lost and leaving workers."""
    gone = {row.id for row in seen.status.workers if row.state in ("Lost", "Leaving")}
    return deletions(seen, tuple(pod for pod in seen.pods if pod.worker_id in gone))


def deletions(seen: Observed, doomed: tuple[PodView, ...]) -> tuple[DeletePod, ...]:
    """R2, R21: each once, with preconditions; by force only where the node was given up."""
    orders = []
    for pod in sorted(doomed, key=lambda pod: pod.worker_id):
        force = pods.is_given_up(seen, pod.node)
        if force or pod.deletion_age_seconds is None:
            orders.append(DeletePod(pod.name, pod.uid, pod.resource_version, force))
    return tuple(orders)
