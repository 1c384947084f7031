"""PROTOCOL's invariants, at the only places where they could be broken."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from everstep_operator.core.model import Decision, JobStatus
from everstep_protocol.lineage import is_on

if TYPE_CHECKING:
    from unit.core.toy_world import World

EMPTY = re.compile(r"\bfor($|[;,.])|\b(None|for nothing)\b|  |: ?$|[;,] ?$|\(\)")


def check_write(world: World, new: JobStatus) -> None:
    """R1, R3, R4, R9, R13, R20, R29: what a write of status may never do."""
    old, attempt = world.status, new.attempt
    assert new != old, "a write that writes nothing"
    assert attempt is not None
    if old.attempt:
        assert attempt.number >= old.attempt.number, "attempt numbers only grow"
    assert new.next_worker_id >= old.next_worker_id, "worker ids only grow"
    came_back = {row.id for row in new.workers} & set(range(old.next_worker_id)) - {row.id for row in old.workers}
    assert not came_back, "an id came back"
    live = [row for row in new.workers if row.state in ("Wanted", "Joined")]
    assert attempt.state != "Preparing" or len(live) <= world.job.max_workers
    if attempt.plan:
        plan = attempt.plan
        assert world.plans.setdefault(plan.attempt, plan.plan_id) == plan.plan_id, "two plans with one number"
        assert (plan.attempt, plan.resume) in world.answers, "a resume that prepare did not give"
        assert world.job.min_workers <= len(plan.members) or old.attempt == attempt or attempt.state == "Started"
        hashes = {world.by_uid[member.uid].view.template_hash for member in plan.members}
        assert hashes == {plan.template_hash}, "a plan of two templates"
        assert plan.resume.id not in new.checkpoints.condemned or not plan.resume.id, "the resume was condemned"
    if attempt.state == "Preparing":
        assert set(new.checkpoints.condemned) <= set(old.checkpoints.condemned), "condemned while Preparing"
    there = world.places["shared"].checkpoints
    least = min(2, len(there), _num_kept(world, old, new))
    assert _num_kept(world, new, new) >= least, "fewer than two were kept"


def _num_kept(world: World, by: JobStatus, new: JobStatus) -> int:
    """How many on the lineage are not condemned."""
    kept = [c for c in world.places["shared"].checkpoints.values() if c.id not in by.checkpoints.condemned]
    return sum(is_on(new.lineage, (c.attempt, c.step), current=new.last_attempt) for c in kept)


def check_pods(world: World) -> None:
    """Pods never exceed max, those that leave apart."""
    counted = {row.id for row in world.status.workers if row.state in ("Wanted", "Joined")}
    stay = [p for p in world.pods.values() if p.deleted_at is None and p.view.worker_id in counted]
    assert len(stay) <= world.most, "more pods than max"


def check_words(decision: Decision) -> None:
    """What is told says something."""
    for said in (decision.message, *(condition.message for condition in decision.conditions)):
        assert said
        assert not EMPTY.search(said), said
