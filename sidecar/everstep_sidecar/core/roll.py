"""R7: an attempt starts once. The coordinator's roll of who said hello, and what that allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from everstep_protocol.messages import Hello, Over

Verdict = Literal["hold", "open", "go", "over"]


@dataclass(frozen=True)
class Roll:
    """One attempt's start. `opening`: all said hello, plan and go are being written; `gone`: go is on storage."""

    members: frozenset[str]  # pod UIDs of the plan
    nonces: Mapping[str, str] = field(default_factory=dict)  # pod UID -> boot nonce of its launcher
    opening: bool = False
    gone: bool = False
    over: Over | None = None


def hear(roll: Roll, uid: str, hello: Hello) -> tuple[Roll, Verdict]:
    """R7: what a hello leads to. `hold`: others are missing; `open`: it was the last one, write go now.

    The same nonce again is a repeated question and gets the same answer. Another one means that this launcher was started anew:
    before go it takes the old one's place, from then on the attempt is over.
    """
    if roll.over is not None:
        return roll, "over"
    if hello.bad:
        return ended(roll, _bad(uid, hello)), "over"
    known = roll.nonces.get(uid)
    if roll.opening or roll.gone:
        if known != hello.nonce:
            return ended(roll, _restarted(uid)), "over"
        return roll, "go" if roll.gone else "hold"
    heard = replace(roll, nonces={**roll.nonces, uid: hello.nonce})
    if frozenset(heard.nonces) != roll.members:
        return heard, "hold"
    return replace(heard, opening=True), "open"


def opened(roll: Roll) -> Roll:
    """Go is on storage. An end that came meanwhile stays an end."""
    return replace(roll, opening=False, gone=True)


def ended(roll: Roll, over: Over) -> Roll:
    """R32: the first cause wins."""
    return roll if roll.over is not None else replace(roll, over=over)


def restarted_coordinator(
    roll: Roll, nonces: Mapping[str, str], *, uid: str, nonce: str, still_running: bool
) -> tuple[Roll, bool]:
    """R7 and PROTOCOL section 5: the coordinator's sidecar was restarted and finds go. Gives the roll and whether it goes on.

    Its launcher's processes of this attempt still run, under the nonce that go names: they never noticed, it goes on.
    Otherwise nobody can know who was told go: over.
    """
    found = replace(roll, nonces=dict(nonces), opening=False, gone=True)
    if still_running and nonces.get(uid) == nonce:
        return found, True
    message = "the coordinator's pod was restarted after the attempt had started; the attempt cannot start twice"
    return ended(found, Over("launcher-gone", message, uid=uid)), False


def _restarted(uid: str) -> Over:
    return Over("launcher-gone", f"the trainer container of pod {uid} was restarted after the attempt had started", uid)


def _bad(uid: str, hello: Hello) -> Over:
    named = ", ".join(hello.bad)
    message = (
        f"checkpoint {named}: its contents do not match its manifest (found by pod {uid}); an older one must be used"
    )
    return Over("bad-checkpoint", message, uid=uid, bad=hello.bad)
