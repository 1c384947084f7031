"""What wakes a job: whatever has happened in it, at once; time, steps and saves alone do not. And how seldom many quiet jobs are looked after."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from everstep_operator.cluster import pace
from everstep_operator.cluster.follow import Target
from everstep_operator.cluster.news import gets_on, news
from everstep_operator.cluster.pace import Pace
from everstep_protocol.messages import CheckpointInfo, MemberSummary, Over, SidecarStatus, Training, Trouble
from loopback import address, free_port
from unit.operator.small_sidecars import JOB, Pod, client, follower_of, plan_of, run, status, until

TROUBLE = Trouble("EIO", "the storage fails", 1.0)
TRAINS = Training(True, 5, 0.1, 0.1, "training")
BASE = status(
    "pod-0",
    members=(MemberSummary("pod-0", "running", 0, 1, heard_age_seconds=0.1),),
    checkpoints=(CheckpointInfo("a", "step_4", 1, 4, 1), CheckpointInfo("b", "step_5", 1, 5, 1)),
    failing=TROUBLE,
)


def member(**changes: Any) -> dict[str, Any]:
    return {"members": (replace(BASE.members[0], **changes),)}


QUIET: dict[str, dict[str, Any]] = {
    "another version": {"version": "v2"},
    "a step": {"training": replace(TRAINS, step=6, age_seconds=0.0, usual_seconds=0.2)},
    "a save begins": {"training": replace(TRAINS, phase="saving"), "bytes_age_seconds": 0.1},
    "ages": {"failing": replace(TROUBLE, age_seconds=9.0), "late_seconds": 0.1, **member(heard_age_seconds=0.9)},
    "a deletion is done": {"checkpoints": BASE.checkpoints[1:], "deleted": ("a",)},
}
HAPPENED: dict[str, dict[str, Any]] = {
    "another pod speaks": {"pod_uid": "pod-1"},
    "go": {"gone": False},
    "the first step": {"training": replace(TRAINS, step=-1)},
    "the end of the steps": {"training": replace(TRAINS, phase="finished")},
    "no library": {"training": replace(TRAINS, library=False)},
    "finished": {"finished": True},
    "over": {"over": Over("crash", "exit code 1")},
    "a commit": {"checkpoints": (*BASE.checkpoints, CheckpointInfo("c", "step_6", 1, 6, 1))},
    "saves work again": {"failing": None},
    "another trouble": {"failing": replace(TROUBLE, message="the storage is full")},
    "the storage": {"storage": TROUBLE},
    "a lost peer": {"lost_peers": {"pod-1": 0.1}},
    "a member is lost": member(lost_by=1),
    "a member leaves": member(leaving=True),
    "a member's trouble": member(trouble=TROUBLE),
    "a member is ready": member(state="ready"),
    "a higher attempt": {"highest": 2},
}


@pytest.mark.parametrize("changes", QUIET.values(), ids=QUIET)
def test_what_is_no_news(changes: dict[str, Any]) -> None:
    assert news(replace(BASE, **changes)) == news(BASE)


@pytest.mark.parametrize("changes", HAPPENED.values(), ids=HAPPENED)
def test_whatever_happens_is_news(changes: dict[str, Any]) -> None:
    assert news(replace(BASE, **changes)) != news(BASE)


def test_every_field_of_an_answer_is_news_or_is_not() -> None:
    """A field that is added must be put into one of the tables."""
    plain = {
        "format",
        "plan_id",
        "attempt",
        "role",
        "num_skipped_saves",
        "num_failed_saves",
    }  # numbers for people; follow from others
    tried = {name for table in (QUIET, HAPPENED) for changes in table.values() for name in changes}
    assert tried | plain == set(SidecarStatus.__dataclass_fields__)


async def _wakes(answers: list[SidecarStatus]) -> list[bool]:
    """Whether each of the answers after the first woke the job."""
    port = free_port()
    pod = Pod(address(1), port, "pod-0", answers[0])
    await pod.start()
    woken = asyncio.Event()
    found = []
    async with client(port) as asker:
        follower = follower_of(asker, woken.set).follower
        follower.follow(Target(JOB, plan_of(pod, Pod(address(2), port, "pod-1", BASE)), ()))
        for i, answer in enumerate(answers):
            pod.status = replace(answer, version=f"v{i}")
            await until(lambda: follower.seen is not None and follower.seen.status.version == pod.status.version)
            found.append(woken.is_set())
            woken.clear()
        follower.stop()
    await pod.stop()
    return found[1:]


@pytest.mark.parametrize(
    ("answer", "wakes"),
    [
        (replace(BASE, training=replace(TRAINS, step=6)), False),
        (replace(BASE, gone=False), True),
        (replace(BASE, training=replace(TRAINS, age_seconds=11.0)), True),
    ],
    ids=["a step", "something happened", "no step for long"],
)
def test_only_what_happened_and_what_may_hang_wakes_a_job(
    monkeypatch: pytest.MonkeyPatch, answer: SidecarStatus, wakes: bool
) -> None:
    monkeypatch.setattr(pace, "_POLL_SECONDS", 0.05)

    async def test() -> None:
        assert await _wakes([BASE, answer]) == [wakes]

    run(test)


def test_trainers_get_on_until_a_step_takes_much_longer_than_usual() -> None:
    assert gets_on(replace(TRAINS, age_seconds=9.9))
    assert not gets_on(replace(TRAINS, age_seconds=10.0))
    assert gets_on(replace(TRAINS, age_seconds=89.0, usual_seconds=30.0))


def test_few_jobs_are_looked_after_often_and_many_seldom() -> None:
    few, many, most = (Pace(lambda n=n: n) for n in (1, 400, 100_000))
    assert (few.poll_seconds(is_quiet=True), many.poll_seconds(is_quiet=True)) == (4.0, 10.0)
    assert (few.look_seconds(), many.look_seconds()) == (0.05, 20.0)
    assert (few.write_seconds(), many.write_seconds()) == (0.2, 80.0)
    assert (most.poll_seconds(is_quiet=True), most.look_seconds()) == (25.0, 30.0)
    assert most.poll_seconds(is_quiet=False) == 4.0, "whoever is not quiet is asked as if it were alone"
