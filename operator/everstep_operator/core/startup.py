"""Workers that do not start: whose fault it is, by the kubelet's own words, and what comes of it.

`never`: no node can do it, the template is wrong: the job fails, with that sentence. `node`: this node cannot do it: another one is
tried. `later`: it may come right (an image, a claim, a key that is missing): it is waited for, and said.
"""

from __future__ import annotations

import re
from typing import Literal

from everstep_protocol import names

from everstep_operator.core import pods
from everstep_operator.core.budget import Stop
from everstep_operator.core.model import Hindrance, Observed, PodView, Settings

Fault = Literal["never", "node", "later"]

_NOT_FOUND = re.compile(r'exec: "')  # how runc begins what it says of a program that it cannot execute
_NEVER = ("InvalidImageName",)
_NODE = (
    "CreateContainerError",
    "RunContainerError",
    "StartError",
    "ContainerCannotRun",
    "ContainerStatusUnknown",
    "ErrImageNeverPull",
)
_OURS = (names.INJECTOR_CONTAINER, names.SIDECAR_CONTAINER)
_USERS_OWN = ("Error", "Completed", "OOMKilled", "CrashLoopBackOff")  # it ran, and ended by itself
_REMEDIES: dict[Fault, str] = {
    "never": "suspend the job, correct its template, resume it",
    "node": "another node is tried if that lasts",
    "later": "it is tried again and again",
}


def hindrance(pod: PodView) -> Hindrance | None:
    """What keeps this pod's containers from running; a trainer that ended in an attempt is told by the attempt."""
    found = pod.hindrance
    if found is None or pods.is_over(pod):
        return None
    return None if _is_trainers(found, pod) and pods.last_word(pod)[1] > 0 else found


def fault(found: Hindrance, pod: PodView) -> Fault:
    """Whose it is."""
    if found.reason in _NEVER or _NOT_FOUND.search(found.message) or pods.last_word(pod)[0] == "refused":
        return "never"
    if found.reason in _NODE or (found.container in _OURS and found.reason in _USERS_OWN):
        return "node"
    is_before_attempts = pod.plan_attempt == 0
    return "never" if is_before_attempts and _is_own_end(found, pod) else "later"


def is_restarting(pod: PodView) -> bool:
    """Whether the trainer container ended by itself, and the kubelet starts it again."""
    found = hindrance(pod)
    return pod.trainer_terminated and not pod.unschedulable and (found is None or _is_own_end(found, pod))


def _is_own_end(found: Hindrance, pod: PodView) -> bool:
    return _is_trainers(found, pod) and found.reason in _USERS_OWN


def _is_trainers(found: Hindrance, pod: PodView) -> bool:
    return bool(pod.trainer) and found.container == pod.trainer


def why(pod: PodView) -> str:
    """For people: what does not start, why, and what to do; empty: nothing is known against it."""
    found = hindrance(pod)
    if found is None:
        return ""
    told = pods.last_lines(pod) if _is_trainers(found, pod) and pod.trainer_terminated else found.message
    words = f"{found.reason}: {told.strip()}" if told.strip() else found.reason
    return (
        f"its container {found.container} cannot start on node {pod.node}: {words}; "
        f"{_REMEDIES[fault(found, pod)]}; look at the events of pod {pod.name}"
    )


def is_tried_elsewhere(settings: Settings, pod: PodView) -> bool:
    """Whether this node had its chance."""
    found = hindrance(pod)
    return found is not None and fault(found, pod) == "node" and pod.unstarted_seconds >= settings.start_on_node


def verdict(seen: Observed, settings: Settings) -> Stop | None:
    """The job fails when every worker that has a node can never start; one of them that can is proof that it is not the template."""
    live = {row.id for row in seen.status.workers if row.state in ("Wanted", "Joined")}
    placed = [pod for pod in seen.pods if pod.worker_id in live and pod.node and not pods.is_leaving(pod)]
    if not placed or not all(_is_hopeless(settings, pod) for pod in placed):
        return None
    first = placed[0]
    return Stop("WorkerCannotStart", f"no worker can start: worker {first.worker_id}: {why(first)}")


def _is_hopeless(settings: Settings, pod: PodView) -> bool:
    found = hindrance(pod)
    if found is None or fault(found, pod) != "never":
        return False
    if found.restarts:
        return found.restarts >= settings.start_tries
    return pod.unstarted_seconds >= settings.start_verdict and not pod.trainer_terminated
