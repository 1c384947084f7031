"""How a member asks the coordinator: over HTTP, or by a call where it is the coordinator itself."""

from __future__ import annotations

from everstep_protocol.messages import (
    Ack,
    Exited,
    Hello,
    HelloAnswer,
    MemberState,
    Peer,
    SaveAnswer,
    SaveNotice,
)
from everstep_protocol.plan import Plan

from everstep_sidecar.client import Client
from everstep_sidecar.coordinator import Coordinator

HELD_SECONDS = 30.0  # a held answer comes earlier than this, or the asker asks again


class CoordinatorLink:
    """Each question raises `client.Unanswered` or `client.Refused`; the asker tries again."""

    def __init__(self, client: Client, plan: Plan, own_uid: str, local: Coordinator | None) -> None:
        self._client = client
        self._peer = Peer(plan.coordinator.uid, plan.coordinator.ip)
        self._own_uid = own_uid
        self._local = local

    async def hello(self, hello: Hello) -> HelloAnswer:
        """Held until go, or until the attempt is over."""
        if self._local is not None:
            answer = await self._local.hello(self._own_uid, hello)
            assert answer is not None  # held without a limit
            return answer
        return await self._client.post(self._peer, "/v1/hello", hello, HelloAnswer, seconds=HELD_SECONDS)

    async def save(self, notice: SaveNotice) -> SaveAnswer:
        """`durable` is held a while: until it is committed."""
        if self._local is not None:
            return await self._local.commits.hear(self._own_uid, notice)
        return await self._client.post(self._peer, "/v1/save", notice, SaveAnswer, seconds=HELD_SECONDS)

    async def exited(self, exited: Exited) -> Ack:
        """Answered at once."""
        if self._local is not None:
            return self._local.exited(self._own_uid, exited)
        return await self._client.post(self._peer, "/v1/exited", exited, Ack)

    async def state(self, state: MemberState) -> Ack:
        """Answered at once."""
        if self._local is not None:
            return self._local.state(self._own_uid, state)
        return await self._client.post(self._peer, "/v1/state", state, Ack, seconds=2.0)
