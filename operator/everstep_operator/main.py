"""Starts the operator: `python -m everstep_operator.main`, in a pod or, with KUBECONFIG, anywhere. Settings: `settings.VARIABLES`."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Coroutine
from typing import Any, cast

from everstep_protocol import names

from everstep_operator.cluster import tasks
from everstep_operator.cluster.backoff import Backoff, Clock
from everstep_operator.cluster.book import NodeBook, PodBook, Wakes
from everstep_operator.cluster.client import ApiError, Client, Unavailable
from everstep_operator.cluster.connection import NoCluster, find_credentials
from everstep_operator.cluster.leader import Leader, LeaseLost
from everstep_operator.cluster.leases import Beats, LeaseWatch
from everstep_operator.cluster.metrics import Metrics
from everstep_operator.cluster.records import PodRecord, trim_node, trim_pod
from everstep_operator.cluster.reflect import Reflector
from everstep_operator.cluster.room import Cluster
from everstep_operator.cluster.root_key import Unusable, checked, find_root_key
from everstep_operator.cluster.sidecars import SidecarClient
from everstep_operator.handlers.actor import Decide
from everstep_operator.handlers.ears import Ear
from everstep_operator.handlers.registry import Actors
from everstep_operator.health import Health
from everstep_operator.log import configure_logs
from everstep_operator.settings import TIMER_PREFIX, VARIABLES, Settings, parse_settings

_log = logging.getLogger(__name__)

_SILENT_SECONDS = 300.0
_UID_RETRY_SECONDS = (1.0, 10.0)
_STOP_SECONDS = 5.0


class Operator:
    """Everything that runs, put together. `run` returns when it was told to stop; raises LeaseLost, Died."""

    def __init__(self, settings: Settings, root_key: bytes, client: Client, metrics: Metrics, decide: Decide) -> None:
        self._settings = settings
        self._client = client
        self._leaders_client = client.beside()
        self._leader = Leader(self._leaders_client, settings.lease)
        self._is_acting = False
        wakes = Wakes()
        self._pods = PodBook(wakes)
        self._sidecars = SidecarClient(root_key, settings.pods.api_port, self._pods.api_port_at)
        self._beats = Beats(self._node_changed, self._node_changed)
        self._nodes = NodeBook(self._beats, self._node_changed)
        self._loop = tasks.LoopWatch()
        self._vital = tasks.Vital()
        self._wakes = wakes
        self._leases = LeaseWatch(client, self._beats)
        self._cluster = Cluster(settings, client, self._sidecars, self._pods, self._nodes, wakes, self._loop, metrics)
        metrics.watch_unwritten(self._cluster.unwritten.__len__)
        self.actors = Actors(self._cluster, decide, self._is_synced)
        self._all_nodes = Reflector(client, "/api/v1/nodes", trim_node, self._nodes.take)
        self._pods_in = self._build_pods_in()
        self._ears = {
            name: Ear(client, name, self.actors.hear, identity=settings.lease.identity, clock=self._cluster.clock)
            for name in self._pods_in
        }
        self._health = Health(
            settings.health_host,
            settings.health_port,
            metrics.registry,
            alive=self._what_is_dead,
            ready=self._what_is_missing,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Wait for the Lease, act, and end cleanly."""
        await self._client.open()
        await self._leaders_client.open()
        await self._sidecars.open()
        await self._health.start()
        self._vital.start(self._loop.run(), "loop watch")
        try:
            if await self._becomes_leader(stop):
                await self._act(stop)
        finally:
            await self.actors.close()
            await self._vital.end()
            await self._leader.release()
            await self._health.stop()
            await self._sidecars.close()
            await self._leaders_client.close()
            await self._client.close()

    async def _becomes_leader(self, stop: asyncio.Event) -> bool:
        if not self._settings.lease.enabled:
            return True
        _log.info("waiting for the lease %s/%s", self._settings.lease.namespace, self._settings.lease.name)
        await _first_of(stop.wait(), self._leader.acquire(), self._vital.watch())
        return self._leader.is_leader

    async def _act(self, stop: asyncio.Event) -> None:
        _log.info("acting as %s", self._settings.lease.identity)
        self._vital.start(self._fill_caches(), "caches")
        keeping = [self._leader.keep()] if self._settings.lease.enabled else []
        for ear in self._ears.values():
            self._vital.start(ear.run(), "ear")
        await _first_of(*keeping, stop.wait(), self._vital.watch())

    async def _fill_caches(self) -> None:
        """Nobody decides before the caches are filled; of the pods those of its own namespace, which may come late, or never."""
        self._vital.start(self._all_nodes.run(), "reflector")
        for reflector in self._pods_in.values():
            self._vital.start(reflector.run(), "reflector")
            self._vital.start(self._open_when_filled(reflector), "opening")
        self._vital.start(self._leases.run(), "node leases")
        self._cluster.uid = await self._read_cluster_uid()
        await asyncio.gather(self._all_nodes.synced.wait(), self._leases.synced.wait())
        self._is_acting = True
        self.actors.open()
        self._vital.start(self.actors.run(), "jobs")
        _log.info("the caches are filled")

    async def _open_when_filled(self, reflector: Reflector[PodRecord]) -> None:
        await reflector.synced.wait()
        self.actors.open()

    async def _read_cluster_uid(self) -> str:
        backoff = Backoff(self._cluster.clock, first=_UID_RETRY_SECONDS[0], most=_UID_RETRY_SECONDS[1])
        while True:
            try:
                namespace = await self._client.request("GET", "/api/v1/namespaces/kube-system")
                return str(namespace["metadata"]["uid"])
            except (ApiError, Unavailable) as error:
                _log.warning("the cluster's UID is not read: %s", error)
                await self._cluster.clock.sleep(backoff.fail())

    def _build_pods_in(self) -> dict[str, Reflector[PodRecord]]:
        """By namespace; "" is all of them."""
        paths = {name: f"/api/v1/namespaces/{name}/pods" for name in self._settings.namespaces} or {"": "/api/v1/pods"}
        selector = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY},{names.LABEL_JOB_UID}"
        return {
            name: Reflector(self._client, path, trim_pod, self._pods.take, label_selector=selector)
            for name, path in paths.items()
        }

    def _node_changed(self, node: str) -> None:
        self._nodes.look_again()
        for job in self._pods.jobs_on(node):
            self._wakes.wake(job)

    def _is_synced(self, namespace: str) -> bool:
        reflector = self._pods_in.get(namespace) or self._pods_in.get("")
        return self._is_acting and reflector is not None and reflector.synced.is_set()

    def _what_is_dead(self) -> list[str]:
        """For liveness: what only a restart may put right. A control plane that is away is not among it."""
        if not self._is_acting or self._client.answer_age_seconds() > _SILENT_SECONDS:
            return []
        heard = [reflector for name, reflector in self._pods_in.items() if not self._ears[name].deaf]
        silent = [self._all_nodes.silent_seconds(), *(reflector.silent_seconds() for reflector in heard)]
        return [f"a watch is silent for {max(silent):.0f} s"] if max(silent) > _SILENT_SECONDS else []

    def _what_is_missing(self) -> list[str]:
        """For readiness: a replica that waits for the Lease is as it should be."""
        if self._settings.lease.enabled and not self._leader.is_leader:
            return []
        missing = [ear.deaf for ear in self._ears.values() if ear.deaf] + self._cluster.unwritten.reasons()
        return missing if self._is_acting else [*missing, "caches are being filled"]


async def _first_of(*works: Coroutine[Any, Any, Any]) -> None:
    """Until one of them ends; the others are cancelled. Raises what it raised."""
    running = [asyncio.create_task(work) for work in works]
    done, left = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    for task in left:
        task.cancel()  # kopf, too: of its own it would wait for all of our tasks first
    await asyncio.wait(running, timeout=_STOP_SECONDS)
    for task in done:
        task.result()


def load_decide() -> Decide:
    """The core, by name: the edges do not need it to be imported."""
    return cast(Decide, importlib.import_module("everstep_operator.core.decide").decide)


def main() -> None:
    """Exit code 0: told to stop. 1: the lease was lost, or a part of the operator failed. 2: settings or surroundings are wrong."""
    if "--help" in sys.argv[1:]:
        print(_help())
        return
    try:
        settings = parse_settings(os.environ, identity=f"{socket.gethostname()}-{os.getpid()}")
        root_key = b"" if settings.root_key_secret else _read_root_key(settings)
        credentials = find_credentials()
    except (ValueError, OSError, NoCluster, Unusable) as error:
        sys.exit(_fail(error))
    configure_logs(settings.log_level)
    metrics = Metrics()
    client = Client(credentials, metrics.count_api_error)
    sys.exit(asyncio.run(_run(settings, root_key, client, metrics)))


async def _run(settings: Settings, root_key: bytes, client: Client, metrics: Metrics) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        root_key = root_key or await _wait_for_root_key(settings, client, stop)
        if not root_key:
            return 0
        operator = Operator(settings, root_key, client, metrics, load_decide())
        metrics.watch_phases(operator.actors.phases)
        await operator.run(stop)
    except Unusable as error:
        return _fail(error)
    except LeaseLost as error:
        _log.error("the lease is lost, another replica acts: %s", error)
        return 1
    except tasks.Died as error:
        _log.error("the operator cannot go on, it is to be started anew: %s", error)
        return 1
    _log.info("stopped")
    return 0


async def _wait_for_root_key(settings: Settings, client: Client, stop: asyncio.Event) -> bytes:
    """Empty: told to stop before it was there. Raises Unusable."""
    lane = client.beside()
    await lane.open()
    finding = asyncio.create_task(
        find_root_key(lane, settings.lease.namespace, settings.root_key_secret, Clock()), name="root key"
    )
    try:
        await _first_of(asyncio.wait({finding}), stop.wait())
        return finding.result() if finding.done() else b""
    finally:
        finding.cancel()
        await lane.close()


def _read_root_key(settings: Settings) -> bytes:
    return checked(settings.root_key_file.read_bytes().strip(), str(settings.root_key_file))


def _fail(error: Exception) -> int:
    print(f"everstep-operator: {error}", file=sys.stderr)
    return 2


def _help() -> str:
    lines = [f"  {name}={default or '(empty)'}\n      {text}" for name, (default, text) in VARIABLES.items()]
    timers = f"  {TIMER_PREFIX}<NAME>\n      any timer of everstep_operator.core.model.Settings, in seconds"
    return "\n".join([__doc__ or "", "", "Environment:", *lines, timers])


if __name__ == "__main__":
    main()
