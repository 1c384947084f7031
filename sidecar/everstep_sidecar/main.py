"""The sidecar's process: put the parts together, run until SIGTERM, finish what is being committed, leave."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

from aiohttp import web
from everstep_protocol.codec import InvalidDocument

from everstep_sidecar import log
from everstep_sidecar.agent import Agent
from everstep_sidecar.changes import Changes
from everstep_sidecar.client import Client
from everstep_sidecar.guard import GuardedPort, PlanAddresses, allow_connections
from everstep_sidecar.launcher_link import LauncherLink
from everstep_sidecar.loop_watch import LoopWatch
from everstep_sidecar.metrics import Metrics
from everstep_sidecar.peers import Peers
from everstep_sidecar.pod import Pod
from everstep_sidecar.pod_files import PodFiles
from everstep_sidecar.progress import TrainerPages
from everstep_sidecar.routes import Routes
from everstep_sidecar.scratch import Scratch
from everstep_sidecar.server import Identity, Server
from everstep_sidecar.settings import Settings, parse_settings
from everstep_sidecar.storage_calls import StorageCalls

NUM_THREADS = 16  # for files of this pod's own: memory and disk
LAST_COMMIT_SECONDS = 5.0
_log = logging.getLogger(__name__)


class Sidecar:
    """All parts of one process."""

    def __init__(self, settings: Settings, token: str) -> None:
        changes = Changes()
        self._settings = settings
        self._watch = LoopWatch()
        client = Client(
            token=token,
            job_uid=settings.job_uid,
            own_uid=settings.pod_uid,
            port=settings.api_port,
            source_ip=settings.pod_ip,
            on_highest=self._heard,
        )
        peers = Peers(
            source_ip=settings.pod_ip, port=settings.api_port, on_change=self._peer_changed, on_failure=self._fail
        )
        self._pod = Pod(
            settings=settings,
            changes=changes,
            scratch=Scratch(settings.scratch),
            link=LauncherLink(settings.socket, stir=changes.stir, on_saved=self._nudge),
            client=client,
            peers=peers,
            pages=TrainerPages(settings.memory),
            metrics=Metrics(),
            calls=StorageCalls(settings.job_storage, settings.place),
            on_failure=self._fail,
        )
        self._agent = Agent(self._pod)
        self._addresses = PlanAddresses(lambda: self._agent.plan)
        routes = Routes(self._pod, self._agent, self._watch)
        self._status = routes.status
        self._server = Server(
            Identity(token, settings.job_uid, settings.pod_uid),
            routes.table(),
            is_member=routes.is_member,
            highest=lambda: self._pod.highest,
            status=routes.public_status,
        )
        self._ports: list[GuardedPort] = []
        self._failed = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> bool:
        """Until `stop` is set; then finish what is being committed, within seconds. False: a part failed."""
        await self._start()
        try:
            ends = [asyncio.create_task(event.wait()) for event in (stop, self._failed)]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not self._failed.is_set():
                await self._finish_commits()
        finally:
            await self._close()
        return not self._failed.is_set()

    def attempt(self) -> int:
        """For log lines."""
        return self._pod.highest

    async def _start(self) -> None:
        allow_connections()
        await self._pod.load()
        await self._pod.client.start()
        await self._pod.link.start()
        await self._listen(self._server.application(), self._settings.api_port)
        await self._listen(self._metrics_application(), self._settings.metrics_port)
        self._agent.spawn(self._watch.run())
        self._agent.spawn(self._pod.calls.watch(self._pod.changes.bump))
        await self._agent.start()
        files = PodFiles(self._settings.pod, on_plan=self._agent.offer, on_attempt=self._agent.see)
        self._agent.spawn(files.run())
        _log.info("sidecar of pod %s is up, highest attempt seen: %d", self._settings.pod_uid, self._pod.highest)

    async def _listen(self, application: web.Application, number: int) -> None:
        port = GuardedPort(application, is_member=self._addresses.has)
        self._ports.append(port)
        await port.start(self._settings.pod_ip if self._settings.pod_ip.startswith("127.") else None, number)

    async def _finish_commits(self) -> None:
        _log.info("SIGTERM: finishing what is being committed")
        await self._pod.changes.wait(self._agent.is_drained, LAST_COMMIT_SECONDS)

    async def _close(self) -> None:
        await self._agent.close()
        await self._pod.peers.close()
        await self._pod.link.close()
        for port in self._ports:
            await port.close()
        await self._pod.client.close()
        self._pod.calls.close()
        self._pod.pages.close()

    def _metrics_application(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._healthz)
        return app

    async def _metrics(self, request: web.Request) -> web.Response:
        status = self._status()
        coordinator = self._agent.coordinator  # the others do not know what is on storage
        since = max(0, status.training.step - max(coordinator.commits.newest_step(), 0)) if coordinator else 0
        self._pod.metrics.observe(status, since=since)
        return web.Response(body=self._pod.metrics.text(), content_type="text/plain", charset="utf-8")

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    def _fail(self) -> None:
        self._failed.set()

    def _heard(self, attempt: int) -> None:
        self._agent.heard(attempt)

    def _peer_changed(self, uid: str, lost: bool) -> None:
        _log.warning("peer %s %s", uid, "is silent" if lost else "is back")
        self._pod.changes.bump()

    def _nudge(self) -> None:
        if self._agent.run is not None:
            self._agent.run.saver.nudge()


async def serve(settings: Settings, token: str) -> bool:
    """Run one sidecar until SIGTERM or SIGINT. False: it failed."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="local"))
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    sidecar = Sidecar(settings, token)
    log.configure(settings.job_name, sidecar.attempt)
    return await sidecar.run(stop)


def main() -> None:
    """The entry point. What is wrong with the pod is said in one line, without a traceback."""
    is_well = False
    try:
        settings = parse_settings(os.environ)
        token = settings.token_file.read_text().strip()
        if not token:
            raise ValueError(f"{settings.token_file} is empty: the job's token is missing")
        is_well = asyncio.run(serve(settings, token))
    except (ValueError, OSError, InvalidDocument) as error:
        sys.stderr.write(f"everstep-sidecar: {error}\n")
    except Exception:  # noqa: BLE001 - whatever it was, this process must end
        _log.exception("this sidecar failed, it starts anew")
    _leave(0 if is_well else 1)


def _leave(code: int) -> None:
    """At once: Python waits at its end for every thread, and one that the storage holds may never come back."""
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
