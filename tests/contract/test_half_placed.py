"""CL19: two jobs that each hold half of what the other needs say so on the real API server, and name each other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from conftest import Space, manifest
from test_operator_process import Job, is_running, world


def degraded(status: dict[str, Any]) -> tuple[str, str]:
    found = next((c for c in status.get("conditions") or [] if c["type"] == "Degraded"), {})
    return found.get("reason", ""), found.get("message", "")


def test_two_jobs_that_wait_for_each_other_are_named_until_one_has_its_room(space: Space, tmp_path: Path) -> None:
    async def test() -> None:
        async with world(space, tmp_path) as (runs, nodes, first):
            nodes.without_room = {"gpt-w1", "bert-w1"}
            second = Job(space, name="bert")
            runs.start()
            for job in (first, second):
                space.made_job(manifest(job.name, workers={"min": 2, "max": 2}))
            for job, other in ((first, "bert"), (second, "gpt")):
                await job.until(lambda status, other=other: f"job {other} waits like this too" in degraded(status)[1])
                reason, message = degraded(job.status)
                assert reason == "HalfPlaced"
                assert "2 Insufficient cpu" in message
                assert f"the room of worker 0 on node {node_of(space, job.name)} is held" in message
                await job.until(lambda _, name=job.name: events(space, name, "HalfPlaced") == 1)
            nodes.without_room = {"bert-w1"}
            await first.until(is_running)
            await second.until(lambda status: "suspend this job" in degraded(status)[1])
            assert degraded(first.status) == ("AllWorkers", "as many workers as wanted")
            runs.stop()

    asyncio.run(test())


def node_of(space: Space, job: str) -> str:
    return str(space.server.call("GET", f"{space.pods}/{job}-w0")[1]["spec"]["nodeName"])


def events(space: Space, job: str, reason: str) -> int:
    items = space.server.call("GET", f"/api/v1/namespaces/{space.name}/events")[1]["items"]
    return sum(item["reason"] == reason and item["involvedObject"]["name"] == job for item in items)
