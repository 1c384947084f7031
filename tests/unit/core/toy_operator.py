"""The operator's edges in the toy: what they remember between passes, and one call for each action of the core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from everstep_operator.core.model import AskLeave, LeavePurpose
from everstep_protocol.messages import PrepareAnswer, SidecarStatus, Sight
from unit.core import toy_prepare, toy_seen
from unit.core.toy_calls import Calls

if TYPE_CHECKING:
    from unit.core.toy_world import World

QUICK = 0.4  # seconds that an answered request takes
HELD = 5.0  # a prepare that is not ready is held so long, then answered `busy`
UNANSWERED = {"Prepare": 10.0, "Announce": 3.0, "AskSight": 3.0, "AskLeave": 3.0, "AskExit": 3.0}
REQUESTS = {
    "Prepare": "PrepareRequest",
    "Announce": "Announce",
    "AskSight": "SightRequest",
    "AskLeave": "LeaveRequest",
    "AskExit": "ExitRequest",
}
WEIGHT = {"ready": 2, "fenced": 2, "wait": 1, "stop": 1, "busy": 0}  # what settles more is kept
VERBS = {
    "WriteStatus": "patch status of job",
    "CreatePod": "create pod",
    "DeletePod": "delete pod",
    "PublishPlan": "patch pod",
    "DeleteJob": "delete job",
}  # fmt: skip


@dataclass
class Errand:
    """A request to a sidecar that is under way."""

    ends_at: float
    is_answered: bool
    action: Any


@dataclass
class Leave:
    """The newest save-and-stop that was asked for."""

    attempt: int
    purpose: LeavePurpose
    first_at: float
    accepted: bool = False


@dataclass
class Operator:
    """Answers and ages; what is known of an older attempt is forgotten with it."""

    calls: Calls = field(default_factory=Calls)
    errands: dict[tuple[object, ...], Errand] = field(default_factory=dict)
    entered: tuple[object, ...] = ()
    entered_at: float = 0.0
    intent: tuple[object, ...] = ()
    prepared: PrepareAnswer | None = None
    prepared_at: float = 0.0
    prepared_by: str = ""
    unanswered: list[str] = field(default_factory=list)
    announced: set[str] = field(default_factory=set)
    sights: dict[str, Sight] = field(default_factory=dict)
    sight_at: dict[str, float] = field(default_factory=dict)
    probed: set[str] = field(default_factory=set)
    heard: dict[str, float] = field(
        default_factory=dict
    )  # node -> when a poll or a probe of a host there was last answered
    plan_id: str = ""
    answer: SidecarStatus | None = None
    answered_at: float = 0.0
    coordinator_at: float = 0.0
    gone_at: float | None = None
    leave: Leave | None = None
    step_written_at: float = 0.0

    # ------------------------------------------------------------ what it remembers

    def look(self, world: World) -> None:
        """Bring everything up to now, before a pass."""
        attempt = world.status.attempt
        entered = (attempt.number, attempt.state) if attempt else ()
        if entered != self.entered:
            if entered[:1] != self.entered[:1]:
                self.announced.clear()
            self.entered, self.entered_at = entered, world.now
        intent = (attempt.number, attempt.intent_id) if attempt else ()
        if intent != self.intent:
            self.intent, self.prepared, self.unanswered = intent, None, []
            self.sights, self.sight_at = {}, {}
        plan_id = attempt.plan.plan_id if attempt and attempt.plan else ""
        if plan_id != self.plan_id:
            self.plan_id, self.answer, self.gone_at = plan_id, None, None
            self.answered_at = self.coordinator_at = world.now
        self.listen(world)
        run = world.current_run()
        heard = toy_seen.answer(world, run) if run else None
        if heard:
            self.answer = heard
            self.gone_at = world.now if heard.gone and self.gone_at is None else self.gone_at

    def listen(self, world: World) -> None:
        """Probes; the long poll, and those of the others while the coordinator is silent."""
        for p in world.pods.values():
            if p.view.uid in self.probed and toy_seen.is_reached(world, p):
                self.heard[p.view.node] = world.now
        run = world.current_run()
        if run is None:
            return
        for uid in (run.coordinator, *(m.uid for m in run.others())):
            p = world.pod(uid)
            if p and p.obeys == run.plan.attempt and world.hears(uid, "PollRequest"):
                self.answered_at = self.heard[p.view.node] = world.now
                if uid == run.coordinator:
                    self.coordinator_at = world.now
                return

    def leave_age(self, attempt: int, now: float) -> float | None:
        """Since save-and-stop of this attempt was tried first."""
        return now - self.leave.first_at if self.leave and self.leave.attempt == attempt else None

    def leave_purpose(self, attempt: int) -> LeavePurpose:
        """What for."""
        return self.leave.purpose if self.leave and self.leave.attempt == attempt else ""

    @property
    def leave_accepted(self) -> bool:
        return self.leave is None or self.leave.accepted

    # ------------------------------------------------------------ what it does

    def call_api(self, world: World, kind: str, target: str, effect: Callable[[], None]) -> bool:
        """One call, if its pause is over. False: it was refused, or is not due."""
        key = ("api", VERBS[kind], target)
        if not self.calls.is_due(key, world.now):
            return False
        self.calls.made_at(kind, target, world.now)
        if kind in world.silence.refused:
            self.calls.fails(key, kind, target, world.now)
            return False
        self.calls.succeeds(key)
        effect()
        return True

    def send(self, world: World, action: Any) -> None:
        """A request to a sidecar: one of a kind at a time; its end wakes the actor."""
        kind = type(action).__name__
        key = (kind, action.uid, *_about(action))
        if key in self.errands or not self.calls.is_due(key, world.now):
            return
        self.calls.made_at(kind, action.uid, world.now)
        is_answered = world.hears(action.uid, REQUESTS[kind])
        seconds = QUICK if is_answered else UNANSWERED[kind]
        if isinstance(action, AskLeave):
            self._note_leave(world, action)
        elif kind == "Prepare" and is_answered and toy_prepare.is_busy(world, action):
            seconds = HELD
        self.errands[key] = Errand(world.now + seconds, is_answered, action)

    def _note_leave(self, world: World, action: AskLeave) -> None:
        known = self.leave
        if known and (known.attempt, known.purpose) == (action.attempt, action.purpose) and not known.accepted:
            return
        self.leave = Leave(action.attempt, action.purpose, world.now)

    def next_end(self) -> float:
        """When the next request ends."""
        return min((errand.ends_at for errand in self.errands.values()), default=1e9)

    def finish(self, world: World) -> None:
        """Requests whose time has come."""
        for key, errand in [item for item in self.errands.items() if item[1].ends_at <= world.now]:
            del self.errands[key]
            kind, uid = str(key[0]), str(key[1])
            if errand.is_answered:
                self.calls.succeeds(key)
                getattr(self, f"_end_{kind}")(world, errand.action)
            else:
                self.calls.fails(key, kind, uid, world.now)
                if kind == "Prepare" and _about(errand.action) == self.intent:
                    self.unanswered = [u for u in self.unanswered if u != uid] + [uid]
            world.wake()

    def _end_Prepare(self, world: World, action: Any) -> None:  # noqa: N802 - named after the action
        answer = toy_prepare.prepare(world, action)
        if not answer or (answer.attempt, answer.intent_id) != self.intent:
            return
        is_less = self.prepared is not None and WEIGHT[self.prepared.outcome] > WEIGHT[answer.outcome]
        is_of_use = not (is_less and self.prepared_by != action.uid)
        self.unanswered = [uid for uid in self.unanswered if uid != action.uid]
        if not is_of_use or answer.outcome == "wait":
            self.unanswered.append(action.uid)
        if is_of_use:
            self.prepared, self.prepared_at, self.prepared_by = answer, world.now, action.uid
            for sight in answer.sights:
                self._take(world, sight)

    def _end_Announce(self, world: World, action: Any) -> None:  # noqa: N802
        p = world.pod(action.uid)
        if p and action.plan:
            p.obeys = max(p.obeys, action.attempt)
            if self.entered[:1] == (action.attempt,):
                self.announced.add(action.uid)

    def _end_AskSight(self, world: World, action: Any) -> None:  # noqa: N802
        p = world.pod(action.uid)
        if p and self.intent == _about(action):
            self._take(world, toy_prepare.sight(world, p, action.attempt, action.raised_by))

    def _take(self, world: World, sight: Sight) -> None:
        self.sights[sight.uid], self.sight_at[sight.uid] = sight, world.now

    def _end_AskLeave(self, world: World, action: Any) -> None:  # noqa: N802
        run = world.current_run()
        if self.leave and (self.leave.attempt, self.leave.purpose) == (action.attempt, action.purpose):
            self.leave.accepted = True
        if run and run.plan.attempt == action.attempt and run.leave_until is None and not run.over:
            run.leave_until = world.now + action.deadline_seconds

    def _end_AskExit(self, world: World, action: Any) -> None:  # noqa: N802
        p = world.pod(action.uid)
        if p:
            p.is_exiting = True


def _about(action: Any) -> tuple[object, ...]:
    """What tells one request to a pod from another of its kind."""
    if hasattr(action, "request"):
        return (action.request.attempt, action.request.intent_id)
    return (action.attempt, getattr(action, "intent_id", getattr(action, "purpose", "")))
