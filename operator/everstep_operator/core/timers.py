"""R7, R28: what did not come in time ends the attempt: hello, the storage, the coordinator's word, a step."""

from __future__ import annotations

import math

from everstep_protocol.messages import MemberSummary, SidecarStatus
from everstep_protocol.plan import Member

from everstep_operator.core import pods, suspicion
from everstep_operator.core.attempts import Ending
from everstep_operator.core.model import Observed, Settings

SAID_SHARE = 0.5  # of a deadline: then it is said that nothing comes. Evaluations and slow steps of minutes are no news
SAID_SHARE_AGAIN = 0.1  # where the attempt before ended as a hang
LATELY_SECONDS = 10.0  # who answered within this still answers
STORAGE_FAILS = ("StorageHangs", "StorageError")  # the storage's own fault; `StorageNotShared` is that of one mount
NO_USE_TO_WAIT = (
    "SavesOverdue",
    "StateRefused",
    "DeletionFails",
)  # of `failing`: a storage that comes back does not mend it
AT_REST = ("stopped", "finished")  # phases in which trainers wait for their last save


def find(seen: Observed, settings: Settings) -> Ending | None:
    """The end by a deadline, if one has passed. R26: no timer counts while we doubt ourselves."""
    if suspicion.has_doubts(seen, settings):
        return None
    if not pods.has_started(seen):
        return _not_delivered(seen, settings)
    return _coordinator_silent(seen, settings) or _not_training(seen, settings)


def waits_for_storage(seen: Observed) -> str:
    """Before go: whose storage does not answer, and how, for people; empty: nobody's. They are late through no fault of theirs."""
    if pods.has_started(seen):
        return ""
    answer = _coordinators_answer(seen)
    if answer is not None and answer.storage is not None:
        return answer.storage.message
    return _sentences(seen, _hanging(seen))


def waits_for_save(seen: Observed) -> str:
    """Trainers that stopped or finished wait for a storage that fails: nothing is lost by waiting. Empty: they do not."""
    answer = pods.sidecar_of(seen)
    if answer is None or answer.over or answer.training.phase not in AT_REST or not pods.has_started(seen):
        return ""
    if answer.failing is None or answer.failing.reason in NO_USE_TO_WAIT:
        return ""
    return answer.failing.message


def waits_for_go(seen: Observed) -> str:
    """Before go: all said hello, and the coordinator gives no go, for people; empty: it is waited for others."""
    answer = _coordinators_answer(seen)
    if answer is None or answer.over or pods.has_started(seen) or _without_hello(seen) or verifying(seen):
        return ""
    plan = pods.current_plan(seen)
    where = _where(plan.member(plan.coordinator.uid))
    return f"every worker is ready, and {where}, which coordinates, does not give the go; look at both containers there"


def waits_for_steps(seen: Observed, settings: Settings) -> str:
    """After go: nothing has come of it for a while, for people; empty: the trainers get on, or save, or nobody can tell."""
    answer = pods.sidecar_of(seen)
    if answer is None or answer.over or not pods.has_started(seen) or _is_saving(settings, answer):
        return ""
    if suspicion.has_doubts(seen, settings):
        return ""
    what, late, limit = _slowest(seen, settings, answer)
    usual = suspicion.step_limit(answer.training.usual_seconds, settings)
    share = SAID_SHARE_AGAIN if pods.current_attempt(seen).cause == "hang" else SAID_SHARE
    if late < max(share * min(limit, settings.hang_deadline), usual):
        return ""
    return f"{what}; look at the trainers' output; {_what_comes_of_it(limit)}"


def _what_comes_of_it(limit: float) -> str:
    return "nothing ends it" if math.isinf(limit) else f"after {limit:g} s the attempt is ended as a hang"


def verifying(seen: Observed) -> tuple[Member, ...]:
    """Before go: members that verify their part of the checkpoint, and get on with it."""
    return tuple(member for member, summary in _summaries(seen) if summary and summary.state == "preparing")


def _not_delivered(seen: Observed, settings: Settings) -> Ending | None:
    """R28: members without hello after `hello_deadline` are left out; a coordinator that does not answer is the one left out.

    R11: a coordinator that has no storage can take no hello: nobody is blamed for that.
    """
    if seen.attempt_age_seconds < settings.hello_deadline:
        return None
    answer = _coordinators_answer(seen)
    if answer is not None and answer.storage is not None:
        age = min(seen.attempt_age_seconds, answer.storage.age_seconds)
        return _without_storage(seen, settings, age, ask_last=answer.pod_uid)
    absent = _absent(seen, settings)
    if not absent:
        return _without_storage(seen, settings, seen.attempt_age_seconds) if _hanging(seen) else None
    names = ", ".join(f"worker {member.id}" for member in absent)
    why = f"{names} did not take attempt {pods.current_attempt(seen).number} within {settings.hello_deadline:g} s"
    said = _sentences(seen, absent)
    lost = frozenset(member.id for member in absent)
    return Ending("not-delivered", f"{why}; {said}" if said else why, seen.attempt_age_seconds, lost=lost)


def _without_storage(seen: Observed, settings: Settings, age_seconds: float, ask_last: str = "") -> Ending | None:
    """Nobody is given up; `ask_last` does not prepare the next attempt, if there is another."""
    if age_seconds < settings.storage_deadline:
        return None
    number = pods.current_attempt(seen).number
    why = f"attempt {number} got no go within {settings.storage_deadline:g} s, it waited for the storage: {waits_for_storage(seen)}"
    return Ending("storage", why, age_seconds, ask_last=ask_last)


def _absent(seen: Observed, settings: Settings) -> tuple[Member, ...]:
    """Who is left out, by ascending id. Where nobody could say hello, not even the coordinator to itself, it is the coordinator."""
    plan = pods.current_plan(seen)
    head = tuple(member for member in plan.members if member.uid == plan.coordinator.uid)
    if _coordinators_answer(seen) is None:
        return head if seen.doubt.saw_other_node or len(plan.members) == 1 else ()
    if len(_without_hello(seen)) == len(plan.members) and not _hanging(seen):
        return head
    absent = tuple(member for member in _without_hello(seen) if member not in _hanging(seen))
    waits = absent or _hanging(seen) or verifying(seen)
    return head if not waits and seen.attempt_age_seconds >= settings.start_deadline else absent


def _without_hello(seen: Observed) -> tuple[Member, ...]:
    return tuple(member for member, summary in _summaries(seen) if summary is None or summary.state == "absent")


def _hanging(seen: Observed) -> tuple[Member, ...]:
    """Members without hello whose storage does not answer, by their own word."""
    troubles = {member.uid: summary.trouble for member, summary in _summaries(seen) if summary}
    found = ((member, troubles.get(member.uid)) for member in _without_hello(seen))
    return tuple(member for member, trouble in found if trouble is not None and trouble.reason in STORAGE_FAILS)


def _summaries(seen: Observed) -> tuple[tuple[Member, MemberSummary | None], ...]:
    """Each member with what the coordinator says of it, by ascending id; nothing where the coordinator does not speak."""
    answer = _coordinators_answer(seen)
    if answer is None:
        return ()
    said = {summary.uid: summary for summary in answer.members}
    members = sorted(pods.current_plan(seen).members, key=lambda member: member.id)
    return tuple((member, said.get(member.uid)) for member in members)


def _sentences(seen: Observed, those: tuple[Member, ...]) -> str:
    """What these members themselves say that keeps them; they name themselves in it."""
    troubles = {member.id: summary.trouble for member, summary in _summaries(seen) if summary and summary.trouble}
    return "; ".join(troubles[m.id].message for m in those if m.id in troubles)


def _where(member: Member | None) -> str:
    return f"worker {member.id} on node {member.node}" if member else "the coordinator"


def _coordinators_answer(seen: Observed) -> SidecarStatus | None:
    answer = pods.sidecar_of(seen)
    return answer if answer and answer.pod_uid == pods.current_plan(seen).coordinator.uid else None


def _coordinator_silent(seen: Observed, settings: Settings) -> Ending | None:
    """R16: nothing is saved without it. Only where another member answers us: else it is rather we who cannot hear."""
    answer = pods.sidecar_of(seen)
    head = pods.current_plan(seen).coordinator
    if seen.coordinator_age_seconds < settings.coordinator_deadline or _has_finished(seen, head.id):
        return None
    if answer is None or answer.pod_uid == head.uid or seen.sidecar_age_seconds >= LATELY_SECONDS:
        return None
    where = _where(pods.current_plan(seen).member(head.uid))
    why = f"{where} coordinates the saves and did not answer for {settings.coordinator_deadline:g} s, while others do"
    return Ending("not-delivered", why, seen.coordinator_age_seconds, lost=frozenset({head.id}))


def _has_finished(seen: Observed, worker: int) -> bool:
    """R31: whether status says that this worker finished: then it owes nothing."""
    return pods.states(seen).get(worker) == "Finished"


def _not_training(seen: Observed, settings: Settings) -> Ending | None:
    """R7: nothing comes of go, or no step for too long, and nothing else is wrong: a hang. Bytes that reach the storage are no hang."""
    answer = pods.sidecar_of(seen)
    if answer is None or _is_saving(settings, answer) or waits_for_save(seen):
        return None
    what, late, limit = _slowest(seen, settings, answer)
    if late < limit:
        return None
    return Ending("hang", f"{what} for {limit:g} s and nothing else is wrong: the trainers hang", late)


def _slowest(seen: Observed, settings: Settings, answer: SidecarStatus) -> tuple[str, float, float]:
    """What is waited for, for how long already, and for how long at most (seconds): what may take any time has no limit."""
    training = answer.training
    if not training.library:
        return _life(seen, settings, answer)
    if training.phase == "finished":
        return _unfinished(seen, answer), seen.training_age_seconds, math.inf
    if training.phase == "stopped":
        return (
            "the trainers stopped for a save that was not committed",
            seen.training_age_seconds,
            settings.hang_deadline,
        )
    if training.step < 0:
        return "no first step", seen.go_age_seconds, settings.start_deadline
    usual = suspicion.step_limit(training.usual_seconds, settings)
    return "no step", seen.training_age_seconds, max(settings.hang_deadline, usual)


def _unfinished(seen: Observed, answer: SidecarStatus) -> str:
    """R31: the steps are done. What a script does after them may take any time, and nobody can tell it from a hang."""
    done = {summary.uid for summary in answer.members if summary.state == "finished"}
    left = ", ".join(_where(member) for member in pods.current_plan(seen).members if member.uid not in done)
    return f"the steps are done, and the processes of {left} have not ended: they may evaluate, export, or hang"


def _life(seen: Observed, settings: Settings, answer: SidecarStatus) -> tuple[str, float, float]:
    """A script that reports no steps: its last sign of life lies in its start, or later."""
    idle, go = seen.training_age_seconds, seen.go_age_seconds
    what = "no CPU time used and nothing printed"
    is_starting = go - idle < settings.start_deadline
    return (what, min(idle, go), settings.start_deadline) if is_starting else (what, idle, settings.hang_deadline)


def _is_saving(settings: Settings, answer: SidecarStatus) -> bool:
    """Trainers that wait for a save whose bytes advance."""
    if answer.bytes_age_seconds is None or answer.training.phase not in ("saving", *AT_REST):
        return False
    return answer.bytes_age_seconds < settings.hang_deadline
