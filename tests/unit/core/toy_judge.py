"""What a job in the toy cluster has come to: rest, or a condition that names what is missing; and how often it called whom."""

from __future__ import annotations

import re
from collections.abc import Callable

from everstep_operator.core.model import Condition
from unit.core.toy_faults import Fault, Victim
from unit.core.toy_stories import Play
from unit.core.toy_world import World

REMEDY = re.compile(
    r"\b(add|allow|bring|check|delete|find|forbid|free|give|grant|look|lower|make|mount|raise|remove|repair|replace|restart|restore|set)\b"
)
TROUBLE = {"Degraded": "True", "CheckpointHealthy": "False", "Valid": "False", "Ready": "False", "Failed": "True"}
LATELY = 30.0  # seconds
MOST_A_SECOND = 5
MOST_FAILURES_A_MINUTE = 4
MOST_ATTEMPTS = 60  # in a quarter of an hour: one for each hello deadline
MOST_IDS = 100


def rest(world: World) -> str:
    """In one word what it rests in; empty: it does not."""
    if world.gone:
        return "gone"
    if any(
        f.count > 2 and world.now - f.wished_at < LATELY
        for k, f in world.operator.calls.failing.items()
        if k[0] == "api"
    ):
        return ""
    is_left = any(p.deleted_at is None and p.view.phase != "Succeeded" for p in world.pods.values())
    if world.status.result:
        return "" if is_left else {"Complete": "succeeded"}.get(world.status.result, "failed")
    attempt = world.status.attempt
    if world.job.suspend:
        return "suspended" if attempt and attempt.state == "Ended" and not is_left else ""
    return "trains" if _trains_with_all(world) else ""


def _trains_with_all(world: World) -> bool:
    run = world.current_run()
    if run is None or run.over or run.crashed:
        return False
    if len(run.plan.members) != world.job.max_workers and not _is_not_grown(world):
        return False
    saves = not world.library or (run.committed_at is not None and world.now - run.committed_at < LATELY)
    undeleted = world.silence.kept and bool(world.status.checkpoints.condemned)
    attempt = world.status.attempt
    is_written = (
        attempt is not None
        and attempt.state == "Started"
        and world.pods.keys() >= {f"gpt-w{m.id}" for m in run.plan.members}
    )
    return run.still(world.now) < LATELY and saves and not undeleted and is_written


def _is_not_grown(world: World) -> bool:
    """A script that would lose its steps is not stopped for more workers, and no job too often; and it says so."""
    assert world.last
    said = "they join after" if world.library else "they join at the next restart"
    return any(said in c.message for c in world.last.conditions)


def advance_to_rest(play: Play, seconds: float, *steady: float, say: Callable[[], object] = lambda: None) -> None:
    """Until it has rested for so long, or has `say`-ed the same for longer; `seconds` at most."""
    until, since, before = play.world.now + seconds, play.world.now, None
    while play.world.now < until:
        play.advance(5)
        now = (rest(play.world), say())
        if now != before:
            before, since = now, play.world.now
        needed = steady[0] if now[0] else steady[-1] if now[1] else seconds
        if play.world.now - since >= needed and not play.events:
            return


def named(world: World, fault: Fault, who: Victim) -> Condition | None:
    """A condition that says what is wrong: its reason is one of the fault's, its text names the part and what to do."""
    assert world.last
    return next((c for c in world.last.conditions if _names(c, fault, who)), None)


def _names(c: Condition, fault: Fault, who: Victim) -> bool:
    is_trouble = TROUBLE.get(c.type) == c.status
    return (
        is_trouble
        and c.reason in fault.reasons
        and any(name in c.message for name in fault.names(who))
        and REMEDY.search(c.message) is not None
    )


def report(world: World) -> str:
    """For people: what it has come to."""
    said = world.last
    assert said
    attempt = world.status.attempt
    conditions = "\n".join(
        f"  {c.type}={c.status} {c.reason}: {c.message}" for c in said.conditions if TROUBLE.get(c.type) == c.status
    )
    return (
        f"{said.phase} {said.reason}: {said.message}; attempt {attempt and (attempt.number, attempt.state, attempt.cause)}, "
        f"ids {world.status.next_worker_id}, rest {rest(world)!r}\n{conditions}"
    )


def num_attempts(world: World) -> int:
    """The number of the newest attempt, 0: none."""
    return world.status.attempt.number if world.status.attempt else 0


def spins(world: World, began: float, attempts: int, ids: int) -> str:
    """What was called too often; empty: nothing."""
    count, key, second = world.operator.calls.busiest()
    if count > MOST_A_SECOND:
        return f"{count} calls of {key} in second {second}"
    often = {k: n for k, n in world.operator.calls.failures_since(world.now - 60).items() if n > MOST_FAILURES_A_MINUTE}
    if often:
        return f"failures in the last minute: {often}"
    more = num_attempts(world) - attempts
    if more > MOST_ATTEMPTS:
        return f"{more} attempts in {world.now - began:.0f} s"
    if world.status.next_worker_id - ids > MOST_IDS:
        return f"{world.status.next_worker_id - ids} worker ids in {world.now - began:.0f} s"
    return ""
