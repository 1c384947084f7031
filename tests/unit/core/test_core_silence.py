"""From every state, with whatever part silent for ever: the job moves on, or a condition names what is missing. Nothing is silent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any, get_args, get_type_hints

import pytest
from everstep_operator.core.decide import decide
from everstep_operator.core.model import AskLeave, Decision, Observed, WriteStatus
from everstep_protocol.messages import MemberSummary, PrepareAnswer, SidecarStatus, Sight, Training, Trouble
from unit.core.cases_ended import COMPLETE
from unit.core.cases_stopping import SUSPENDED
from unit.core.decisions import planned_2
from unit.core.jobs import (
    SETTINGS,
    answer,
    blind_sight,
    nodes,
    observed,
    pending,
    pod,
    preparing,
    rows,
    sidecar,
    spec,
    started_status,
    training,
)

EVER = 1e6  # seconds
HANGS = Trouble("StorageHangs", "a listing of /ckpt has not returned", EVER)
FULL = Trouble("ENOSPC", "/ckpt is full", EVER)
OVERDUE = Trouble("SavesOverdue", "worker 2 has not saved", EVER)
PHASES = get_args(get_type_hints(Training)["phase"])
BEFORE_GO = ("absent", "preparing", "ready")


def words(decision: Decision) -> str:
    """All that is told by conditions that are not as they should be."""
    good = {"Valid": "True", "Ready": "True", "CheckpointHealthy": "True", "Degraded": "False", "Failed": "False"}
    bad = [c for c in decision.conditions if c.status != good.get(c.type, c.status)]
    return " | ".join(f"{c.type} {c.reason} {c.message}" for c in bad)


def moves(decision: Decision) -> bool:
    return any(isinstance(action, WriteStatus) for action in decision.actions)


def preparing_for_ever() -> Iterator[tuple[str, Observed]]:
    asleep: dict[str, Any] = {"attempt_age_seconds": EVER, "prepare_age_seconds": EVER, "prepare_by": "u0"}
    everybody = tuple(pod(i) for i in range(3))
    status = {
        "status": preparing().status,
        "pods": (*everybody, pod(3), pending(4, unschedulable="no room", avoid=("n3",))),
    }
    no_launcher = tuple(Sight(f"u{i}", None, launcher=False) for i in range(3))
    none_sees = (Sight("u0", None, launcher=True), blind_sight(1), blind_sight(2))
    answers: dict[str, PrepareAnswer | None] = {
        "nobody": None,
        "stalled": answer(outcome="busy", reason="", message="", progress_age_seconds=EVER),
        "wait": answer(outcome="wait", reason="StorageMissing", message="/ckpt is not there"),
        "stop": answer(outcome="stop", reason="NoUsableCheckpoint", message="/ckpt has none"),
        "none sees": answer(sights=none_sees),
        "no launcher": answer(sights=no_launcher),
    }
    for name, said in answers.items():
        failed = ("u0", "u1", "u2") if said is None else ()
        yield f"preparing: {name}", preparing(**status, prepare=said, prepare_failed=failed, **asleep)
    for name, pods in {
        "no pods": (),
        "pending": tuple(pending(i, unschedulable="no room") for i in range(3)),
        "containers end": tuple(pod(i, trainer_terminated=True) for i in range(3)),
        "silent kubelets": everybody,
    }.items():
        wanted = replace(preparing().status, workers=rows(0, 1, 2, 4, state="Wanted"))
        silent = {f"n{i}": {"unreachable": True} for i in range(4)} if name == "silent kubelets" else {}
        yield f"preparing: {name}", preparing(status=wanted, pods=pods, nodes=nodes(**silent), **asleep)


def planned_for_ever() -> Iterator[tuple[str, Observed]]:
    base: dict[str, Any] = {
        "spec": spec(max_workers=3),
        "status": planned_2(workers=rows(0, 1, 2)),
        "pods": tuple(pod(i, plan_attempt=2) for i in range(3)),
        "attempt_age_seconds": EVER,
    }
    said: dict[str, SidecarStatus | None] = {
        "nobody": None,
        "a member only": replace(sidecar(2, (0, 1, 2), role="member", pod_uid="u1", gone=False), members=()),
    }
    for state, storage, trouble in product(BEFORE_GO, (None, HANGS), (None, HANGS, OVERDUE)):
        told = tuple(
            MemberSummary(f"u{i}", "ready" if i == 0 else state, 0, 2, trouble=trouble if i else None)  # type: ignore[arg-type]
            for i in range(3)
        )
        name = f"{state}, storage {bool(storage)}, trouble {trouble and trouble.reason}"
        coordinator = sidecar(
            2, (0, 1, 2), gone=False, training=training(-1, library=False, phase="none"), storage=storage
        )
        said[name] = replace(coordinator, members=told)
    for name, word in said.items():
        yield f"planned: {name}", preparing(**base, sidecar=word)


def started_for_ever(suspend: bool) -> Iterator[tuple[str, Observed]]:
    for phase, library, step, failing in product(PHASES, (True, False), (-1, 40), (None, FULL, OVERDUE)):
        if not library and step >= 0:
            continue
        script = Training(library, step, EVER, 0.2, phase)  # type: ignore[arg-type]
        yield (
            f"started: {phase}, library {library}, step {step}, failing {failing and failing.reason}, suspend {suspend}",
            quiet(sidecar=sidecar(training=script, failing=failing), suspend=suspend),
        )
    witness = replace(sidecar(role="member", pod_uid="u1", gone=False, training=training(40)), members=())
    for name, word, age in (("nobody", None, EVER), ("old", sidecar(), EVER), ("a member", witness, 0.1)):
        seen = quiet(sidecar=word, suspend=suspend, coordinator_age_seconds=EVER)
        yield (
            f"started: {name} answers, suspend {suspend}",
            replace(seen, sidecar_age_seconds=age, training_age_seconds=0.3),
        )


def quiet(suspend: bool, **changes: Any) -> Observed:
    """Attempt 1 has been Started for ever, and nothing has come since."""
    asked: dict[str, Any] = {"leave_age_seconds": EVER, "leave_purpose": "suspend"} if suspend else {}
    return observed(
        spec=spec(suspend=suspend),
        status=started_status(),
        training_age_seconds=EVER,
        go_age_seconds=EVER,
        attempt_age_seconds=EVER,
        **asked,
        **changes,
    )


def at_rest() -> Iterator[tuple[str, Observed]]:
    stays = (pod(2, deletion_age_seconds=EVER, deletion_grace_seconds=30.0),)
    yield "suspended: a pod stays", observed(status=SUSPENDED, spec=spec(suspend=True), pods=stays)
    yield "finished: a pod stays", observed(status=COMPLETE, pods=stays)


CASES = dict(
    [*preparing_for_ever(), *planned_for_ever(), *started_for_ever(False), *started_for_ever(True), *at_rest()]
)


@pytest.mark.parametrize("seen", CASES.values(), ids=CASES)
def test_whatever_is_silent_for_ever_the_job_moves_on_or_says_what_is_missing(seen: Observed) -> None:
    decision = decide(seen, SETTINGS)
    told = words(decision)
    assert moves(decision) or re.search(r"worker \d|no worker|/ckpt|gpt-w\d", told), told


@pytest.mark.parametrize("seen", CASES.values(), ids=CASES)
def test_and_it_looks_again_or_hears_of_it(seen: Observed) -> None:
    """A decision that changes nothing is followed by another look, unless the job is at rest."""
    decision = decide(seen, SETTINGS)
    assert moves(decision) or decision.requeue_after or decision.phase in ("Suspended", "Succeeded")


@pytest.mark.parametrize("seen", CASES.values(), ids=CASES)
def test_what_is_told_does_not_change_by_itself(seen: Observed) -> None:
    later = replace(seen, sidecar_age_seconds=seen.sidecar_age_seconds + 9.0 if seen.sidecar_age_seconds > 60 else 0.3)
    later = replace(later, attempt_age_seconds=seen.attempt_age_seconds + 7.0, go_age_seconds=seen.go_age_seconds + 7.0)
    first, second = decide(seen, SETTINGS), decide(later, SETTINGS)
    assert (first.reason, first.message, first.conditions) == (second.reason, second.message, second.conditions)


def test_r30_while_a_suspension_may_still_be_saved_it_is_asked_for() -> None:
    seen = observed(spec=spec(suspend=True), leave_age_seconds=119.0, leave_purpose="suspend", leave_accepted=False)
    assert [action for action in decide(seen, SETTINGS).actions if isinstance(action, AskLeave)]
