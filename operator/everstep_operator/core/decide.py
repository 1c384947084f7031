"""What to do about one job: `decide(seen, settings) -> Decision`. Pure; the most final case first.

Order of reading: `model`, `pods`, `suspicion`, `workers`, `sights`, `attempts`, `preparing` (with `coordinators`, `half_placed`), `running` (with
`endings`, `timers`, `leaving`, `growth`, `bookkeeping`), `budget`, `retention`, `results`, `phases`, `conditions` (with `troubles`).
"""

from __future__ import annotations

from everstep_operator.core import attempts, conditions, phases, pods, preparing, results, running, workers
from everstep_operator.core.model import Decision, JobSpec, Notice, Observed, Settings, WriteStatus
from everstep_operator.core.outcome import Outcome


def decide(seen: Observed, settings: Settings) -> Decision:
    """The next step for this job, and what to say of it. The same `seen` gives the same decision."""
    outcome = _outcome(seen, settings)
    return Decision(
        phase=outcome.phase,
        reason=outcome.reason,
        message=outcome.message,
        actions=outcome.actions,
        conditions=conditions.build(seen, settings, outcome),
        notices=outcome.notices,
        requeue_after=outcome.requeue_after,
        suspects=pods.suspect_nodes(seen, settings),
    )


def _outcome(seen: Observed, settings: Settings) -> Outcome:
    status, spec = seen.status, seen.spec
    if seen.deleting:
        return Outcome(phases.of_status(status), "Deleting", "the job is being deleted; its checkpoints stay")
    if status.result:
        return _after_the_end(seen, settings)
    if spec is None:
        return _invalid(seen)
    overdue = results.overdue(seen)
    if overdue and not running.is_done(seen, settings):
        return running.fail(seen, status, overdue)
    if status.attempt is None:
        return _first(seen, settings, spec)
    return _with_attempt(seen, settings, spec)


def _invalid(seen: Observed) -> Outcome:
    """Nothing is under way, or nothing that was accepted is known: what runs is not touched."""
    attempt = seen.status.attempt
    hint = "; until this is put right, what runs is not looked after" if attempt and attempt.state != "Ended" else ""
    return Outcome(phases.of_status(seen.status), "InvalidSpec", "; ".join(seen.problems) + hint)


def _after_the_end(seen: Observed, settings: Settings) -> Outcome:
    actions, requeue_after = results.clean_up(seen, settings)
    status = seen.status
    return Outcome(phases.of_status(status), status.result_reason, status.result_message, actions, requeue_after)


def _first(seen: Observed, settings: Settings, spec: JobSpec) -> Outcome:
    if spec.suspend:
        return Outcome("Suspended", "Suspended", "the job was created suspended")
    return _begin(seen, settings, attempts.Ending("start", "the job starts"))


def _begin(seen: Observed, settings: Settings, ending: attempts.Ending) -> Outcome:
    status = attempts.begin(seen, settings, seen.status, ending)
    notice = Notice("Normal", "Starting", ending.message)
    return Outcome("Starting", "StartingWorkers", ending.message, (WriteStatus(status),), notices=(notice,))


def _with_attempt(seen: Observed, settings: Settings, spec: JobSpec) -> Outcome:
    attempt = pods.current_attempt(seen)
    if attempt.state == "Ended":
        return _ended(seen, settings, spec)
    if attempt.state == "Preparing":
        return _preparing(seen, settings, spec)
    return running.decide(seen, settings, spec)


def _preparing(seen: Observed, settings: Settings, spec: JobSpec) -> Outcome:
    if spec.suspend:
        return running.suspended(seen, seen.status)
    return preparing.decide(seen, settings, spec)


def _ended(seen: Observed, settings: Settings, spec: JobSpec) -> Outcome:
    """R30: suspended: pods go, by UID; resumed: prepare as ever."""
    if not spec.suspend:
        return _begin(seen, settings, attempts.Ending("resume", "the job is resumed after suspension"))
    return Outcome("Suspended", "Suspended", "the job is suspended", workers.strays(seen))
