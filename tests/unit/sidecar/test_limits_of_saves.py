"""How often what fails or is awaited in saving and verifying is tried again, and for how long an answer is held."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from everstep_protocol.messages import SaveAnswer, SaveNotice
from everstep_protocol.plan import Plan
from everstep_sidecar import commits as commits_module
from everstep_sidecar import saver as savers
from everstep_sidecar import verification as verifications
from everstep_sidecar.commits import Commits
from everstep_sidecar.deletions import Deletions
from everstep_sidecar.pod import Pod
from everstep_sidecar.save_watch import LOOK_SECONDS, SaveWatch
from everstep_sidecar.saver import Saver
from everstep_sidecar.store import hashing
from everstep_sidecar.store.temporary import Fenced
from everstep_sidecar.verification import Verification
from store_support import world
from unit.sidecar.small_pod import FOR_EVER, Pauses, Storage, pauses, played, pod_of, run, until, within
from unit.sidecar.test_sidecar_core import PLAN

__all__ = ["pauses"]
BROKEN = OSError(errno.EIO, "Input/output error")
SAVED = world.make_plan(1)


def commits_of(pod: Pod) -> Commits:
    return Commits(pod, PLAN, on_higher=lambda highest: None, heard=dict)


def test_a_member_that_asks_for_a_save_is_answered_though_the_storage_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(commits_module, "HELD_SECONDS", 0.05)
        commits = commits_of(pod_of(tmp_path, "a"))
        answer = await commits.hear("b", SaveNotice(1, "p", 10, (1, 2), "ready"))
        assert answer.answer == "wait"
        commits.close()

    run(scenario())


def test_r16_what_the_coordinator_cannot_do_is_tried_ever_more_seldom(tmp_path: Path, pauses: Pauses) -> None:
    async def scenario() -> None:
        commits = commits_of(pod_of(tmp_path, "a", calls=Storage({"find": BROKEN})))
        asked = asyncio.create_task(commits.hear("b", SaveNotice(1, "p", 10, (1, 2), "ready")))
        await pauses.many.wait()
        asked.cancel()
        commits.close()
        assert within(pauses.span(), 0.5, 30.0)

    run(scenario())


def test_r5_a_coordinator_whose_directory_was_fenced_looks_for_the_higher_attempt(tmp_path: Path) -> None:
    async def scenario() -> None:
        higher: list[int] = []
        storage = Storage({"find": None, "open_temporary": Fenced("taken away"), "highest": 9})
        commits = Commits(pod_of(tmp_path, "a", calls=storage), PLAN, on_higher=higher.append, heard=dict)
        answer = await commits.hear("b", SaveNotice(1, "p", 10, (1, 2), "ready"))
        await until(lambda: higher)
        assert (answer.answer, higher) == ("drop", [9])
        commits.close()

    run(scenario())


def test_r13_what_cannot_be_deleted_is_tried_ever_more_seldom(tmp_path: Path, pauses: Pauses) -> None:
    async def fails() -> None:
        raise BROKEN

    async def scenario() -> None:
        deletions = Deletions(lambda: None, on_change=lambda: None)
        deletions.begin("step_10", tmp_path / "step_10", fails)
        await pauses.many.wait()
        deletions.close()
        assert within(pauses.span(), 1.0, 60.0)

    run(scenario())


class Answering:
    """A coordinator that says the same to every notice; `hears` is called before."""

    def __init__(self, answer: str, hears: Any = lambda notice: None) -> None:
        self._answer = answer
        self._hears = hears

    async def save(self, notice: SaveNotice) -> SaveAnswer:
        self._hears(notice)
        return SaveAnswer(self._answer, 1)  # type: ignore[arg-type]


def saver_of(pod: Pod, plan: Plan, coordinator: Answering) -> Saver:
    return Saver(pod, plan, plan.members[0], played(coordinator))


def test_r16_a_part_that_cannot_be_written_is_tried_ever_more_seldom(tmp_path: Path, pauses: Pauses) -> None:
    async def scenario() -> None:
        world.make_snapshot(tmp_path / "snapshots", SAVED, 10)
        pod = pod_of(tmp_path, "pod-0", calls=Storage({"write_rank": BROKEN}))
        saving = asyncio.create_task(saver_of(pod, SAVED, Answering("write")).run())
        await pauses.many.wait()
        saving.cancel()
        assert within(pauses.span(), 0.2, 30.0)

    run(scenario())


def test_a_snapshot_of_which_no_trainer_says_a_word_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(savers, "LOOK_SECONDS", 0.01)
        saver = saver_of(pod_of(tmp_path, "pod-0"), SAVED, Answering("committed"))
        saving = asyncio.create_task(saver.run())
        await saver.drained()
        snapshot = world.make_snapshot(tmp_path / "snapshots", SAVED, 10)
        await until(lambda: not snapshot.exists())
        saving.cancel()

    run(scenario())


def test_a_snapshot_that_came_while_another_was_settled_is_found_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def next_one(notice: SaveNotice) -> None:
        if not made:
            made.append(world.make_snapshot(tmp_path / "snapshots", SAVED, 20))

    async def scenario() -> None:
        monkeypatch.setattr(savers, "LOOK_SECONDS", FOR_EVER)
        world.make_snapshot(tmp_path / "snapshots", SAVED, 10)
        saver = saver_of(pod_of(tmp_path, "pod-0"), SAVED, Answering("committed", next_one))
        saving = asyncio.create_task(saver.run())
        await until(lambda: made)
        await until(lambda: not made[0].exists())
        saving.cancel()

    run(scenario())


def test_overdue_saves_are_looked_for_once_a_second_however_many_members_report() -> None:
    now = [100.0]
    watch = SaveWatch(PLAN, dict, lambda: now[0])
    looks = []
    for _ in range(30):
        looks.append(watch.stepped(1))
        now[0] += LOOK_SECONDS / 10
    assert (looks[0], 3 <= sum(looks) <= 4) == (True, True)


def test_r28_a_member_whose_share_does_not_get_on_prepares_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        made = Verification(pod_of(tmp_path, "a"), PLAN, PLAN.members[0])
        assert not made.is_advancing
        verifying = asyncio.create_task(made.run())
        await until(lambda: made.is_advancing)
        monkeypatch.setattr(verifications, "STALLED_SECONDS", 0.0)
        assert not made.is_advancing
        verifying.cancel()

    run(scenario())


def test_st18_of_a_slow_storage_it_is_known_more_often_that_it_gets_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    took: Iterator[float] = iter([0.0, 0.0, 0.0, 2.0, 2.0, 2.0, *[1.0] * 99])
    monkeypatch.setattr(hashing, "BLOCK_BYTES", 4)
    monkeypatch.setattr(hashing, "SYNC_BYTES", 16)
    monkeypatch.setattr(hashing, "_sync", lambda sink: next(took))
    source, target, told = tmp_path / "source", tmp_path / "target", list[int]()
    source.write_bytes(b"x" * 80)
    with hashing.open_regular(source) as opened:
        hashing.copy_and_hash(opened, target, "name", on_block=lambda: told.append(target.stat().st_size))
    assert told == [4, 12, 28, 44, 52, 56, 60, 64, 68, 72, 76, 80, 80]
