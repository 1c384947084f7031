"""What the coordinator's answer says of each member: a sum of what the members said of themselves and of each other (R25's N)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from everstep_protocol.messages import MemberState, MemberSummary, Trouble
from everstep_protocol.plan import Plan

FRESH_SECONDS = 3.0  # an older word of a member about its peers is no evidence
PREPARING_SECONDS = 10.0  # R28: so old, a word that it still prepares is none


@dataclass(frozen=True)
class Heard:
    """What a member said last, by the coordinator's monotonic clock."""

    state: MemberState | None  # its newest word of itself
    age_seconds: float  # since that word
    silent_seconds: float = 0.0  # since it said anything at all
    left: bool = False  # it said of its trainers' end that its pod leaves


def summarize(
    plan: Plan, heard: Mapping[str, Heard], *, ready: frozenset[str], gone: bool
) -> tuple[MemberSummary, ...]:
    """One line a member, in the plan's order. A member's own word about itself is never a vote for its loss."""
    return tuple(_summary(member.uid, heard, ready, gone) for member in plan.members)


def visible(state: str) -> str:
    """Of a member's state, what a poll is woken for: a save is told when it is committed, not when it begins."""
    return "running" if state == "saving" else state


def _summary(uid: str, heard: Mapping[str, Heard], ready: frozenset[str], gone: bool) -> MemberSummary:
    others = [
        other.state
        for sender, other in heard.items()
        if sender != uid and other.state is not None and other.age_seconds <= FRESH_SECONDS
    ]
    lost_by = sum(uid in other.lost_peers for other in others)
    own = heard.get(uid)
    return MemberSummary(
        uid,
        _state(uid, own, ready, gone),
        lost_by,
        len(others),
        leaving=own is not None and (own.left or (own.state is not None and own.state.leaving)),
        trouble=_trouble(own) if own else None,
        heard_age_seconds=own.silent_seconds if own else None,
    )


def _state(
    uid: str, own: Heard | None, ready: frozenset[str], gone: bool
) -> Literal["absent", "preparing", "ready", "running", "stopped", "finished"]:
    said = own.state.state if own is not None and own.state is not None else "waiting"
    if said == "finished":
        return "finished"
    if said == "stopped":
        return "stopped"
    if gone:
        return "running"
    if uid in ready:
        return "ready"
    # R28: a big checkpoint takes longer to verify than a hello may take; who gets on with it is not left out.
    is_preparing = said == "preparing" and own is not None and own.age_seconds <= PREPARING_SECONDS
    return "preparing" if is_preparing else "absent"


def _trouble(own: Heard) -> Trouble | None:
    """As old as it is by now."""
    trouble = own.state.trouble if own.state else None
    return trouble and replace(trouble, age_seconds=trouble.age_seconds + own.age_seconds)


def bytes_age_seconds(heard: Mapping[str, Heard]) -> float | None:
    """Since bytes of a save last reached the storage from any member; None: nobody saves."""
    return _least(heard, lambda state: state.bytes_age_seconds)


def idle_seconds(heard: Mapping[str, Heard]) -> float | None:
    """R7: since the last sign of life of any member's trainers, where they report no steps; None: not known of any."""
    return _least(heard, lambda state: state.idle_seconds)


def _least(heard: Mapping[str, Heard], age: Callable[[MemberState], float | None]) -> float | None:
    """The least of an age that members told, as old as it is by now; None: nobody told one."""
    told = [(age(one.state), one.age_seconds) for one in heard.values() if one.state is not None]
    return min((seconds + since for seconds, since in told if seconds is not None), default=None)
