"""The whole operator as a process, on a real API server with toy nodes: it starts a job, is killed after every single write, goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from conftest import Space, grant, manifest, until
from everstep_operator.cluster import rbac, tasks
from everstep_protocol.messages import Over
from kube import free_port
from toy_nodes import ToyNodes

ROOT = Path(__file__).parents[2]
KEY = b"0123456789abcdef0123456789abcdef"
MERGE_PATCH = "application/merge-patch+json"


@dataclass
class Runs:
    """Starts operators one after the other."""

    space: Space
    folder: Path
    port: int = field(default_factory=free_port)
    health_port: int = field(default_factory=free_port)
    namespaces: str = ""  # the space's own
    image: str = "everstep:1"
    process: subprocess.Popen[bytes] | None = None

    def start(self, dies_after: int = 0) -> None:
        server = self.space.server
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": server.url, "insecure-skip-tls-verify": True}}],
            "users": [{"name": "u", "user": {"token": server.operator_token}}],
        }
        (self.folder / "kubeconfig").write_text(yaml.safe_dump(config))
        (self.folder / "key").write_bytes(KEY)
        env = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("operator", "trainer_lib")),
            "KUBECONFIG": str(self.folder / "kubeconfig"),
            "EVERSTEP_ROOT_KEY_FILE": str(self.folder / "key"),
            "EVERSTEP_WATCH_NAMESPACES": self.namespaces or self.space.name,
            "EVERSTEP_NAMESPACE": self.space.name,
            "EVERSTEP_LEASE_SECONDS": "1",
            "EVERSTEP_API_PORT": str(self.port),
            "EVERSTEP_IMAGE": self.image,
            "EVERSTEP_METRICS_PORT": str(self.health_port),
            "EVERSTEP_HEALTH_HOST": "127.0.0.1",
            "EVERSTEP_TIMER_START_WINDOW": "2",
            "EVERSTEP_TIMER_NODE_READY": "0",
            "EVERSTEP_TIMER_GROW_SETTLE": "0",
            "EVERSTEP_TIMER_HALF_PLACED": "1",
        }
        script = Path(__file__).with_name("operator_that_dies.py")
        with (self.folder / "operator.log").open("ab") as log:
            self.process = subprocess.Popen([sys.executable, script, str(dies_after)], env=env, stdout=log, stderr=log)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(how)
        return self.process.wait(30)

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    @property
    def is_dead(self) -> bool:
        return self.process is not None and self.process.poll() is not None


@dataclass
class Job:
    """Looks at the job from time to time."""

    space: Space
    body: dict[str, Any] = field(default_factory=dict)
    name: str = "gpt"
    numbers: list[int] = field(default_factory=list)

    async def look(self) -> dict[str, Any]:
        code, body = await asyncio.to_thread(self.space.server.call, "GET", f"{self.space.jobs}/{self.name}")
        self.body = body if code == 200 else {}
        number = (self.status.get("attempt") or {}).get("number", 0)
        if not self.numbers or self.numbers[-1] != number:
            self.numbers.append(number)
        return self.status

    @property
    def status(self) -> dict[str, Any]:
        return self.body.get("status") or {}

    async def until(self, holds: Callable[[dict[str, Any]], bool], limit_seconds: float = 60.0) -> None:
        async def wait() -> None:
            while not holds(await self.look()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

        await asyncio.wait_for(wait(), limit_seconds)


@asynccontextmanager
async def world(space: Space, folder: Path) -> AsyncIterator[tuple[Runs, ToyNodes, Job]]:
    runs = Runs(space, folder)
    grant(space.server, rbac.IN_OWN_NAMESPACE, space.name)
    nodes = ToyNodes(space, KEY)
    nodes.make_nodes("n1", "n2")
    task = tasks.start(nodes.run(), "toy nodes")
    try:
        yield runs, nodes, Job(space)
    finally:
        if not runs.is_dead:
            runs.stop(signal.SIGKILL)
        await tasks.end(task)
        await nodes.stop()
        print((folder / "operator.log").read_text()[-20000:])


def is_running(status: dict[str, Any]) -> bool:
    return status.get("phase") == "Running" and status["attempt"]["state"] == "Started"


def test_a_job_lives_from_start_to_end(space: Space, tmp_path: Path) -> None:
    async def test() -> None:
        async with world(space, tmp_path) as (runs, nodes, job):
            runs.start()
            space.made_job(manifest(workers={"min": 2, "max": 2}))
            await job.until(is_running)
            assert (job.status["ready"], job.status["attempt"]["number"]) == ("2/2", 1)
            first = next(iter(nodes.sidecars.values()))
            coordinator = next(s for s in nodes.sidecars.values() if s.plan and s.plan.coordinator.uid == s.uid)
            assert first.plan == coordinator.plan
            coordinator.over = Over("crash", "rank 1 died: boom", uid=first.uid, rank=1)
            coordinator.touch()
            await job.until(lambda status: is_running(status) and status["attempt"]["number"] == 2)
            assert (job.status["attempt"]["cause"], job.status["restarts"]["total"]) == ("crash", 1)
            async with aiohttp.ClientSession() as session:
                for path in ("healthz", "readyz", "metrics"):
                    async with session.get(f"http://127.0.0.1:{runs.health_port}/{path}") as answer:
                        assert answer.status == 200
                        text = await answer.text()
            assert 'everstep_attempts_total{cause="crash"} 1.0' in text
            assert 'everstep_jobs{phase="Running"} 1.0' in text
            for sidecar in nodes.sidecars.values():
                sidecar.finished = True
                sidecar.touch()
            await job.until(lambda status: status.get("phase") == "Succeeded")
            metadata = job.body["metadata"]
            assert "finalizers" not in metadata
            assert not [name for name in metadata.get("annotations", {}) if "kopf" in name]
            assert runs.stop() == 0

    asyncio.run(test())


def test_pods_of_a_failed_job_end_by_themselves_and_stay(space: Space, tmp_path: Path) -> None:
    async def test() -> None:
        async with world(space, tmp_path) as (runs, nodes, job):
            runs.start()
            space.made_job(manifest(workers={"min": 2, "max": 2}, restartPolicy={"maxCrashes": 0}))
            await job.until(is_running)
            sidecars = list(nodes.sidecars.values())
            coordinator = next(s for s in sidecars if s.plan and s.plan.coordinator.uid == s.uid)
            coordinator.over = Over("crash", "rank 1 died", uid=coordinator.uid, rank=1, details="boom")
            coordinator.touch()
            await job.until(lambda status: status.get("phase") == "Failed")
            await until(lambda: set(phases_of_pods(space)) == {"Succeeded"})
            assert len(phases_of_pods(space)) == 2, "none was deleted"
            for sidecar in sidecars:
                (asked,) = sidecar.exits
                assert asked.attempt == 1
                assert asked.why.startswith("CrashBudgetExceeded: ")
            runs.stop()

    asyncio.run(test())


def phases_of_pods(space: Space) -> list[str]:
    return [pod["status"]["phase"] for pod in space.server.call("GET", space.pods)[1]["items"]]


def test_killed_after_every_single_write_it_still_starts_the_job_once(space: Space, tmp_path: Path) -> None:
    """Each process makes one write and is killed -9: whatever it meant to do next is done by another, from status alone."""

    async def test() -> None:
        async with world(space, tmp_path) as (runs, nodes, job):
            space.made_job(manifest(workers={"min": 2, "max": 2}))
            deaths = 0
            while not is_running(await job.look()):
                runs.start(dies_after=1)
                await until(lambda: runs.is_dead)
                deaths += 1
                assert deaths < 40
            assert deaths >= 8, "status twice at least, secret, two pods, two plans, status"
            runs.start()
            await job.until(is_running)
            assert job.numbers == sorted(job.numbers)
            assert job.status["attempt"]["number"] == 1, "no fault happened but the operator's own"
            assert nodes.most_pods == 2
            assert nodes.storage.intents.keys() == {1}
            runs.stop()

    asyncio.run(test())


def test_an_invalid_job_is_told_everything_and_nothing_is_created(space: Space, tmp_path: Path) -> None:
    async def test() -> None:
        async with world(space, tmp_path) as (runs, nodes, job):
            runs.start()
            container = {"name": "trainer", "image": "i", "env": [{"name": "RANK", "value": "0"}]}
            space.made_job(manifest(template={"spec": {"containers": [container], "hostNetwork": True}}))
            await job.until(lambda status: bool(status.get("conditions")))
            (valid,) = [c for c in job.status["conditions"] if c["type"] == "Valid"]
            assert valid["status"] == "False"
            assert all(text in valid["message"] for text in ("hostNetwork", "RANK", "command: must be set"))
            assert nodes.most_pods == 0
            runs.stop()

    asyncio.run(test())


def condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    return next((c for c in status.get("conditions") or [] if c["type"] == kind), {})


def test_a_wrong_type_is_told_on_the_job_and_no_pass_fails(space: Space, tmp_path: Path) -> None:
    async def test() -> None:
        async with world(space, tmp_path) as (runs, nodes, job):
            runs.start()
            container = {"name": "trainer", "image": "i", "command": "torchrun train.py"}
            space.made_job(manifest(template={"spec": {"containers": [container], "securityContext": "x"}}))
            await job.until(lambda status: condition(status, "Valid").get("status") == "False")
            message = condition(job.status, "Valid")["message"]
            assert (
                "containers[0].command: must be a list, not 'torchrun train.py': write [torchrun, train.py]" in message
            )
            assert "spec.template.spec.securityContext: must be an object" in message
            assert nodes.most_pods == 0
            assert "Traceback" not in (tmp_path / "operator.log").read_text()
            runs.stop()

    asyncio.run(test())


def test_an_upgrade_costs_a_job_that_runs_nothing_and_is_mixed_into_no_attempt(space: Space, tmp_path: Path) -> None:
    """CL2, CL13: another image and another port count for pods of a job that is suspended and resumed, not before."""

    def injected() -> set[tuple[str, int]]:
        _, answer = space.server.call("GET", space.pods)
        those = [pod["spec"]["initContainers"][-1] for pod in answer["items"]]
        return {(own["image"], own["ports"][0]["containerPort"]) for own in those}

    def suspend(value: bool) -> None:
        assert space.server.call("PATCH", f"{space.jobs}/gpt", {"spec": {"suspend": value}}, MERGE_PATCH)[0] == 200

    async def test() -> None:
        async with world(space, tmp_path) as (runs, nodes, job):
            runs.start()
            space.made_job(manifest(workers={"min": 2, "max": 2}))
            await job.until(is_running)
            before = {("everstep:1", runs.port)}
            assert injected() == before
            runs.stop()
            runs.image, runs.port = "everstep:2", free_port()
            runs.start()
            _, pods = space.server.call("GET", space.pods)
            gone = pods["items"][0]["metadata"]["name"]
            assert space.server.call("DELETE", f"{space.pods}/{gone}")[0] == 200
            await job.until(lambda status: is_running(status) and status["attempt"]["number"] == 2)
            assert len(nodes.sidecars) == 2
            assert injected() == before, "a new pod is like the other"
            suspend(True)
            await job.until(lambda status: status.get("phase") == "Suspended")
            suspend(False)
            await job.until(lambda status: is_running(status) and status["attempt"]["number"] > 2)
            assert injected() == {("everstep:2", runs.port)}
            runs.stop()

    asyncio.run(test())


def test_a_quota_on_secrets_is_told_on_the_job_and_waited_for(space: Space, tmp_path: Path) -> None:
    """CL9: each pod needs the job's token, and the API server does not admit it."""
    quotas, merge = f"/api/v1/namespaces/{space.name}/resourcequotas", MERGE_PATCH
    hard = {"hard": {"secrets": "0"}}

    async def test() -> None:
        async with world(space, tmp_path) as (runs, nodes, job):
            call = space.server.call
            assert call("POST", quotas, {"metadata": {"name": "q"}, "spec": hard})[0] == 201
            counted = {"status": {**hard, "used": {"secrets": "0"}}}  # what a controller of Kubernetes does
            assert call("PATCH", f"{quotas}/q/status", counted, merge)[0] == 200
            runs.start()
            space.made_job(manifest(workers={"min": 2, "max": 2}))
            await job.until(lambda status: "exceeded quota: q" in condition(status, "Ready").get("message", ""))
            assert "its pod is not made: the quota is full" in condition(job.status, "Ready")["message"]
            _, events = call("GET", f"/api/v1/namespaces/{space.name}/events")
            assert any(e["reason"] == "PodNotCreated" and "exceeded quota: q" in e["message"] for e in events["items"])
            assert nodes.most_pods == 0
            assert call("DELETE", f"{quotas}/q")[0] == 200
            await job.until(is_running)
            runs.stop()

    asyncio.run(test())


def test_a_mistake_in_the_spec_does_not_leave_a_job_that_runs_alone(space: Space, tmp_path: Path) -> None:
    """CL10: it goes on with what was accepted, whether the operator was started since or not; suspending works all the same."""

    def patch(**spec: Any) -> None:
        code, answer = space.server.call("PATCH", f"{space.jobs}/gpt", {"spec": spec}, MERGE_PATCH)
        assert code == 200, answer

    async def crash(nodes: ToyNodes) -> None:
        head = next(s for s in nodes.sidecars.values() if s.plan and s.plan.coordinator.uid == s.uid)
        head.over = Over("crash", "rank 1 died: boom", uid=head.uid, rank=1)
        head.touch()

    async def test() -> None:
        async with world(space, tmp_path) as (runs, nodes, job):
            runs.start()
            space.made_job(manifest(workers={"min": 2, "max": 2}))
            await job.until(is_running)
            patch(resumeFrom="../elsewhere", workers={"max": 9})
            await job.until(lambda status: condition(status, "Valid").get("status") == "False")
            valid = condition(job.status, "Valid")
            assert "spec.resumeFrom: '../elsewhere' must not contain" in valid["message"]
            assert valid["message"].endswith("the job goes on with the spec of generation 1")
            await crash(nodes)
            await job.until(lambda status: is_running(status) and status["attempt"]["number"] == 2)
            runs.stop()
            runs.start()
            await crash(nodes)
            await job.until(lambda status: is_running(status) and status["attempt"]["number"] == 3)
            valid = condition(job.status, "Valid")
            assert valid["message"].endswith("but the operator was started since, so it can make no new pods")
            assert len(nodes.sidecars) == 2
            patch(suspend=True)
            await job.until(lambda status: status.get("phase") == "Suspended")
            patch(suspend=False, resumeFrom=None)
            await job.until(lambda status: is_running(status) and condition(status, "Valid")["status"] == "True")
            runs.stop()

    asyncio.run(test())


@pytest.mark.parametrize("how", ["deleted", "deleted while nobody looked"])
def test_a_deleted_job_has_no_actor_any_more(space: Space, tmp_path: Path, how: str) -> None:
    async def test() -> None:
        async with world(space, tmp_path) as (runs, _nodes, job):
            runs.start()
            space.made_job(manifest(suspend=True))
            await job.until(lambda status: status.get("phase") == "Suspended")
            if how != "deleted":
                assert runs.process is not None
                runs.process.send_signal(signal.SIGSTOP)
            await asyncio.to_thread(space.server.call, "DELETE", f"{space.jobs}/gpt")
            if how != "deleted":
                assert runs.process is not None
                runs.process.send_signal(signal.SIGCONT)

            async def phases() -> str:
                async with (
                    aiohttp.ClientSession() as session,
                    session.get(f"http://127.0.0.1:{runs.health_port}/metrics") as answer,
                ):
                    return await answer.text()

            async def gone() -> None:
                while 'everstep_jobs{phase="Suspended"} 0.0' not in await phases():  # noqa: ASYNC110
                    await asyncio.sleep(0.1)

            await asyncio.wait_for(gone(), 90)
            runs.stop()

    asyncio.run(test())


def test_a_standby_is_ready_and_takes_over(space: Space, tmp_path: Path) -> None:
    async def is_ready(runs: Runs) -> bool:
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{runs.health_port}/readyz") as answer,
            ):
                return answer.status == 200
        except aiohttp.ClientConnectionError:
            return False

    async def both_ready(first: Runs, second: Runs) -> None:
        while not (await is_ready(first) and await is_ready(second)):  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    async def test() -> None:
        (tmp_path / "standby").mkdir()
        standby = Runs(space, tmp_path / "standby")
        async with world(space, tmp_path) as (runs, _nodes, job):
            standby.port = runs.port
            try:
                runs.start()
                space.made_job(manifest(workers={"min": 2, "max": 2}))
                await job.until(is_running)
                standby.start()
                await asyncio.wait_for(both_ready(runs, standby), 30)
                runs.stop(signal.SIGKILL)
                await asyncio.to_thread(
                    space.server.call, "PATCH", f"{space.jobs}/gpt", {"spec": {"suspend": True}}, MERGE_PATCH
                )
                await job.until(lambda status: status.get("phase") == "Suspended")
                assert standby.stop() == 0
            finally:
                if not standby.is_dead:
                    standby.stop(signal.SIGKILL)

    asyncio.run(test())
