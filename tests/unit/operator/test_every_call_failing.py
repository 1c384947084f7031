"""Every request that the operator makes fails for ever, in every way: none leads to more than a few tries a second, and none keeps others back.

The kinds of requests are recorded from a normal life: a new kind of call joins by itself. Ten seconds pass in one.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, get_args

import pytest
from aiohttp import web
from everstep_operator.api import status as status_json
from everstep_operator.cluster.book import NodeBook, PodBook, Wakes
from everstep_operator.cluster.client import Client, Unavailable
from everstep_operator.cluster.leases import Beats
from everstep_operator.cluster.metrics import Metrics
from everstep_operator.cluster.records import trim_node, trim_pod
from everstep_operator.cluster.reflect import Reflector
from everstep_operator.cluster.room import Cluster
from everstep_operator.cluster.sidecars import Refusing, Rejected, SidecarClient, Silent
from everstep_operator.cluster.tasks import LoopWatch, end, start, within
from everstep_operator.core import model
from everstep_operator.handlers.actor import Actor
from everstep_operator.settings import parse_settings
from everstep_protocol import messages
from everstep_protocol.messages import Peer
from everstep_protocol.plan import Resume
from unit.core.jobs import plan
from unit.operator.small_api import refusal, talking_to
from unit.operator.small_sidecars import FastClock, status
from unit.operator.test_actor_passes import job

Kind = tuple[str, str]  # verb, path without names

SECONDS = 12.0
MOST_A_SECOND = 5
A_FEW = 6  # in the later half: one a second, where a loop that does not fall off would make thirty
WOKEN_EVERY = 0.1  # seconds: twice as often as anything may be done
AT_ONCE = 12  # lives in one event loop
WAYS = {
    "403": (403, "Forbidden"),
    "404": (404, "NotFound"),
    "409": (409, "Conflict"),
    "409 of a create": (409, "AlreadyExists"),
    "410": (410, "Gone"),
    "422": (422, "Invalid"),
    "429": (429, "TooManyRequests"),
    "500": (500, "InternalError"),
    "broken off": None,
    "no answer": None,
}
SIDECARS = ("prepare", "sight", "announce", "leave", "exit", "poll")
READ_AGAIN = ("GET", "/apis/everstep.dev/v1alpha1/namespaces/*/trainingjobs/*")
WRITE_STATUS = ("PATCH", READ_AGAIN[1] + "/status")

RUNNING = model.JobStatus(
    attempt=model.AttemptStatus(1, "Started", "i", "start", 0, plan=plan(1, (0, 1))),
    next_worker_id=9,
    workers=tuple(model.WorkerStatus(number, "Joined") for number in range(9)),
)
REQUEST = messages.PrepareRequest(1, "i", (), 0, (), (), False, True, None, ())
NEVER_DONE: dict[type, Any] = {
    model.CreatePod: model.CreatePod(3),
    model.DeletePod: model.DeletePod("gpt-w4", "u4", "1"),
    model.PublishPlan: model.PublishPlan("gpt-w5", "u5", 0, plan(1, (0, 1))),
    model.DeleteJob: model.DeleteJob(),
    model.Announce: model.Announce("u5", "10.0.0.5", 1, None),
    model.Prepare: model.Prepare("u6", "10.0.0.6", REQUEST),
    model.AskSight: model.AskSight("u7", "10.0.0.7", 1, "i"),
    model.Probe: model.Probe("u8", "10.0.0.8"),
    model.AskLeave: model.AskLeave("u0", "10.0.0.0", 1, 5.0, "change"),
    model.AskExit: model.AskExit("u2", "10.0.0.2", 1, "NoProgress: three crashes"),
}

OTHER_PODS = tuple(model.CreatePod(number) for number in range(10, 20))  # all of them need the one Secret


def test_the_normal_life_has_every_action_of_the_core() -> None:
    assert {*NEVER_DONE, model.WriteStatus} == set(get_args(model.Action))


def kind_of(method: str, path: str, params: dict[str, str]) -> Kind:
    named = re.sub(r"(namespaces|pods|nodes|leases|trainingjobs|persistentvolumeclaims)/[^/]+", r"\1/*", path)
    return (f"{method} watch" if "watch" in params else f"{method} dry run" if "dryRun" in params else method), named


@dataclass
class World:
    """An API server and sidecars of which one kind of request fails, or none."""

    failing: Kind | None = None
    way: str = ""
    clock: FastClock = field(default_factory=FastClock)
    version: int = 5
    calls: dict[tuple[Kind, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    job: dict[str, Any] = field(default_factory=dict)

    def note(self, kind: Kind, target: str) -> None:
        self.calls[kind, target].append(self.clock.now())

    def fails(self, kind: Kind) -> bool:
        return kind == self.failing

    async def answer(self, request: web.Request) -> web.StreamResponse:
        kind = kind_of(request.method, request.path, dict(request.query))
        if self.fails(kind):
            return await self._fail(request)
        if kind == WRITE_STATUS and (self.failing == READ_AGAIN or len(self.calls[kind, request.path + "/"]) == 1):
            return refusal(409, "Conflict", "the object has been modified")
        if kind[0] == "GET watch":
            await asyncio.sleep(60.0)
        self.version += 1
        if "trainingjobs" in request.path:
            return web.json_response(self._job(await request.json() if request.method == "PATCH" else {}))
        meta = {
            "uid": "u",
            "resourceVersion": str(self.version),
            "ownerReferences": [{"controller": True, "uid": "job"}],
        }
        labels = {"everstep.dev/worker": "3"}
        return web.json_response({"metadata": {**meta, "labels": labels}, "spec": {"accessModes": ["ReadWriteMany"]}})

    async def _fail(self, request: web.Request) -> web.StreamResponse:
        way = WAYS[self.way]
        if way is not None:
            return refusal(*way, f"no. It was {self.version} before")
        if self.way == "no answer":
            await asyncio.sleep(60.0)
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    def _job(self, patch: dict[str, Any]) -> dict[str, Any]:
        self.job = {
            **self.job,
            "metadata": {**self.job["metadata"], "resourceVersion": str(self.version)},
            "status": {**self.job.get("status", {}), **patch.get("status", {})},
        }
        return self.job


class Counted(Client):
    """Notes when a call begins; what gets no answer is given up sooner than in life."""

    world: World

    async def _call(self, method: str, path: str, params: dict[str, str], body: Any, content_type: str) -> Any:
        target = body["metadata"].get("name") or "" if method == "POST" and "/events" not in path else ""
        self.world.note(kind_of(method, path, params), path + "/" + target)
        try:
            return await within(0.3, super()._call(method, path, params, body, content_type))
        except asyncio.TimeoutError as error:
            raise Unavailable("timeout", f"{method} {path}: no answer") from error

    async def watch(self, path: str, params: dict[str, str], inactivity_seconds: float) -> AsyncIterator[Any]:
        self.world.note(kind_of("GET", path, {"watch": ""}), path)
        async for event in super().watch(path, params, 0.3 if self.world.way == "no answer" else inactivity_seconds):
            yield event


class Sidecars(SidecarClient):
    """Answers as sidecars would, or fails."""

    world: World

    async def call(self, job_uid: str, peer: Peer, path: str, message: Any, kind: Any, limit_seconds: float) -> Any:
        which = ("sidecar", path)
        self.world.note(which, peer.uid)
        if self.world.fails(which):
            if self.world.way == "no answer":
                await asyncio.sleep(0.1)
                raise Silent(path)
            if self.world.way == "broken off":
                raise Refusing(path)
            raise Rejected(int(self.world.way[:3]), messages.Problem("no", 0))
        if path == "/v1/poll" and message.version == "v1":
            await self.world.clock.sleep(message.wait_seconds)
        answers = {
            "/v1/poll": status(peer.uid),
            "/v1/prepare": messages.PrepareAnswer(1, "i", "ready", "Newest", "", 1, Resume("none"), ()),
            "/v1/sight": messages.Sight(peer.uid, None, True),
        }
        return answers.get(path, messages.Ack(1))

    async def probe(self, ip: str) -> bool:
        self.world.note(("sidecar", "probe"), ip)
        return not self.world.fails(("sidecar", "probe"))


async def live(world: World, *, new: bool, seconds: float) -> None:
    """A job that runs, or a new one. One that runs lives on until its core has looked, on a busy machine too."""
    seen_by_core: list[model.Observed] = []
    world.job = job(suspend=False, workers={"max": 2})
    if not new:
        world.job["status"] = status_json.to_patch(RUNNING)

    def decide(seen: model.Observed, settings: model.Settings) -> model.Decision:
        """It wishes everything, for ever; whatever it is told of refusals is said at once."""
        seen_by_core.append(seen)
        refused = "; ".join(f"{action.what}: {action.why}" for action in seen.refused_actions)
        conditions = (model.Condition("Degraded", "True" if refused else "False", "ApiRefuses", refused),)
        notices = (model.Notice("Normal", "Training", "2 workers train"),)
        return model.Decision("Running", "Training", "t", (*NEVER_DONE.values(), *OTHER_PODS), conditions, notices)

    async with talking_to(world.answer, Counted) as client, contextlib.AsyncExitStack() as stack:
        assert isinstance(client, Counted)
        client.world = world
        sidecars = Sidecars(b"k" * 32, 7471)
        sidecars.world = world
        wakes = Wakes()
        nodes, pods = NodeBook(Beats(print, print), lambda node: None), PodBook(wakes)
        settings = parse_settings({}, identity="me")
        cluster = Cluster(
            settings, client, sidecars, pods, nodes, wakes, LoopWatch(), Metrics(), "uid", clock=world.clock
        )
        actor = Actor(cluster, world.job, decide)
        reflectors: list[Any] = [
            Reflector(client, "/api/v1/nodes", trim_node, nodes.take, clock=world.clock),
            Reflector(client, "/api/v1/pods", trim_pod, pods.take, clock=world.clock),
        ]
        running = [start(actor.run(), "actor"), *(start(reflector.run(), "reflector") for reflector in reflectors)]
        stack.push_async_callback(end, *running)
        until = world.clock.now() + seconds
        while world.clock.now() < until or not (new or seen_by_core):
            actor.wake()  # somebody always does
            await world.clock.sleep(WOKEN_EVERY)


async def life(failing: Kind | None, way: str, *, new: bool, seconds: float = SECONDS) -> World:
    world = World(failing, way)
    await live(world, new=new, seconds=seconds)
    return world


def run(work: Any) -> Any:
    return asyncio.run(asyncio.wait_for(work, 120.0))


@cache
def kinds() -> tuple[tuple[Kind, bool], ...]:
    """Of the requests of a normal life, and whether it is a new job's."""

    async def normal() -> set[tuple[Kind, bool]]:
        lives = await asyncio.gather(*(life(None, "", new=new, seconds=4 * SECONDS) for new in (False, True)))
        return {(kind, new) for new, world in enumerate(lives) for kind, _ in world.calls}

    return tuple(sorted((kind, bool(new)) for kind, new in run(normal())))


def test_the_normal_life_makes_every_kind_of_request() -> None:
    found = {f"{verb} {path}" for (verb, path), _ in kinds()}
    pods = "/api/v1/namespaces/*/pods"
    assert found >= {
        f"POST {pods}",
        f"POST dry run {pods}",
        f"DELETE {pods}/*",
        f"PATCH {pods}/*",
        f"GET {pods}/*",
        "GET /api/v1/nodes/*",
        "GET /api/v1/nodes",
        "GET watch /api/v1/pods",
        "POST /api/v1/namespaces/*/secrets",
        "POST /api/v1/namespaces/*/events",
        "GET /api/v1/namespaces/*/persistentvolumeclaims/*",
        " ".join(READ_AGAIN),
        " ".join(WRITE_STATUS),
        f"DELETE {READ_AGAIN[1]}",
        *(f"sidecar /v1/{path}" for path in SIDECARS),
        "sidecar probe",
    }


@pytest.mark.parametrize("way", WAYS)
def test_st3_no_call_that_fails_for_ever_is_made_more_than_a_few_times_a_second(way: str) -> None:
    async def all_kinds() -> list[World]:
        found: list[World] = []
        for first in range(0, len(every), AT_ONCE):
            found += await asyncio.gather(*(life(kind, way, new=new) for kind, new in every[first : first + AT_ONCE]))
        return found

    every = kinds()
    for (failing, _), world in zip(every, run(all_kinds()), strict=True):
        for (kind, target), times in world.calls.items():
            assert most_in_a_second(times) <= MOST_A_SECOND, f"{failing} fails, {way}: {kind} {target}"
            if kind == failing and kind[1] != "probe":
                half, limit = times[0] + SECONDS / 2, times[0] + SECONDS
                early, late = sum(at < half for at in times), sum(half <= at < limit for at in times)
                assert late <= max(early + 1, A_FEW), f"{failing} fails, {way}: {early}, then {late} calls of {target}"


def most_in_a_second(times: list[float]) -> int:
    return max(sum(0 <= at - first < 1.0 for at in times) for first in times)
