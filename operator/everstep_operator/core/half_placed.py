"""A job below min that holds room while it finds no more: two such jobs may wait for each other for ever, and a person must choose."""

from __future__ import annotations

from everstep_operator.core import pods, workers
from everstep_operator.core.model import Observed, PodView, Settings

REASON = "HalfPlaced"
MOST_NAMES = 5


def why(seen: Observed, settings: Settings) -> str:
    """What is held meanwhile, who else waits like this, and what to do, for people; empty: it is not so, or not for long."""
    if seen.attempt_age_seconds < settings.half_placed:
        return ""
    live = set(workers.live_ids(seen.status))
    waiting = [pod for pod in seen.pods if pod.worker_id in live and not pods.is_leaving(pod) and not pods.is_over(pod)]
    placed = [pod for pod in waiting if pod.node and not pods.is_node_bad(seen, pod.node)]
    if not placed or not any(pod.unschedulable and not pod.node for pod in waiting):
        return ""
    return f"{_held(placed)}; {_others(seen)}add nodes, or lower spec.workers.min"


def _held(placed: list[PodView]) -> str:
    ordered = sorted(placed, key=lambda pod: pod.worker_id)
    where = _few([f"worker {pod.worker_id} on node {pod.node}" for pod in ordered])
    return f"meanwhile the room of {where} is held and not used"


def _others(seen: Observed) -> str:
    """Jobs of other namespaces are counted, not named: their names are nobody's business here."""
    own = f"{seen.namespace}/"
    named = sorted(name.removeprefix(own) for name in seen.half_placed if name.startswith(own))
    foreign = len(seen.half_placed) - len(named)
    parts = [f"job{'s' if len(named) > 1 else ''} {_few(named)}"] if named else []
    if foreign:
        parts.append(f"{foreign} job{'s' if foreign > 1 else ''} in other namespaces")
    if not parts:
        return "suspend this job to give that room to others, "
    verb = "wait" if len(seen.half_placed) > 1 else "waits"
    return f"{' and '.join(parts)} {verb} like this too, and each may hold what another needs: suspend one of them, "


def _few(names: list[str]) -> str:
    rest = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {rest} more" if rest > 0 else "")
