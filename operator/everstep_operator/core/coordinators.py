"""R4: which pod fences, looks at the storage and coordinates; and which one is asked when that one does not get on."""

from __future__ import annotations

from everstep_protocol.messages import PrepareAnswer

from everstep_operator.core import pods, sights
from everstep_operator.core.model import Observed, PodView, Settings

STALLED_SECONDS = 30.0  # a look at the storage that makes no progress for so long is another pod's turn


def choose(seen: Observed, settings: Settings, those: tuple[PodView, ...]) -> PodView:
    """The pod that answered, while its answer stands; else the next that can answer; else the one that failed first.

    Total: whatever is answered or not, every pod has its turn again, also the one whose answer was of no use.
    """
    fresh = [pod for pod in _in_order(seen, those) if pod.uid not in seen.prepare_failed]
    answered = next((pod for pod in fresh if pod.uid == seen.prepare_by), None)
    failed = sorted(
        (pod for pod in those if pod.uid in seen.prepare_failed), key=lambda pod: seen.prepare_failed.index(pod.uid)
    )
    if answered is None or seen.prepare is None:
        return fresh[0] if fresh else failed[0]
    if _stands(seen.prepare):
        return answered
    turn = fresh.index(answered)
    others = [*fresh[turn + 1 :], *fresh[:turn]]
    if others:
        return others[0]
    is_its_turn = not failed or seen.prepare_age_seconds >= settings.stop_retry
    return answered if is_its_turn else failed[0]


def following(seen: Observed, those: tuple[PodView, ...]) -> PodView | None:
    """The next after the one that answered; None: all had their turn."""
    order = [pod for pod in _in_order(seen, those) if pod.uid not in seen.prepare_failed]
    turns = [i for i, pod in enumerate(order) if pod.uid == seen.prepare_by]
    return order[turns[0] + 1] if turns and turns[0] + 1 < len(order) else None


def another(seen: Observed, those: tuple[PodView, ...]) -> PodView | None:
    """Any but the one that answered, by turns; None: there is no other."""
    others = [pod for pod in _in_order(seen, those) if pod.uid != seen.prepare_by]
    fresh = [pod for pod in others if pod.uid not in seen.prepare_failed]
    failed = sorted(
        (pod for pod in others if pod.uid in seen.prepare_failed), key=lambda pod: seen.prepare_failed.index(pod.uid)
    )
    return following(seen, those) or next(iter([*fresh, *failed]), None)


def is_stalled(answer: PrepareAnswer) -> bool:
    """R4: no limit on how long a storage takes, only on how long it does not get on."""
    return answer.outcome == "busy" and answer.progress_age_seconds >= STALLED_SECONDS


def named(seen: Observed) -> str:
    """The pod that gave the answer, for people."""
    pod = pods.by_uid(seen).get(seen.prepare_by)
    return sights.where(pod) if pod else "the worker that was asked"


def _stands(answer: PrepareAnswer) -> bool:
    return answer.outcome != "wait" and not is_stalled(answer)


def _in_order(seen: Observed, those: tuple[PodView, ...]) -> list[PodView]:
    """By id; the one whose storage failed the attempt before comes last."""
    last = pods.current_attempt(seen).ask_last
    return sorted(those, key=lambda pod: (pod.uid == last, pod.worker_id))
