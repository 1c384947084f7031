"""The demo's story: when a node loses its power, when it comes back, and what counts as the demo that was to be seen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from everstep_demo.looks import Checkpoint, Look, Worker
from everstep_demo.story import Act, Story, go_on

WORKERS = tuple(Worker(f"gpt-w{i}", f"node-{i + 1}", "Running", str(i)) for i in range(4))
TRAINING = Look(
    phase="Running", attempt=1, state="Started", cause="start", world=4, coordinator="gpt-w0", step=10, workers=WORKERS
)
SAVED = replace(TRAINING, newest=Checkpoint(20, 1, ""), step=24)
THREE = replace(SAVED, attempt=2, cause="node-lost", world=3, step=21)
FOUR = replace(THREE, attempt=3, cause="grow", world=4, step=60, newest=Checkpoint(60, 2, ""))


def chapters(*looks: Look) -> list[tuple[str, Act | None]]:
    story, told = Story(), []
    for look in looks:
        story, act = go_on(story, look)
        told.append((story.chapter, act))
    return told


def test_the_whole_story() -> None:
    looks = (
        Look(phase="Starting"),
        TRAINING,
        SAVED,
        replace(SAVED, step=26),
        THREE,
        replace(THREE, newest=Checkpoint(40, 2, "")),
        replace(THREE, step=50),
        FOUR,
        replace(FOUR, phase="Succeeded"),
    )
    assert chapters(*looks) == [
        ("starting", None),
        ("training", None),
        ("dark", Act("power-off", "node-4")),
        ("dark", None),
        ("shrunk", None),
        ("returning", Act("boot", "node-4")),
        ("returning", None),
        ("grown", None),
        ("succeeded", None),
    ]


def test_it_begins_with_four_only() -> None:
    assert chapters(replace(TRAINING, world=3)) == [("starting", None)]


@pytest.mark.parametrize(
    "look",
    [
        replace(SAVED, newest=None),
        replace(SAVED, step=22),
        replace(SAVED, workers=()),
        replace(SAVED, workers=WORKERS[:1]),
    ],
    ids=["no checkpoint", "too soon after it", "no pods seen", "only the coordinator's"],
)
def test_no_power_cut_without(look: Look) -> None:
    assert chapters(TRAINING, look)[-1] == ("training", None)


def test_the_coordinators_node_keeps_its_power() -> None:
    look = replace(SAVED, coordinator="gpt-w3")
    assert chapters(TRAINING, look)[-1] == ("dark", Act("power-off", "node-3"))


def test_the_node_comes_back_only_after_a_checkpoint_of_the_smaller_attempt() -> None:
    assert chapters(TRAINING, SAVED, THREE, replace(THREE, step=39))[-1] == ("shrunk", None)


def test_failure_ends_it_at_any_time() -> None:
    assert chapters(TRAINING, SAVED, replace(SAVED, phase="Failed"))[-1] == ("failed", None)
