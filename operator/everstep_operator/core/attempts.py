"""R1, R3, R9: attempts are numbered upwards, prepared before they are planned, and planned from the answer to prepare alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

from everstep_protocol.lineage import Lineage, prune
from everstep_protocol.messages import CheckpointInfo, Peer, PrepareAnswer, PrepareRequest
from everstep_protocol.plan import FORMAT, Cause, Coordinator, Member, Plan, sealed

from everstep_operator.core import budget, clock, coordinators, growth, history, pods, retention, sights, workers
from everstep_operator.core.model import (
    AttemptStatus,
    Budget,
    CheckpointStatus,
    JobSpec,
    JobStatus,
    NewestCheckpoint,
    Observed,
    PodView,
    Settings,
    WorkerStatus,
)

NOT_A_RESTART: frozenset[Cause] = frozenset({"start", "resume"})
NEVER_STARTED: frozenset[Cause] = frozenset(
    {"not-delivered", "storage"}
)  # so ended, as far as we heard, the one before
LONGEST_LINEAGE = 50


@dataclass(frozen=True)
class Ending:
    """Why the attempt that runs is over, and what the next one is for."""

    cause: Cause
    message: str
    age_seconds: float = 0.0  # since it happened
    lost: frozenset[int] = frozenset()  # ids that are given up
    bad: tuple[str, ...] = ()  # ids of checkpoints whose contents are wrong (R17)
    ask_last: str = ""  # `AttemptStatus.ask_last` of the next attempt
    refused: bool = False  # no attempt can work


def next_number(seen: Observed) -> int:
    """R1: max(status, highest fence seen) + 1; never reused."""
    known = seen.status.attempt.number if seen.status.attempt else 0
    fenced = seen.prepare.highest if seen.prepare else 0
    heard = seen.sidecar.highest if seen.sidecar else 0
    return max(known, fenced, heard, seen.status.last_attempt) + 1


def begin(seen: Observed, settings: Settings, status: JobStatus, ending: Ending) -> JobStatus:
    """R3: the status with a new `Preparing`: number, cause and intent; no members promised. Ids that are lost are replaced at once."""
    attempt = AttemptStatus(
        number=next_number(seen),
        state="Preparing",
        intent_id=seen.new_intent,
        cause=ending.cause,
        intent_generation=seen.generation,
        failure_at=clock.rfc3339(seen.now - ending.age_seconds),
        message=ending.message,
        ask_last=ending.ask_last,
    )
    checkpoints = status.checkpoints
    bad = tuple(dict.fromkeys((*checkpoints.bad, *ending.bad)))
    status = replace(
        status,
        checkpoints=replace(checkpoints, bad=bad),
        restarts=_counted(status.restarts, ending.cause),
        step=pods.newest_step(seen),
        started_at=status.started_at or clock.rfc3339(seen.now),
    )
    status = workers.settle(seen, settings, status, workers.Touch(lost=ending.lost))
    status = growth.begun(status, ending.cause, now=seen.now)
    return history.begin(status, attempt, now=seen.now, length=settings.history)


def again(seen: Observed, settings: Settings, why: str) -> JobStatus:
    """R1: the same intention under a new number and a new intent; nothing is counted twice."""
    attempt = replace(
        pods.current_attempt(seen),
        number=next_number(seen),
        intent_id=seen.new_intent,
        intent_generation=seen.generation,
    )
    status = history.begin(seen.status, attempt, now=seen.now, length=settings.history)
    return replace(status, attempt=replace(attempt, message=attempt.message or why))


def why_again(seen: Observed) -> str:
    """For people: who kept the attempt before from starting: it may keep this one, too. Empty: nobody."""
    attempt = pods.current_attempt(seen)
    return f"; before it, {attempt.message}; look at the sidecar there" if attempt.cause == "not-delivered" else ""


def end(seen: Observed, status: JobStatus, why: str) -> JobStatus:
    """R30: no attempt follows for now; a number that was only prepared is burnt."""
    ended = replace(pods.current_attempt(seen), state="Ended", ended=why, plan=None)
    return replace(history.closed(status, now=seen.now), attempt=ended)


def _counted(restarts: dict[str, int], cause: Cause) -> dict[str, int]:
    if cause in NOT_A_RESTART:
        return restarts
    return {**restarts, cause: restarts.get(cause, 0) + 1, "total": restarts.get("total", 0) + 1}


def candidates(seen: Observed, settings: Settings) -> tuple[PodView, ...]:
    """R3: those that may become members, whatever they see of the storage: they are asked for that."""
    return _best(seen, workers.usable(seen, settings))


def choose_members(seen: Observed, settings: Settings) -> tuple[PodView, ...]:
    """R3, R11: chosen afresh in each pass from those that can be, and that are not known to lack the storage or their launcher."""
    return _best(seen, tuple(pod for pod in workers.usable(seen, settings) if not sights.why_not(seen, pod)))


def _best(seen: Observed, those: tuple[PodView, ...]) -> tuple[PodView, ...]:
    """Members of the last attempt first, at most max, by ascending id."""
    assert seen.spec is not None
    joined = {row.id for row in seen.status.workers if row.state == "Joined"}
    ranked = sorted(those, key=lambda pod: (pod.worker_id not in joined, pod.worker_id))
    return tuple(sorted(ranked[: seen.spec.max_workers], key=lambda pod: pod.worker_id))


def prepare_request(seen: Observed, expected: tuple[PodView, ...]) -> PrepareRequest:
    """R4: what the coordinator's sidecar needs to fence, to look and to choose (R9, R11, R12, R13, R17)."""
    attempt, status = pods.current_attempt(seen), seen.status
    return PrepareRequest(
        attempt=attempt.number,
        intent_id=attempt.intent_id,
        lineage=status.lineage,
        last_attempt=status.last_attempt,
        condemned=status.checkpoints.condemned,
        bad=status.checkpoints.bad,
        ever=status.checkpoints.ever,
        storage_known=status.last_attempt > 0,
        resume_from=resume_asked(seen),
        peers=tuple(Peer(pod.uid, pod.ip) for pod in seen.pods if pod.ip and not pods.is_over(pod)),
        expected=tuple(pod.uid for pod in expected),
    )


def resume_asked(seen: Observed) -> str | None:
    """R12: `spec.resumeFrom`, once. The same value is not obeyed again because another field was edited."""
    asked = seen.spec.resume_from if seen.spec else None
    if asked is None or asked == seen.status.honoured_resume_from:
        return None
    return asked if seen.generation > seen.status.honoured_resume_generation else None


def plan(
    seen: Observed, settings: Settings, spec: JobSpec, members: tuple[PodView, ...], answer: PrepareAnswer
) -> Plan:
    """R4, R9, R22: the plan, sealed. Ranks follow ids; the coordinator comes first and holds rank 0."""
    attempt = pods.current_attempt(seen)
    head = coordinators.choose(seen, settings, members)
    ordered = (head, *(pod for pod in members if pod.uid != head.uid))
    size = spec.processes_per_worker
    return sealed(
        Plan(
            format=FORMAT,
            job_uid=seen.uid,
            attempt=attempt.number,
            plan_id="",
            intent_generation=attempt.intent_generation,
            template_hash=spec.template_hash,
            world=size * len(ordered),
            coordinator=Coordinator(head.worker_id, head.uid, head.ip, head.api_port or settings.api_port),
            members=tuple(_member(pod, i * size, size) for i, pod in enumerate(ordered)),
            resume=answer.resume,
            lineage=_pruned(answer),
            cause=attempt.cause,
            interval=spec.interval,
        )
    )


def _member(pod: PodView, first: int, size: int) -> Member:
    return Member(pod.worker_id, pod.uid, pod.ip, pod.node, (first, first + size))


def _pruned(answer: PrepareAnswer) -> Lineage:
    """R9: entries go only when no checkpoint of theirs is left, whole or refused; never more than `LONGEST_LINEAGE`, the newest."""
    left = {retention.place(info) for info in answer.checkpoints}
    left |= {(refusal.attempt, 0) for refusal in answer.refused if refusal.attempt > 0}
    return prune(answer.lineage, left)[-LONGEST_LINEAGE:]


def planned(seen: Observed, settings: Settings, plan: Plan, answer: PrepareAnswer) -> JobStatus:
    """R3: the status with `Planned`. What prepare found on storage is written with it: a commit may never have been reported."""
    status = seen.status
    joined = {member.id: member.node for member in plan.members}
    status = replace(
        status,
        attempt=replace(pods.current_attempt(seen), state="Planned", plan=plan, fenced_by=answer.raised_by),
        workers=tuple(_placed(row, joined) for row in status.workers),
        lineage=plan.lineage,
        last_attempt=plan.attempt,
        checkpoints=_at_plan(seen, plan, answer),
        budget=_budget_at_plan(seen, settings, answer),
    )
    if resume_asked(seen) is not None:
        status = replace(
            status, honoured_resume_generation=seen.generation, honoured_resume_from=resume_asked(seen) or ""
        )
    return replace(history.planned(status, plan, now=seen.now), step=plan.resume.step)


def _budget_at_plan(seen: Observed, settings: Settings, answer: PrepareAnswer) -> Budget:
    """R32: a commit of the last attempt may never have been reported: it is progress all the same."""
    last, spent = seen.status.last_attempt, seen.status.budget
    if last <= 0 or all(info.attempt != last for info in answer.checkpoints):
        return spent
    was_heard = pods.current_attempt(seen).cause not in NEVER_STARTED
    return budget.committed(spent) if was_heard else budget.committed_unheard(spent, settings)


def _at_plan(seen: Observed, plan: Plan, answer: PrepareAnswer) -> CheckpointStatus:
    """R12: `ever` is asked of one branch: a new one, at step 0 by request, has had nothing yet; an import is something.

    R17: what is bad is remembered for as long as it is there.
    """
    before = seen.status.checkpoints
    is_new_branch = resume_asked(seen) == "none" and plan.resume.kind == "none"
    there = {info.id for info in answer.checkpoints}
    known = replace(
        before,
        ever=plan.resume.kind != "none" or (before.ever and not is_new_branch),
        bad=tuple(number for number in before.bad if number in there),
    )
    return found(known, branch(plan), answer.checkpoints)


def _placed(row: WorkerStatus, joined: dict[int, str]) -> WorkerStatus:
    if row.id in joined:
        return replace(row, state="Joined", node=joined[row.id])
    return replace(row, state="Wanted") if row.state == "Joined" else row


def branch(plan: Plan) -> retention.Branch:
    """The line that this plan continues."""
    return retention.Branch(plan.lineage, plan.attempt, plan.resume.id)


def found(status: CheckpointStatus, line: retention.Branch, infos: tuple[CheckpointInfo, ...]) -> CheckpointStatus:
    """What a whole look at storage found: the truth about checkpoints. Only those on the lineage count (R9, R12)."""
    newest = retention.newest_on(line, (info for info in infos if info.id not in status.bad))
    ever = status.ever or retention.newest_on(line, infos) is not None
    return replace(status, ever=ever, newest=as_newest(newest) if newest else None)


def as_newest(info: CheckpointInfo) -> NewestCheckpoint:
    """As status says it."""
    return NewestCheckpoint(info.id, info.dir, info.attempt, info.step, info.committed_at, info.bytes)
