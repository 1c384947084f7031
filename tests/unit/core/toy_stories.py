"""Lives of a job in the toy cluster, and the moments in them at which a fault may begin.

A moment is the first one in which a story shows a combination of reason, attempt state and stage that no story before it has shown.
So a new state, or a new reason, brings its moments with it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from everstep_operator.core.model import RestartPolicy
from unit.core.jobs import spec
from unit.core.toy_world import World

SAMPLED = 0.25  # seconds

Event = tuple[float, str, dict[str, Any]]


@dataclass(frozen=True)
class Story:
    """What happens when, and how it ends where nothing is wrong."""

    name: str
    rest: str  # trains | suspended | succeeded | failed | gone
    events: tuple[Event, ...] = ()
    spec: dict[str, Any] = field(default_factory=dict)
    seconds: int = 120
    library: bool = True


STORIES = (
    Story("start", "trains"),
    Story("node lost", "trains", ((60, "power_off", {"name": "n3"}), (110, "boot", {"name": "n3"})), seconds=160),
    Story("grow", "trains", ((60, "change", {"max_workers": 4}),), {"max_workers": 3}),
    Story("shrink", "trains", ((60, "change", {"max_workers": 3}),)),
    Story("template edited", "trains", ((60, "change", {"template_hash": "t2"}),)),
    Story("drain", "trains", ((60, "evict", {"index": 3, "grace": 30}),)),
    Story("drain of the coordinator", "trains", ((60, "evict", {"index": 0, "grace": 30}),)),
    Story("suspend", "suspended", ((60, "change", {"suspend": True}),)),
    Story("resume", "trains", ((60, "change", {"suspend": True}), (90, "change", {"suspend": False}))),
    Story("suspend while preparing", "suspended", ((2, "change", {"suspend": True}),)),
    Story("below min", "trains", ((60, "power_off", {"name": "n3"}), (110, "boot", {"name": "n3"})), {"min_workers": 4}, 160),
    Story("crash", "trains", ((60, "crash", {}),)),
    Story("container killed", "trains", ((60, "kill_trainer", {"index": 1}),)),
    Story("finish", "succeeded", ((60, "finish_in", {"steps": 6}),)),
    Story("fail", "failed", ((60, "crash", {}),), {"restart": RestartPolicy(max_crashes=0)}),
    Story("plain script", "trains", library=False),
    Story("plain script loses a node", "trains", ((60, "power_off", {"name": "n3"}), (110, "boot", {"name": "n3"})), seconds=160, library=False),
    Story("plain script is suspended", "suspended", ((60, "change", {"suspend": True}),), library=False),
    Story("plain script finishes", "succeeded", ((60, "finish_in", {"steps": 6}),), library=False),
    Story("time to live", "gone", ((60, "finish_in", {"steps": 6}),), {"ttl_seconds_after_finished": 60.0}, 200),
)  # fmt: skip


@dataclass
class Play:
    """A story as far as it has gone."""

    story: Story
    world: World
    events: list[Event]

    def advance(self, seconds: float) -> None:
        """Go on, event by event."""
        until = self.world.now + seconds
        while self.events and self.events[0][0] <= until:
            at, name, arguments = self.events.pop(0)
            self.world.advance(max(0.0, at - self.world.now))
            getattr(self.world, name)(**arguments)
        self.world.advance(until - self.world.now)


@dataclass(frozen=True)
class Moment:
    """A second of a story."""

    name: str
    play: Play

    def begin(self) -> Play:
        """A copy to be spoilt."""
        return copy.deepcopy(self.play)


def play(story: Story) -> Play:
    """From the beginning."""
    world = World(job=spec(**story.spec), library=story.library, most=max(4, story.spec.get("max_workers", 4)))
    return Play(story, world, list(story.events))


def moments() -> Iterator[Moment]:
    """Every moment of every story that no earlier one has shown."""
    shown: set[tuple[str, ...]] = set()
    for story in STORIES:
        played = play(story)
        for _ in range(int(story.seconds / SAMPLED)):
            key = what_it_shows(played.world)
            if key not in shown:
                shown.add(key)
                yield Moment(f"{story.name}: {' '.join(key)}", copy.deepcopy(played))
            played.advance(SAMPLED)


def what_it_shows(world: World) -> tuple[str, ...]:
    """The combination that makes a moment."""
    attempt, run, said = world.status.attempt, world.current_run(), world.last
    state = attempt.state if attempt else "none"
    stage = run.stage(world.until) if run else "pods ended" if _have_pods_ended(world) else "-"
    if run and world.operator.leave and stage in ("leaving", "stopping", "stopped"):
        stage += f" for {world.operator.leave.purpose}"
    script = () if world.library or stage == "-" else ("plain",)
    return (said.reason if said else "-", state, stage, *script)


def _have_pods_ended(world: World) -> bool:
    return any(p.view.phase == "Succeeded" for p in world.pods.values())
