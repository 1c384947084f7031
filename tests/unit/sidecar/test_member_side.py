"""What a member keeps, tells and withholds: R8's disk, R19's order, troubles in summaries, the public status."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from everstep_protocol.messages import (
    MemberState,
    MemberSummary,
    Over,
    Peer,
    SidecarStatus,
    StopOrder,
    Training,
    Trouble,
)
from everstep_protocol.shared_memory import PHASES, Page, Progress
from everstep_sidecar.agent import Agent
from everstep_sidecar.backoff import Backoff
from everstep_sidecar.changes import Changes
from everstep_sidecar.core import membership, training
from everstep_sidecar.core.membership import Heard
from everstep_sidecar.peers import Peers
from everstep_sidecar.pod import Pod
from everstep_sidecar.progress import TrainerPages
from everstep_sidecar.scratch import Remembered, Scratch
from everstep_sidecar.status import public
from everstep_sidecar.stop_desk import StopDesk
from hang_limit import hang_seconds
from unit.sidecar.test_sidecar_core import PLAN

LIMIT_SECONDS = hang_seconds(30.0)
SECRET = "AWS_SECRET_ACCESS_KEY=hunter2"


def make_pod(scratch: Scratch) -> Pod:
    """A pod of which only what it remembers matters."""
    nobody = cast("Any", None)
    return Pod(
        settings=nobody,
        changes=Changes(),
        scratch=scratch,
        link=nobody,
        client=nobody,
        peers=nobody,
        pages=nobody,
        metrics=nobody,
        calls=nobody,
        on_failure=lambda: None,
    )


def test_r8_an_older_attempt_takes_no_higher_ones_place(tmp_path: Path) -> None:
    async def scenario() -> None:
        pod = make_pod(Scratch(tmp_path))
        assert await pod.remember(3, plan=PLAN)
        assert not await pod.remember(2, started=True)
        assert pod.remembered == Remembered(3, PLAN)

    asyncio.run(scenario())
    assert Scratch(tmp_path).load() == Remembered(3, PLAN)


class SlowScratch(Scratch):
    """A disk that takes its time."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.writing, self.go_on = threading.Event(), threading.Event()

    def save(self, remembered: Remembered) -> None:
        self.writing.set()
        assert self.go_on.wait(LIMIT_SECONDS)
        super().save(remembered)


def test_r8_nothing_is_obeyed_before_it_is_on_disk(tmp_path: Path) -> None:
    async def scenario() -> None:
        scratch = SlowScratch(tmp_path)
        pod = make_pod(scratch)
        work = asyncio.create_task(pod.remember(3))
        await asyncio.to_thread(scratch.writing.wait, LIMIT_SECONDS)
        before = pod.highest
        scratch.go_on.set()
        await work
        assert (before, pod.highest) == (0, 3)

    asyncio.run(scenario())


def test_r8_the_content_is_durable_before_it_has_its_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, int]] = []
    real_fsync, real_replace = os.fsync, Path.replace

    def fsync(handle: int) -> None:
        done.append((Path(f"/proc/self/fd/{handle}").readlink().name, os.fstat(handle).st_size))
        real_fsync(handle)

    def rename(self: Path, target: Path) -> Path:
        done.append(("rename", self.stat().st_size))
        return real_replace(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", rename)
    Scratch(tmp_path).save(Remembered(3, PLAN))
    size = (tmp_path / "highest.json").stat().st_size
    assert done[:2] == [("highest.tmp", size), ("rename", size)]
    assert [name for name, _ in done[2:]] == [tmp_path.name]


class NotedPages(TrainerPages):
    """Says in which order both pages are touched."""

    def __init__(self, memory: Path) -> None:
        super().__init__(memory)
        self.order: list[str] = []

    def write_control(self, control: Any) -> None:
        self.order.append("write")
        super().write_control(control)

    def progress(self, attempt: int, processes: int) -> tuple[Progress, ...]:
        self.order.append("read")
        return super().progress(attempt, processes)


def test_r19_the_order_stands_before_progress_is_read(tmp_path: Path) -> None:
    page: Page[Progress] = Page(tmp_path / "progress-0", Progress)
    page.open(create=True)
    page.write(Progress(1, 5, 1, 1, PHASES.index("training"), 0, 0))
    pages = NotedPages(tmp_path)
    assert StopDesk(pages, 1, 1).hear(StopOrder(1, 7, "propose")).answer == "agreed"
    assert pages.order == ["write", "read"]


def test_st14_a_watch_of_peers_that_fails_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> bool:
        failed = asyncio.Event()
        peers = Peers(source_ip="127.0.0.3", port=1, on_change=lambda *_: None, on_failure=failed.set)

        async def hold(peer: Peer) -> None:
            raise ValueError("nobody foresaw this")

        monkeypatch.setattr(peers, "_hold", hold)
        peers.watch(frozenset({Peer("u", "127.0.0.2")}))
        async with asyncio.timeout(LIMIT_SECONDS):
            await failed.wait()
        await peers.close()
        return failed.is_set()

    assert asyncio.run(scenario())


def test_r25_a_connection_that_was_held_long_is_made_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses fall off while connections fail; the watch of a peer that was well for an hour begins anew."""
    seconds = [0.0, 0.0, 0.0, 3600.0, 0.0]
    now, pauses, done = [0.0], [], asyncio.Event()

    async def hold(peer: Peer) -> None:
        now[0] += seconds[len(pauses)]

    async def pause(backoff: Backoff) -> None:
        pauses.append(backoff.take())
        if len(pauses) == len(seconds):
            done.set()
            await asyncio.Event().wait()

    async def scenario() -> None:
        peers = Peers(source_ip="127.0.0.3", port=1, on_change=lambda *_: None, on_failure=done.set)
        monkeypatch.setattr(peers, "_hold", hold)
        monkeypatch.setattr(Backoff, "pause", pause)
        monkeypatch.setattr("everstep_sidecar.peers.time", SimpleNamespace(monotonic=lambda: now[0]))
        peers.watch(frozenset({Peer("u", "127.0.0.2")}))
        async with asyncio.timeout(LIMIT_SECONDS):
            await done.wait()
        await peers.close()

    asyncio.run(scenario())
    assert [round(one / 1.25, 1) <= 0.5 for one in pauses] == [True, False, False, True, False]


class FullScratch(Scratch):
    """A disk without room, until it is told otherwise."""

    is_full = True

    def save(self, remembered: Remembered) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().save(remembered)


def test_r23_an_attempt_that_is_heard_of_while_the_own_disk_is_full_is_heard_of_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        failed = asyncio.Event()
        scratch = FullScratch(tmp_path)
        pod = replace(make_pod(scratch), on_failure=failed.set, link=cast(Any, SimpleNamespace(forbid=lambda *_: None)))
        agent = Agent(pod)
        agent.heard(3)
        for _ in range(2):
            await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
            assert (failed.is_set(), pod.highest) == (False, 0)
            agent.heard(3)  # the next ping
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
        scratch.is_full = False
        agent.heard(3)
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
        assert pod.highest == 3

    asyncio.run(scenario())


TROUBLE = Trouble("StorageNotShared", "gpt-w1 on node-1 does not see this job's storage", 4.0)


def test_st1_a_members_own_trouble_and_silence_are_in_its_line() -> None:
    state = MemberState(1, "waiting", -1, {}, trouble=TROUBLE)
    heard = {"b": Heard(state, 2.0, 1.0)}
    first, second = membership.summarize(PLAN, heard, ready=frozenset(), gone=False)
    assert (first.trouble, first.heard_age_seconds) == (None, None)
    assert second == MemberSummary(
        "b", "absent", 0, 0, trouble=replace(TROUBLE, age_seconds=6.0), heard_age_seconds=1.0
    )


def test_a_member_that_only_said_hello_has_been_heard() -> None:
    heard = {"b": Heard(None, 2.0, 2.0)}
    _, second = membership.summarize(PLAN, heard, ready=frozenset({"b"}), gone=False)
    assert second == MemberSummary("b", "ready", 0, 0, heard_age_seconds=2.0)


def test_st18_bytes_are_as_old_as_the_newest_of_any_member() -> None:
    def saving(age: float | None) -> MemberState:
        return MemberState(1, "saving", 5, {}, bytes_age_seconds=age)

    heard = {"a": Heard(saving(3.0), 0.5), "b": Heard(saving(1.0), 1.0), "c": Heard(saving(None), 0.0)}
    assert membership.bytes_age_seconds(heard) == 2.0
    assert membership.bytes_age_seconds({"c": heard["c"]}) is None


def test_st10_a_script_lives_as_long_as_any_of_its_pods_does() -> None:
    """Rank 0 may wait for another one that works for long."""

    def idle(seconds: float | None) -> MemberState:
        return MemberState(1, "starting", -1, {}, idle_seconds=seconds)

    heard = {"a": Heard(idle(700.0), 0.5), "b": Heard(idle(1.0), 1.0), "c": Heard(idle(None), 0.0)}
    assert membership.idle_seconds(heard) == 2.0
    assert membership.idle_seconds({"c": heard["c"]}) is None
    own = Training(False, -1, 700.0, 0.0, "starting")
    assert training.among(own, 2.0) == replace(own, age_seconds=2.0)
    assert training.among(own, None) == own
    assert training.idle_seconds(own) == 700.0
    for other in (Training(True, 5, 700.0, 0.1, "training"), Training(False, -1, 0.0, 0.0, "none")):
        assert training.among(other, 2.0) == other
        assert training.idle_seconds(other) is None


@pytest.mark.parametrize(("silent", "age"), [(math.inf, 6.0), (2.5, 2.5), (60.0, 6.0)])
def test_st10_without_the_library_the_last_sign_of_life_counts(silent: float, age: float) -> None:
    second = 1_000_000_000
    seen = training.summarize((), started_at_ns=4 * second, now_ns=10 * second, silent_seconds=silent)
    assert seen == Training(False, -1, age, 0.0, "starting")


def test_st10_with_the_library_its_steps_count() -> None:
    page = Progress(1, 7, 9_000_000_000, 1, PHASES.index("training"), 0, 0)
    seen = training.summarize((page,), started_at_ns=1, now_ns=10_000_000_000, silent_seconds=0.0)
    assert (seen.step, seen.age_seconds) == (7, 1.0)


def make_status(**changes: Any) -> SidecarStatus:
    base = SidecarStatus(
        format=1,
        version="v",
        pod_uid="a",
        highest=1,
        attempt=1,
        plan_id="p",
        role="coordinator",
        gone=True,
        finished=False,
        late_seconds=0.0,
        training=Training(True, 5, 1.0, 1.0, "training"),
    )
    return replace(base, **changes)


def test_st16_a_status_without_a_signature_holds_nothing_that_trainers_said() -> None:
    told = Trouble("StateRefused", SECRET, 4.0)
    status = make_status(
        over=Over("crash", "rank 1 exited with code 1", uid="b", rank=1, details=SECRET),
        failing=told,
        storage=replace(told, reason="whatever"),
        members=(MemberSummary("b", "running", 0, 0, trouble=told),),
    )
    shown = public(status)
    assert SECRET not in repr(shown)
    assert shown.over == replace(status.over, details="")
    assert shown.failing is not None
    assert (shown.failing.reason, shown.failing.age_seconds) == ("Withheld", 4.0)


def test_st16_what_the_sidecar_says_itself_is_public() -> None:
    full = Trouble("ENOSPC", "gpt-w1 on node-1: the storage is full", 4.0)
    status = make_status(storage=TROUBLE, failing=full, members=(MemberSummary("b", "running", 0, 0, trouble=TROUBLE),))
    assert public(status) == status
