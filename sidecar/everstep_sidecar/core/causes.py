"""R32: of several reports that came with one failure, the one that counts, and the sentence that says so."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from everstep_protocol.messages import Exited, Over
from everstep_protocol.plan import Plan

from everstep_sidecar.core.naming import member_name


@dataclass(frozen=True)
class Report:
    """A member's Exited, with the time of death on the coordinator's own monotonic clock (seconds)."""

    uid: str
    exited: Exited
    died_at: float


def first_cause(reports: tuple[Report, ...]) -> Report:
    """R32: peer-lost is what the others see of a failure, so anything else goes before it.

    One that can never work goes before all; then a killed process before one that raised, then the earlier one.
    """
    return min(reports, key=lambda report: (_rank_of_evidence(report.exited), report.died_at))


def over_of(report: Report, plan: Plan, *, is_saved: bool) -> Over:
    """How the attempt ended, for machines and for people. `is_saved`: the step that the report calls finished is on storage.

    What the trainers themselves said is in `details` alone.
    """
    exited = report.exited
    return Over(
        exited.cause,
        describe(report, plan, is_saved=is_saved),
        uid=report.uid,
        rank=exited.rank,
        details=exited.last_lines.strip(),
        oom=exited.oom_killed,
        refused=exited.refused,
    )


def lost_at_the_end(step: int, why: str, *, uid: str) -> Over:
    """R31: all trainers have finished, and the state after the last step is on no storage. `why`: a sentence without an end."""
    message = (
        f"the state after the last step, {step}, could not be saved: {why}. The next attempt does what is lost again"
    )
    return Over("crash", message, uid=uid)


def describe(report: Report, plan: Plan, *, is_saved: bool) -> str:
    """`rank 2 (pod w3 on node-1) exited with code 1`, and that training was complete, where it was (R31)."""
    exited = report.exited
    where = member_name(plan, report.uid)
    is_gone = exited.cause == "launcher-gone"
    head = f"the trainer container of {where} is gone" if is_gone else f"rank {exited.rank} ({where}) {_end(exited)}"
    if exited.finished_step > 0:
        head = f"{head}; {_completeness(exited.finished_step, is_saved=is_saved)}"
    return head


def _completeness(step: int, *, is_saved: bool) -> str:
    saved = "done and saved" if is_saved else "done, but the last save did not reach the storage"
    return (
        f"all steps that the script asked for (step {step}) are {saved}; it fails after its last step: "
        "correct or take out what the script does after its loop"
    )


def _rank_of_evidence(exited: Exited) -> int:
    if exited.refused:
        return -1
    if exited.cause == "peer-lost":
        return 2
    return 0 if exited.cause == "launcher-gone" or exited.signal is not None or exited.oom_killed else 1


def _end(exited: Exited) -> str:
    if exited.oom_killed:
        return "ran out of memory (OOMKilled); raise the trainer's memory limit or use less"
    if exited.signal is not None:
        return f"was killed by signal {exited.signal} ({_signal_name(exited.signal)})"
    return f"exited with code {exited.exit_code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
