"""A toy cluster: it applies Actions to its parts, gives `Observed` back, and asserts PROTOCOL's invariants at each write.

One pod fits on a node. Time is simulated: the parts work once a second (`toy_life`), the operator looks when something wakes it or
when it asked to (`toy_operator`). Any part may be silent for ever (`toy_parts.Silence`). Nothing here knows how `decide` works.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from everstep_operator.core.decide import decide
from everstep_operator.core.model import Decision, JobSpec, JobStatus, Observed, WriteStatus
from everstep_protocol.messages import Trouble
from everstep_protocol.plan import Resume
from unit.core import toy_done, toy_life, toy_prepare, toy_rules, toy_seen
from unit.core.jobs import SETTINGS, spec
from unit.core.toy_happenings import Happenings
from unit.core.toy_operator import Operator
from unit.core.toy_parts import Node, Pod, Run, Silence, Storage

COALESCED = 0.05  # the actor's least pause
LEAST_AFTER_FAILURE = 2.0
RESYNC = 30.0


@dataclass
class World(Happenings):
    job: JobSpec = field(default_factory=spec)
    generation: int = 1
    until: int = 10_000
    library: bool = True  # the script has an everstep.Checkpointer
    now: float = 0.0
    next_tick: float = 1.0
    next_pass: float = 0.0
    may_look_at: float = 0.0
    status: JobStatus = field(default_factory=JobStatus)
    version: int = 0
    said: Any = None
    pods: dict[str, Pod] = field(default_factory=dict)
    by_uid: dict[str, Pod] = field(default_factory=dict)  # every pod that ever was
    nodes: dict[str, Node] = field(default_factory=lambda: {f"n{i}": Node(f"n{i}") for i in range(4)})
    speaking: dict[str, bool] = field(default_factory=dict)  # `speaks`, until something happens
    places: dict[str, Storage] = field(default_factory=lambda: {"shared": Storage()})
    looks: dict[tuple[int, str, str], float] = field(default_factory=dict)  # prepares that hang, since when
    silence: Silence = field(default_factory=Silence)
    operator: Operator = field(default_factory=Operator)
    run: Run | None = None
    plans: dict[int, str] = field(default_factory=dict)  # attempt -> plan ID, for ever
    answers: set[tuple[int, Resume]] = field(default_factory=set)
    created: int = 0
    intents: int = 0
    passes: int = 0
    gone: bool = False
    most: int = 4  # max workers that were ever wanted
    last: Decision | None = None
    visible: Any = None

    # ------------------------------------------------------------ who can do what

    def pod(self, uid: str) -> Pod | None:
        """The pod with this UID."""
        p = self.by_uid.get(uid)
        return p if p is not None and self.pods.get(p.view.name) is p else None

    def is_up(self, uid: str) -> bool:
        """Whether its processes run and its network lives."""
        p = self.pod(uid)
        return p is not None and self._runs(p)

    def _runs(self, p: Pod) -> bool:
        return p.view.phase == "Running" and p.view.node in self.nodes and self.nodes[p.view.node].up

    def speaks(self, uid: str) -> bool:
        """Whether its sidecar answers anybody."""
        known = self.speaking.get(uid)
        if known is None:
            p = self.pod(uid)
            known = p is not None and p.view.worker_id not in self.silence.sidecars and self._runs(p)
            self.speaking[uid] = known
        return known

    def hears(self, uid: str, request: str) -> bool:
        """Whether the operator's request gets an answer."""
        return self.speaks(uid) and not self.silence.withholds(request) and not self.silence.cut_off

    def arrives(self, request: str, uid: str, run: Run) -> bool:
        """Whether a member's request gets to the coordinator; its own needs no network."""
        return not self.silence.withholds(request) or uid == run.coordinator

    def hears_launcher(self, p: Pod | None, *messages: str) -> bool:
        """Whether a pod's sidecar and its launcher can say this to each other."""
        is_withheld = self.silence.withholds(*messages)
        if p is None or p.container_ended_at is not None or p.view.worker_id in self.silence.launchers:
            return False
        return self.speaks(p.view.uid) and not is_withheld

    def has_kubelet(self, node: str) -> bool:
        return node in self.nodes and self.nodes[node].up and node not in self.silence.kubelets

    def is_ready(self, node: str) -> bool:
        """As the API server says: it believes a silent kubelet for 40 s."""
        return self.has_kubelet(node) or self.now - self.nodes[node].changed_at < toy_seen.LEASE_SECONDS

    def storage_of(self, node: str) -> Storage:
        """What the mount of a node shows."""
        return self.places.setdefault(node, Storage()) if node in self.silence.apart else self.places["shared"]

    def can_write(self, node: str) -> bool:
        return node not in self.silence.hanging and not self.silence.full

    def trouble_of(self, p: Pod | None) -> Trouble | None:
        """What keeps a pod from its part in the attempt that it obeys."""
        return toy_prepare.storage_trouble(self, p, p.obeys) if p else None

    def current_run(self) -> Run | None:
        """The run of the attempt that status speaks of, while it is to run."""
        attempt = self.status.attempt
        if self.run is None or attempt is None or attempt.state not in ("Planned", "Started"):
            return None
        return self.run if self.run.plan.attempt == attempt.number else None

    # ------------------------------------------------------------ the operator's loop

    def observe(self) -> Observed:
        return toy_seen.observe(self)

    def wake(self) -> None:
        """Something happened that the operator hears of."""
        self.next_pass = min(self.next_pass, max(self.now, self.may_look_at))

    def tick(self) -> None:
        """A second of everybody's work."""
        self.now = max(self.now, self.next_tick)
        self.next_tick = self.now + 1.0
        self.speaking.clear()
        toy_life.tick(self)
        self.speaking.clear()
        self.operator.finish(self)
        self.operator.listen(self)
        visible = self._visible()
        if visible != self.visible:
            self.visible = visible
            self.wake()

    def _visible(self) -> tuple[object, ...]:
        """What an answer to a poll, a watch or a probe would tell anew; steps and ages wake nobody."""
        nodes = tuple(self.is_ready(name) for name in self.nodes)
        cut = tuple(toy_seen.is_cut(self, p) for p in self.pods.values())
        run = self.current_run()
        if run is None:
            return nodes, cut
        heard = tuple(self.hears(m.uid, "PollRequest") for m in run.plan.members)
        first = run.step > run.plan.resume.step
        told = (
            run.gone,
            first,
            run.over,
            run.finished,
            run.is_stopped,
            run.failing and run.failing.reason,
            run.committed_at,
        )
        return nodes, cut, heard, told, len(run.hellos)

    def step(self) -> Decision:
        """One pass."""
        self.passes += 1
        self.speaking.clear()
        seen = self.observe()
        decision = decide(seen, SETTINGS)
        self.operator.probed = {a.uid for a in decision.actions if type(a).__name__ == "Probe"}
        pause, least = self._carry_out(decision, self.version)
        self.may_look_at = self.now + least
        self.next_pass = self.now + max(pause, least)
        toy_rules.check_pods(self)
        toy_rules.check_words(decision)
        self.last = decision
        return decision

    def apply(self, decision: Decision, version: int) -> None:
        """Each action by itself: one that fails keeps no other back."""
        toy_done.apply(self, decision, version)

    def _carry_out(self, decision: Decision, version: int) -> tuple[float, float]:
        """Seconds until the next pass if nothing wakes, and at least."""
        written = [action for action in decision.actions if isinstance(action, WriteStatus)]
        status = written[0].status if written else self.status
        said = (decision.phase, decision.reason, decision.message, decision.conditions)
        if (status != self.status or said != self.said) and not self._report(status, version, said):
            return self.operator.calls.next_try(self.now) - self.now, LEAST_AFTER_FAILURE
        if written:
            return 0.0, COALESCED
        self.apply(decision, version)
        wanted = RESYNC if decision.requeue_after is None else decision.requeue_after
        return min(wanted, RESYNC, self.operator.calls.next_try(self.now) - self.now), COALESCED

    def _report(self, status: JobStatus, version: int, said: Any) -> bool:
        """Write status and conditions. False: refused."""

        def effect() -> None:
            self.said = said
            if status != self.status:
                toy_done.write(self, status, version)

        return self.operator.call_api(self, "WriteStatus", "gpt", effect)

    def advance(self, seconds: float) -> None:
        """Time passes: parts work, requests end, the operator looks when it is due."""
        until = self.now + seconds
        while True:
            end = self.operator.next_end()
            at = min(self.next_tick, self.next_pass, end)
            if at > until:
                break
            self.now = max(self.now, at)
            if at == end:
                self.speaking.clear()
                self.operator.finish(self)
            elif at == self.next_tick:
                self.tick()
            else:
                self.step()
        self.now = until

    def settle(self, ticks: int = 90) -> Decision:
        """Time passes, nothing new goes wrong."""
        self.advance(ticks)
        return self.step() if self.last is None or self.last.actions else self.last
