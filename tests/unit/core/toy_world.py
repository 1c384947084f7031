"""A toy cluster: it applies Actions to a dict, gives `Observed` back, and asserts PROTOCOL's invariants at every write.

One pod fits on a node. A second of the toy's time passes in `tick`; faults are methods. Nothing here knows how `decide` works.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from everstep_operator.core.decide import decide
from everstep_operator.core.model import (
    Announce,
    AskLeave,
    AskSight,
    CreatePod,
    Decision,
    DeleteJob,
    DeletePod,
    Doubt,
    JobSpec,
    JobStatus,
    Network,
    NodeView,
    Observed,
    PodView,
    Prepare,
    Probe,
    PublishPlan,
    WriteStatus,
)
from everstep_protocol.lineage import cut, is_on
from everstep_protocol.messages import (
    CheckpointInfo,
    MemberSummary,
    Over,
    PrepareAnswer,
    PrepareRequest,
    SidecarStatus,
    Sight,
    Training,
)
from everstep_protocol.plan import Plan, Resume
from unit.core.jobs import NOW, SETTINGS, pod, spec

STEPS_PER_TICK = 2
STEPS_PER_SAVE = 4


@dataclass
class Node:
    up: bool = True
    changed_at: int = -1000  # tick


@dataclass
class Pod:
    view: PodView
    avoid: tuple[str, ...]
    obeys: int = 0  # attempt whose plan it obeys
    deleted_at: int | None = None
    grace: int = 5


@dataclass
class Run:
    """The attempt that got go."""

    plan: Plan
    step: int
    gone: bool = False
    leave_at: int | None = None
    over: Over | None = None
    finished: bool = False
    still: int = 0  # ticks without a step


@dataclass
class World:
    job: JobSpec = field(default_factory=spec)
    generation: int = 1
    until: int = 10_000
    tick_number: int = 0
    status: JobStatus = field(default_factory=JobStatus)
    version: int = 0
    pods: dict[str, Pod] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=lambda: {f"n{i}": Node() for i in range(4)})
    fences: dict[int, str] = field(default_factory=dict)
    checkpoints: dict[str, CheckpointInfo] = field(default_factory=dict)
    answer: PrepareAnswer | None = None
    announced: set[str] = field(default_factory=set)
    sights: dict[str, Sight] = field(default_factory=dict)
    run: Run | None = None
    entered: tuple[Any, int] = (None, 0)
    plans: dict[int, str] = field(default_factory=dict)  # attempt -> plan ID, for ever
    answers: set[tuple[int, Resume]] = field(default_factory=set)
    created: int = 0
    intents: int = 0
    gone: bool = False
    most: int = 4  # max workers that were ever wanted

    # ------------------------------------------------------------ what the operator sees

    def observe(self) -> Observed:
        self.intents += 1
        attempt = self.status.attempt
        key = (attempt.number, attempt.state, attempt.intent_id) if attempt else None
        if key != self.entered[0]:
            self.entered = (key, self.tick_number)
        answer = self.answer
        if answer and (not attempt or (answer.attempt, answer.intent_id) != (attempt.number, attempt.intent_id)):
            answer = None
        return Observed(
            uid="job",
            name="gpt",
            namespace="d",
            generation=self.generation,
            deleting=False,
            spec=self.job,
            problems=(),
            status=self.status,
            pods=tuple(self._view(p) for p in self.pods.values()),
            nodes={name: self._node(name) for name in self.nodes},
            sidecar=self._sidecar(),
            sidecar_age_seconds=0.1,
            training_age_seconds=0.1 + (self.run.still if self.run else 0),
            networks={p.view.uid: self._network(p) for p in self.pods.values() if p.view.ip},
            doubt=Doubt(True, True, 0.0, 0.0),
            prepare=answer,
            prepare_failed=(),
            attempt_age_seconds=float(self.tick_number - self.entered[1]),
            go_age_seconds=float(self.tick_number - self.entered[1]),
            leave_age_seconds=self._leave_age(),
            now=NOW + self.tick_number,
            new_intent=f"i{self.intents}",
            announced=tuple(sorted(self.announced)),
            gone_pods=self._gone_pods(),
            sights=dict(self.sights),
        )

    def _gone_pods(self) -> frozenset[str]:
        plan = self.status.attempt.plan if self.status.attempt else None
        there = {p.view.uid for p in self.pods.values()}
        return frozenset(member.uid for member in plan.members if member.uid not in there) if plan else frozenset()

    def _leave_age(self) -> float | None:
        asked = self.run.leave_at if self.run and self._is_current(self.run) else None
        return None if asked is None else float(self.tick_number - asked)

    def _is_current(self, run: Run) -> bool:
        return self.status.attempt is not None and self.status.attempt.number == run.plan.attempt

    def _view(self, p: Pod) -> PodView:
        age = None if p.deleted_at is None else float(self.tick_number - p.deleted_at)
        return replace(
            p.view, deletion_age_seconds=age, deletion_grace_seconds=float(p.grace) if age is not None else None
        )

    def _node(self, name: str) -> NodeView:
        node = self.nodes[name]
        age = float(self.tick_number - node.changed_at)
        dead = 0.0 if node.up else age
        return NodeView(name, dead < 40, dead >= 40, False, False, dead, 40.0, age if node.up else 0.0)

    def _network(self, p: Pod) -> Network:
        node = self.nodes.get(p.view.node)
        if node is None or node.up or self.tick_number - node.changed_at < 3:
            return Network(0, 3, 0, False)
        return Network(3, 3, 2, False)

    def _sidecar(self) -> SidecarStatus | None:
        attempt = self.status.attempt
        if self.run is None or attempt is None or self.run.plan.attempt != attempt.number:
            return None
        run = self.run
        talking = [m for m in run.plan.members if self._is_alive(m.uid)]
        if not talking:
            return None
        first = run.plan.resume.step
        training = Training(True, run.step if run.step > first else -1, float(run.still), 0.1, "training")
        return SidecarStatus(
            1, "v", talking[0].uid, run.plan.attempt, run.plan.attempt, run.plan.plan_id, "coordinator", run.gone, run.finished, 0.0,
            training,
            tuple(MemberSummary(m.uid, "ready" if self._obeys(m.uid) else "absent", 0, 0) for m in run.plan.members),
            over=run.over,
            checkpoints=tuple(self.checkpoints.values()),
            deleted=tuple(i for i in self.status.checkpoints.condemned if i not in self.checkpoints),
        )  # fmt: skip

    def _is_alive(self, uid: str) -> bool:
        return any(
            p.view.uid == uid and p.view.phase == "Running" and self.nodes[p.view.node].up for p in self.pods.values()
        )

    def _obeys(self, uid: str) -> bool:
        assert self.run
        return any(
            p.view.uid == uid and p.obeys == self.run.plan.attempt for p in self.pods.values()
        ) and self._is_alive(uid)

    # ------------------------------------------------------------ what the operator does

    def apply(self, decision: Decision, version: int) -> None:
        for action in decision.actions:
            self._apply(action, version)

    def _apply(self, action: Any, version: int) -> None:
        if isinstance(action, WriteStatus):
            self._write(action.status, version)
        elif isinstance(action, CreatePod):
            self._create(action)
        elif isinstance(action, DeletePod):
            self._delete(action)
        elif isinstance(action, PublishPlan):
            self._publish(action)
        elif isinstance(action, Announce):
            self._announce(action)
        elif isinstance(action, Prepare):
            self._prepare(action)
        elif isinstance(action, Probe):
            pass  # `_network` tells of every pod
        elif isinstance(action, AskSight):
            if self._is_alive(action.uid):
                self.sights[action.uid] = Sight(action.uid, None, launcher=True)
        elif isinstance(action, AskLeave):
            if (
                self.run
                and self.run.plan.attempt == action.attempt
                and self._is_alive(action.uid)
                and self.run.leave_at is None
            ):
                self.run.leave_at = self.tick_number
        else:
            assert isinstance(action, DeleteJob)
            self.gone = True

    def _write(self, status: JobStatus, version: int) -> None:
        if version != self.version:  # 409
            return
        self._check(self.status, status)
        if status.attempt and self.status.attempt and status.attempt.number != self.status.attempt.number:
            self.announced.clear()
            self.sights.clear()
        self.status, self.version = status, version + 1

    def _check(self, old: JobStatus, new: JobStatus) -> None:
        """PROTOCOL's invariants, at the only place where they could be broken."""
        assert new != old, "a write that writes nothing"
        attempt = new.attempt
        assert attempt is not None
        if old.attempt:
            assert attempt.number >= old.attempt.number, "attempt numbers only grow"
        assert new.next_worker_id >= old.next_worker_id, "worker ids only grow"
        assert not {row.id for row in new.workers} & set(range(old.next_worker_id)) - {row.id for row in old.workers}, (
            "an id came back"
        )
        live = [row for row in new.workers if row.state in ("Wanted", "Joined")]
        assert attempt.state != "Preparing" or len(live) <= self.job.max_workers
        if attempt.plan:
            plan = attempt.plan
            assert self.plans.setdefault(plan.attempt, plan.plan_id) == plan.plan_id, "two plans with one number"
            assert (plan.attempt, plan.resume) in self.answers, "a resume that prepare did not give"
            assert self.job.min_workers <= len(plan.members) or old.attempt == attempt or attempt.state == "Started"
            assert plan.resume.id not in new.checkpoints.condemned or not plan.resume.id, "the resume was condemned"
        if attempt.state == "Preparing":
            assert set(new.checkpoints.condemned) <= set(old.checkpoints.condemned), "condemned while Preparing"
        left = [c for c in self.checkpoints.values() if c.id not in new.checkpoints.condemned]
        on = [c for c in left if is_on(new.lineage, (c.attempt, c.step), current=new.last_attempt)]
        assert len(on) >= min(2, len(self.checkpoints), self._num_on(old, new)), "fewer than two were kept"

    def _num_on(self, old: JobStatus, new: JobStatus) -> int:
        kept = [c for c in self.checkpoints.values() if c.id not in old.checkpoints.condemned]
        return sum(is_on(new.lineage, (c.attempt, c.step), current=new.last_attempt) for c in kept)

    def _create(self, action: CreatePod) -> None:
        name = f"gpt-w{action.worker_id}"
        if name in self.pods:
            return
        self.created += 1
        view = pod(
            action.worker_id, name=name, uid=f"u{action.worker_id}.{self.created}", ip="", node="", phase="Pending",
            sidecar_running=False, plan_attempt=0, avoid=action.avoid, age_seconds=0.0,
        )  # fmt: skip
        self.pods[name] = Pod(view, action.avoid)

    def _delete(self, action: DeletePod) -> None:
        p = self.pods.get(action.name)
        if p is None or p.view.uid != action.uid or p.deleted_at is not None:
            return
        p.deleted_at = self.tick_number
        if not p.view.node or action.force:
            del self.pods[action.name]

    def _publish(self, action: PublishPlan) -> None:
        p = self.pods.get(action.name)
        if p and p.view.uid == action.uid and p.view.plan_attempt == action.seen_attempt < action.plan.attempt:
            p.view = replace(p.view, plan_attempt=action.plan.attempt)

    def _announce(self, action: Announce) -> None:
        for p in self.pods.values():
            if p.view.uid == action.uid and self._is_alive(action.uid) and action.plan:
                p.obeys = max(p.obeys, action.attempt)
                self.announced.add(action.uid)

    def _prepare(self, action: Prepare) -> None:
        if not self._is_alive(action.uid):
            return
        request = action.request
        higher = max(self.fences, default=0)
        if higher > request.attempt or self.fences.get(request.attempt, request.intent_id) != request.intent_id:
            self.answer = self._answered(request, "fenced", higher, Resume("none"), ())
            return
        self.fences[request.attempt] = request.intent_id
        if self.run and self.run.plan.attempt < request.attempt:
            self.run = None  # the fence took its commits away
        self.answer = self._choose(request)

    def _choose(self, request: PrepareRequest) -> PrepareAnswer:
        on = [
            c
            for c in self.checkpoints.values()
            if is_on(request.lineage, (c.attempt, c.step), current=request.last_attempt)
            and c.id not in request.condemned
        ]
        assert on or not request.ever, "a job that had a checkpoint would start at 0"
        best = max(on, key=lambda c: (c.attempt, c.step), default=None)
        resume = Resume("checkpoint", best.id, best.dir, best.attempt, best.step) if best else Resume("none")
        self.answers.add((request.attempt, resume))
        return self._answered(
            request, "ready", request.attempt, resume, cut(request.lineage, (resume.attempt, resume.step))
        )

    def _answered(
        self, request: PrepareRequest, outcome: Any, highest: int, resume: Resume, lineage: Any
    ) -> PrepareAnswer:
        return PrepareAnswer(
            request.attempt,
            request.intent_id,
            outcome,
            "Newest",
            "",
            highest,
            resume,
            lineage,
            tuple(self.checkpoints.values()),
        )

    # ------------------------------------------------------------ what happens by itself

    def tick(self) -> None:
        self.tick_number += 1
        for name in list(self.pods):
            self._kubelet(name)
        self._train()
        for number in self.status.checkpoints.condemned:
            self.checkpoints.pop(number, None)

    def _kubelet(self, name: str) -> None:
        p = self.pods[name]
        if not p.view.node:
            self._schedule(p)
        elif not self.nodes[p.view.node].up:
            return
        elif p.deleted_at is not None and self.tick_number - p.deleted_at >= p.grace:
            del self.pods[name]
        elif p.deleted_at is None:
            p.obeys = max(p.obeys, p.view.plan_attempt)
            p.view = replace(p.view, phase="Running", sidecar_running=True, ip=f"10.{p.view.worker_id}.0.1")

    def _schedule(self, p: Pod) -> None:
        taken = {other.view.node for other in self.pods.values()}
        free = [name for name in self.nodes if name not in taken and name not in p.avoid and self._node(name).ready]
        p.view = replace(p.view, node=free[0], unschedulable="") if free else replace(p.view, unschedulable="no room")

    def _train(self) -> None:
        attempt = self.status.attempt
        if (
            attempt
            and attempt.plan
            and attempt.state in ("Planned", "Started")
            and (not self.run or not self._is_current(self.run))
        ):
            self.run = Run(attempt.plan, attempt.plan.resume.step)
        run = self.run
        if run is None or run.over or run.finished or not self._is_current(run):
            return
        if not run.gone:
            run.gone = all(self._obeys(m.uid) for m in run.plan.members)
        elif all(self._obeys(m.uid) for m in run.plan.members):
            self._step(run)
        else:
            run.still += 1

    def _step(self, run: Run) -> None:
        run.still = 0
        run.step += STEPS_PER_TICK
        if run.leave_at is not None or run.step % STEPS_PER_SAVE == 0 or run.step >= self.until:
            number = f"c{run.plan.attempt}-{run.step}"
            self.checkpoints[number] = CheckpointInfo(number, f"step_{run.step}", run.plan.attempt, run.step, 1)
        if run.step >= self.until:
            run.finished = True
        elif run.leave_at is not None:
            run.over = Over("stopped", "stopped", step=run.step)

    # ------------------------------------------------------------ faults

    def power_off(self, name: str) -> None:
        if self.nodes[name].up:
            self.nodes[name] = Node(False, self.tick_number)

    def boot(self, name: str) -> None:
        if not self.nodes[name].up:
            self.nodes[name] = Node(True, self.tick_number)
            for p in self.pods.values():
                if p.view.node == name and p.view.ip:
                    p.obeys = 0
                    p.view = replace(p.view, ip=p.view.ip[:-1] + "2")

    def crash(self) -> None:
        if self.run and self.run.gone and not self.run.over and not self.run.finished:
            self.run.over = Over("crash", "crash", uid=self.run.plan.members[0].uid)

    def evict(self, index: int) -> None:
        names = sorted(self.pods)
        if names:
            p = self.pods[names[index % len(names)]]
            if p.deleted_at is None:
                p.deleted_at = self.tick_number
                if not p.view.node:
                    del self.pods[p.view.name]

    def change(self, **changes: Any) -> None:
        self.job = replace(self.job, **changes)
        self.generation += 1
        self.version += 1  # a spec edit gives a new resourceVersion too
        self.most = max(self.most, self.job.max_workers)

    # ------------------------------------------------------------ the operator's loop

    def step(self) -> Decision:
        """One pass."""
        decision = decide(self.observe(), SETTINGS)
        self.apply(decision, self.version)
        self._check_pods()
        return decision

    def _check_pods(self) -> None:
        """Pods never exceed max, those that leave apart."""
        counted = {row.id for row in self.status.workers if row.state in ("Wanted", "Joined")}
        stay = [p for p in self.pods.values() if p.deleted_at is None and p.view.worker_id in counted]
        assert len(stay) <= self.most, "more pods than max"

    def settle(self, ticks: int = 90) -> Decision:
        """Time passes, nothing new goes wrong."""
        for _ in range(ticks):
            self.tick()
            for _ in range(6):
                decision = self.step()
                if not decision.actions:
                    break
        return decision
