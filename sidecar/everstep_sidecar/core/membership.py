"""What the coordinator's answer says of each member: a sum of what the members said of themselves and of each other (R25's N)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from everstep_protocol.messages import MemberState, MemberSummary
from everstep_protocol.plan import Plan

FRESH_SECONDS = 3.0  # an older word of a member about its peers is no evidence
PREPARING_SECONDS = 10.0  # R28: so old, a word that it still prepares is none


@dataclass(frozen=True)
class Heard:
    """A member's newest state and its age in seconds by the coordinator's monotonic clock."""

    state: MemberState
    age_seconds: float


def summarize(
    plan: Plan, heard: Mapping[str, Heard], *, ready: frozenset[str], gone: bool
) -> tuple[MemberSummary, ...]:
    """One line a member, in the plan's order. A member's own word about itself is never a vote for its loss."""
    return tuple(_summary(member.uid, heard, ready, gone) for member in plan.members)


def visible(state: str) -> str:
    """Of a member's state, what a poll is woken for: a save is told when it is committed, not when it begins."""
    return "running" if state == "saving" else state


def _summary(uid: str, heard: Mapping[str, Heard], ready: frozenset[str], gone: bool) -> MemberSummary:
    others = [other for sender, other in heard.items() if sender != uid and other.age_seconds <= FRESH_SECONDS]
    lost_by = sum(uid in other.state.lost_peers for other in others)
    own = heard.get(uid)
    leaving = own is not None and own.state.leaving
    return MemberSummary(uid, _state(uid, own, ready, gone), lost_by, len(others), leaving)


def _state(
    uid: str, own: Heard | None, ready: frozenset[str], gone: bool
) -> Literal["absent", "preparing", "ready", "running", "stopped", "finished"]:
    if own is not None and own.state.state == "finished":
        return "finished"
    if own is not None and own.state.state == "stopped":
        return "stopped"
    if gone:
        return "running"
    if uid in ready:
        return "ready"
    return "preparing" if own is not None and _is_preparing(own) else "absent"


def _is_preparing(own: Heard) -> bool:
    """R28: a big checkpoint takes longer to verify than a hello may take; who gets on with it is not left out."""
    return own.state.state == "preparing" and own.age_seconds <= PREPARING_SECONDS
