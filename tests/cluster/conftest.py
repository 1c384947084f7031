"""One cluster a run, Everstep installed on it once, one namespace a test; what the components said is kept when a test fails."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit import product
from kit.evidence import keep_evidence
from kit.job import Space
from testcluster.cluster import Cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The running cluster; taken down at the end unless it was up before."""
    cluster = Cluster(quiet=False)
    with cluster.reserved():
        was_up = cluster.is_up()
        try:
            cluster.up()
            yield cluster
        finally:
            if not was_up:
                cluster.down()


@pytest.fixture(scope="session")
def everstep(cluster: Cluster) -> Cluster:
    """The cluster with this checkout's Everstep installed by its chart, and with no job that an earlier run left behind."""
    product.install(cluster)
    cluster.kubectl("delete", "trainingjobs", "--all", "--all-namespaces", "--timeout=60s")
    return cluster


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.when == "call":
        item.stash[_FAILED] = report.failed
    return report  # type: ignore[no-any-return]


_FAILED = pytest.StashKey[bool]()


@pytest.fixture
def space(everstep: Cluster, request: pytest.FixtureRequest) -> Iterator[Space]:
    """A namespace of this test's own. All nodes are whole again afterwards."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower())[:40].strip("-")
    space = Space(everstep, name)
    shutil.rmtree(everstep.storage_root / name, ignore_errors=True)
    space.create()
    try:
        yield space
    finally:
        if request.node.stash.get(_FAILED, True):
            keep_evidence(space, Path("build/test-logs") / name)
        make_whole(everstep)
        product.ensure_operator(everstep)
        space.remove()


def make_whole(cluster: Cluster) -> None:
    """Every node on, connected and schedulable."""
    for node in cluster.nodes:
        if not cluster.is_on(node):
            cluster.boot(node)
        cluster.heal(node)
        cluster.uncordon(node)
    cluster.kubectl("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=120s")
