"""What each HTTP path does: checks that a message is of the attempt that this pod obeys, then hands it on."""

from __future__ import annotations

from everstep_protocol.messages import (
    Ack,
    Announce,
    Exited,
    ExitRequest,
    Hello,
    HelloAnswer,
    LeaveRequest,
    MemberState,
    Ping,
    PollRequest,
    PrepareRequest,
    SaveAnswer,
    SaveNotice,
    SidecarStatus,
    Sight,
    SightRequest,
    StopAnswer,
    StopOrder,
)

from everstep_sidecar.agent import Agent
from everstep_sidecar.coordinator import Coordinator
from everstep_sidecar.loop_watch import LoopWatch
from everstep_sidecar.pod import Pod
from everstep_sidecar.prepare import Prepare
from everstep_sidecar.server import PLAN_BODY_BYTES, Rejected, Route
from everstep_sidecar.status import build_status, public

HELLO_HELD_SECONDS = 20.0
PLAN_SECONDS = 10.0  # how long a hello waits for this pod's own plan
LONGEST_POLL_SECONDS = 300.0


class Routes:
    """The handlers. Each answer carries the highest attempt, also a refusal (R23)."""

    def __init__(self, pod: Pod, agent: Agent, watch: LoopWatch) -> None:
        self._pod = pod
        self._agent = agent
        self._watch = watch

    def table(self) -> dict[str, Route]:
        """Path -> route."""
        return {
            "/v1/prepare": Route(PrepareRequest, Prepare(self._pod, self._agent).handle, "operator", PLAN_BODY_BYTES),
            "/v1/sight": Route(SightRequest, self.sight, "job"),
            "/v1/announce": Route(Announce, self.announce, "job", PLAN_BODY_BYTES),
            "/v1/hello": Route(Hello, self.hello, "job"),
            "/v1/save": Route(SaveNotice, self.save, "member"),
            "/v1/exited": Route(Exited, self.exited, "member"),
            "/v1/state": Route(MemberState, self.state, "member"),
            "/v1/stop": Route(StopOrder, self.stop, "member"),
            "/v1/leave": Route(LeaveRequest, self.leave, "operator"),
            "/v1/exit": Route(ExitRequest, self.exit, "operator"),
            "/v1/poll": Route(PollRequest, self.poll, "operator"),
            "/v1/ping": Route(Ping, self.ping, "job"),
        }

    def is_member(self, uid: str) -> bool:
        """R22: whether a pod is in the plan that this pod obeys."""
        return self._agent.plan is not None and self._agent.plan.member(uid) is not None

    def status(self) -> SidecarStatus:
        """Now."""
        return build_status(self._pod, self._agent, self._watch)

    def public_status(self) -> SidecarStatus:
        """Now, for whoever asks."""
        return public(self.status())

    async def sight(self, sender: str, message: SightRequest) -> Sight:
        """R11."""
        return await self._agent.sights.handle(sender, message)

    async def announce(self, sender: str, message: Announce) -> Ack:
        """R23."""
        return await self._agent.announce(message)

    async def hello(self, sender: str, message: Hello) -> HelloAnswer:
        """R7: the asker may have its plan some milliseconds before this pod has it."""
        self._agent.heard(message.attempt)
        await self._pod.changes.wait(
            lambda: self._obeys(message.attempt) or self._is_old(message.attempt), PLAN_SECONDS
        )
        coordinator = self._coordinator(message.attempt, message.plan_id)
        if not self.is_member(sender):
            raise Rejected(403, f"pod {sender} is not in the plan of attempt {message.attempt}")
        answer = await coordinator.hello(sender, message, HELLO_HELD_SECONDS)
        if answer is None or self._agent.coordinator is not coordinator:
            raise Rejected(503, "other members have not said hello yet; ask again")
        return answer

    async def save(self, sender: str, message: SaveNotice) -> SaveAnswer:
        """A member's notice of a save."""
        coordinator = self._coordinator(message.attempt, message.plan_id)
        coordinator.hear(sender)
        return await coordinator.commits.hear(sender, message)

    async def exited(self, sender: str, message: Exited) -> Ack:
        """R32."""
        return self._coordinator(message.attempt).exited(sender, message)

    async def state(self, sender: str, message: MemberState) -> Ack:
        """A member's word about itself."""
        return self._coordinator(message.attempt).state(sender, message)

    async def stop(self, sender: str, message: StopOrder) -> StopAnswer:
        """R19: only the coordinator of the attempt that runs here may order it."""
        plan = self._agent.plan
        if plan is None or self._agent.run is None or plan.attempt != message.attempt:
            raise Rejected(409, f"attempt {message.attempt} does not run here")
        if plan.coordinator.uid != sender:
            raise Rejected(403, f"pod {sender} is not the coordinator of attempt {message.attempt}")
        return self._agent.stop_order(message)

    async def leave(self, sender: str, message: LeaveRequest) -> Ack:
        """R19."""
        return self._coordinator(message.attempt).leave(message.deadline_seconds)

    async def exit(self, sender: str, message: ExitRequest) -> Ack:
        """The job has failed."""
        if self._is_old(message.attempt):
            raise Rejected(409, f"attempt {message.attempt} is over, attempt {self._pod.highest} exists")
        self._agent.exit(message.why)
        return self._pod.ack()

    async def poll(self, sender: str, message: PollRequest) -> SidecarStatus:
        """R13: condemned ids count only for the coordinator of the highest attempt. The answer is made when it is sent."""
        plan, coordinator = self._agent.plan, self._agent.coordinator
        if coordinator and plan and plan.attempt == message.attempt == self._pod.highest:
            coordinator.commits.condemn(message.condemned)
        changes = self._pod.changes
        seconds = min(max(message.wait_seconds, 0.0), LONGEST_POLL_SECONDS)
        await changes.wait(lambda: changes.version != message.version, seconds)
        return self.status()

    async def ping(self, sender: str, message: Ping) -> Ack:
        """R23."""
        self._agent.heard(message.highest)
        return self._pod.ack()

    def _obeys(self, attempt: int) -> bool:
        return self._agent.plan is not None and self._agent.plan.attempt == attempt

    def _is_old(self, attempt: int) -> bool:
        return attempt < self._pod.highest

    def _coordinator(self, attempt: int, plan_id: str | None = None) -> Coordinator:
        """Raises Rejected for another attempt than the one that this pod coordinates: a ghost of an older one, mostly (R22)."""
        plan, coordinator = self._agent.plan, self._agent.coordinator
        if self._is_old(attempt):
            raise Rejected(409, f"attempt {attempt} is over, attempt {self._pod.highest} exists")
        if plan is None or coordinator is None or plan.attempt != attempt:
            raise Rejected(409, f"this pod does not coordinate attempt {attempt}")
        if plan_id is not None and plan_id != plan.plan_id:
            raise Rejected(409, f"attempt {attempt} has another plan here")
        return coordinator
