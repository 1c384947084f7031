"""R11, R17: which pods see this job's storage and have their launcher, as they said themselves. What a pod cannot see is its mount's fault."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from everstep_protocol.messages import PrepareAnswer, Sight

from everstep_operator.core import pods
from everstep_operator.core.model import AskSight, Observed, PodView, Settings

NOT_SHARED = "StorageNotShared"
STALE_SECONDS = 60.0  # so old, a word that is asked for every second is silence
LAUNCHER_RETRY = 1.0  # seconds: a container that the kubelet starts again is there soon


@dataclass(frozen=True)
class Word:
    """What a pod said last, and how many seconds ago."""

    sight: Sight
    age_seconds: float


@pods.once_a_pass
def _words(seen: Observed) -> dict[str, Word]:
    """The newest word of each pod: its own, or the one that came with the answer to prepare."""
    words = {uid: Word(sight, seen.sight_ages.get(uid, 0.0)) for uid, sight in seen.sights.items()}
    for sight in seen.prepare.sights if seen.prepare else ():
        own = words.get(sight.uid)
        if own is None or seen.prepare_age_seconds < own.age_seconds:
            words[sight.uid] = Word(sight, seen.prepare_age_seconds)
    return words


def of(seen: Observed, pod: PodView) -> Sight | None:
    """What this pod said last of the current attempt's storage; None: nothing yet."""
    word = _words(seen).get(pod.uid)
    return word.sight if word else None


def is_ready(seen: Observed, pod: PodView) -> bool:
    """Whether the pod said that it sees the storage and has its launcher: silence is not enough to stop a job for it."""
    return of(seen, pod) is not None and not why_not(seen, pod)


def is_blind(seen: Observed, pod: PodView) -> bool:
    """Whether the pod said that it does not see the storage."""
    sight = of(seen, pod)
    return sight is not None and sight.storage is not None


def is_without_launcher(seen: Observed, pod: PodView) -> bool:
    """Whether the pod said that its launcher is not connected."""
    sight = of(seen, pod)
    return sight is not None and not sight.launcher


def why_not(seen: Observed, pod: PodView) -> str:
    """Why a pod that runs well cannot be a member, by its own word; empty: nothing is known against it."""
    word = _words(seen).get(pod.uid)
    if word is not None and word.sight.storage is not None:
        return word.sight.storage.message
    if word is None or word.sight.launcher:
        return ""
    if word.age_seconds >= STALE_SECONDS:
        return f"its sidecar on node {pod.node} does not answer the operator; does a NetworkPolicy forbid it to reach the pods?"
    return f"its launcher is not connected: the trainer container on node {pod.node} does not run; look at its state and last output"


def lines(seen: Observed, those: Iterable[PodView]) -> str:
    """Which of them cannot be members, on which node, and why each."""
    return "; ".join(_line(seen, pod) for pod in those if why_not(seen, pod))


def _line(seen: Observed, pod: PodView) -> str:
    """What a pod says of its storage names it, and what to do."""
    return why_not(seen, pod) if is_blind(seen, pod) else f"{where(pod)}: {why_not(seen, pod)}"


def where(pod: PodView) -> str:
    """`worker 3 on node n3`."""
    return f"worker {pod.worker_id} on node {pod.node}"


def reason(seen: Observed, blind: Iterable[PodView]) -> str:
    """The one word for what keeps these pods from the storage: `StorageNotShared` before all others."""
    found = {sight.storage.reason for sight in (of(seen, pod) for pod in blind) if sight and sight.storage}
    return NOT_SHARED if NOT_SHARED in found or not found else min(found)


def do_most_others_miss(seen: Observed, answer: PrepareAnswer) -> bool:
    """Whether the mount of the pod that fenced is the odd one: most of the others that spoke do not see what it wrote."""
    others = [sight for sight in answer.sights if sight.uid != seen.prepare_by]
    missing = sum(sight.storage is not None and sight.storage.reason == NOT_SHARED for sight in others)
    return 2 * missing > len(others)


def questions(seen: Observed, settings: Settings, those: Iterable[PodView]) -> tuple[AskSight, ...]:
    """Whom to ask: who has not spoken yet, and who did not see the storage or had no launcher, after a while."""
    attempt = pods.current_attempt(seen)
    raised_by = attempt.fenced_by or (seen.prepare.raised_by if seen.prepare else "")
    return tuple(
        AskSight(pod.uid, pod.ip, attempt.number, attempt.intent_id, raised_by)
        for pod in those
        if _is_due(seen, settings, pod)
    )


def _is_due(seen: Observed, settings: Settings, pod: PodView) -> bool:
    word = _words(seen).get(pod.uid)
    if word is None:
        return True
    if word.sight.storage is not None:
        return word.age_seconds >= settings.sight_retry
    return not word.sight.launcher and word.age_seconds >= LAUNCHER_RETRY
