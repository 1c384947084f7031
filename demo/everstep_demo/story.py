"""What happens in the demo and when: one pure function from what is seen to what is done next."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from everstep_demo.looks import Look

Chapter = Literal["starting", "training", "dark", "shrunk", "returning", "grown", "succeeded", "failed"]

HEADLINES: dict[Chapter, str] = {
    "starting": "Four workers start, one on each node",
    "training": "Four workers train; as soon as a checkpoint is complete, a node loses its power",
    "dark": "{victim} has lost its power: nobody hears it, everything on it is dead",
    "shrunk": "Three workers go on from the newest complete checkpoint, resharded",
    "returning": "{victim} is switched on again; training goes on meanwhile",
    "grown": "Four workers again, taken in at an agreed step",
    "succeeded": "Done",
    "failed": "The job failed",
}
FINAL: tuple[Chapter, ...] = ("succeeded", "failed")


@dataclass(frozen=True)
class Act:
    """What is done to a node."""

    kind: Literal["power-off", "boot"]
    node: str


@dataclass(frozen=True)
class Story:
    """Where the demo is. `attempt` and `step` are those of the moment at which the chapter began."""

    wanted: int = 4
    chapter: Chapter = "starting"
    victim: str = ""
    attempt: int = 0
    step: int = -1

    @property
    def headline(self) -> str:
        return HEADLINES[self.chapter].format(victim=self.victim)


def go_on(story: Story, look: Look) -> tuple[Story, Act | None]:
    """The story after one more look at the job, and what is to be done now."""
    if look.phase == "Failed":
        return _turn(story, "failed", look), None
    if look.phase == "Succeeded":
        return _turn(story, "succeeded", look), None
    if story.chapter == "starting" and look.trains and look.world == story.wanted:
        return _turn(story, "training", look), None
    if story.chapter == "training" and _may_lose_power(story, look):
        story = replace(_turn(story, "dark", look), victim=_victim(look))
        return story, Act("power-off", story.victim)
    if story.chapter == "dark" and look.trains and look.attempt > story.attempt:
        return _turn(story, "shrunk", look), None
    if story.chapter == "shrunk" and look.newest and look.newest.attempt >= story.attempt:
        return _turn(story, "returning", look), Act("boot", story.victim)
    if story.chapter == "returning" and look.trains and look.world == story.wanted:
        return _turn(story, "grown", look), None
    return story, None


def _turn(story: Story, chapter: Chapter, look: Look) -> Story:
    if story.chapter == chapter:
        return story
    return replace(story, chapter=chapter, attempt=look.attempt, step=look.step)


def _may_lose_power(story: Story, look: Look) -> bool:
    """Some steps after a checkpoint: so that there is something to go on from, and something to lose."""
    return (
        look.newest is not None
        and look.step >= look.newest.step + 3
        and bool(_victim(look))
        and look.attempt == story.attempt
    )


def _victim(look: Look) -> str:
    """The node of the last member; empty while the pods are not known."""
    members = [worker for worker in look.workers if worker.ranks and worker.node and worker.name != look.coordinator]
    return members[-1].node if members else ""
