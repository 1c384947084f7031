"""How long one `decide()` takes for jobs of 10, 100 and 1,000 workers, in each phase: `make bench-decide`. What grows with the square shows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from everstep_operator.core.decide import decide
from everstep_operator.core.model import AttemptStatus, Observed, Settings
from unit.core import jobs

SIZES = (10, 100, 1000)
RUNS = 5


def base(n: int) -> Observed:
    members = tuple(range(n))
    return jobs.observed(
        spec=jobs.spec(max_workers=n, min_workers=n // 2),
        status=jobs.started_status(members),
        pods=tuple(jobs.pod(i) for i in members),
        nodes=jobs.nodes(n),
        sidecar=jobs.sidecar(members=members, checkpoints=(jobs.info(1, 20), jobs.info(1, 30))),
    )


def quiet(n: int) -> Observed:
    return base(n)


def losing(n: int) -> Observed:
    lost = {f"u{i}": replace(jobs.SILENT, lost_by=n, asked=n) for i in range(0, n, 10)}
    return replace(base(n), networks=lost, sidecar=jobs.sidecar(members=tuple(range(n)), training=jobs.training(age_seconds=4.0)),
                   training_age_seconds=4.0)  # fmt: skip


def publishing(n: int) -> Observed:
    seen = base(n)
    assert seen.status.attempt is not None
    attempt = replace(seen.status.attempt, state="Planned")
    told = tuple(replace(pod, plan_attempt=0) for pod in seen.pods)
    silent = jobs.sidecar(members=tuple(range(n)), states=("absent",) * n, gone=False)
    return replace(seen, status=replace(seen.status, attempt=attempt), pods=told, sidecar=silent)


def waiting(n: int) -> Observed:
    """Most pods find no room, and all avoid some nodes."""
    seen = prepared(n)
    no_room = tuple(jobs.pending(i, unschedulable="no room", avoid=("n1", "n2")) for i in range(n))
    fresh = jobs.nodes(n, **{f"n{i}": {"ready_age_seconds": 1.0} for i in range(n)})
    return replace(seen, pods=no_room, nodes=fresh, prepare=None)


def prepared(n: int) -> Observed:
    """The look at storage is answered: members are chosen, the plan is made."""
    seen = base(n)
    attempt = AttemptStatus(2, "Preparing", "i2", "node-lost", 1, failure_at=jobs.NOW_TEXT)
    return replace(
        seen,
        status=replace(seen.status, attempt=attempt),
        sidecar=None,
        attempt_age_seconds=1.0,
        go_age_seconds=0.0,
        prepare=jobs.answer(sights=tuple(jobs.good_sight(*range(n)).values())),
        prepare_by="u0",
        prepare_age_seconds=0.1,
    )


def growing(n: int) -> Observed:
    """Half of the workers train, the others wait to join."""
    half = tuple(range(n // 2))
    status = jobs.started_status(half, workers=jobs.rows(*range(n)), next_worker_id=n)
    return replace(base(n), status=status, sidecar=jobs.sidecar(members=half), sights=jobs.good_sight(*range(n // 2, n)),
                   sight_ages={})  # fmt: skip


PHASES: dict[str, Callable[[int], Observed]] = {
    "quiet": quiet,
    "a tenth is lost": losing,
    "plan is published": publishing,
    "waiting for room": waiting,
    "plan is made": prepared,
    "half waits to join": growing,
}


def milliseconds(make: Callable[[int], Observed], n: int) -> float:
    """The least of some runs: what else the machine does is not counted."""
    seen, settings = make(n), Settings()
    best = float("inf")
    for _ in range(RUNS):
        fresh = replace(seen)
        began = time.perf_counter()
        decide(fresh, settings)
        best = min(best, time.perf_counter() - began)
    return 1000 * best


def main() -> None:
    print(f"{'decide(), milliseconds':24}" + "".join(f"{n:>10}" for n in SIZES) + f"{'x for 10x':>12}")
    for name, make in PHASES.items():
        times = [milliseconds(make, n) for n in SIZES]
        print(f"{name:24}" + "".join(f"{t:10.2f}" for t in times) + f"{times[-1] / times[-2]:12.1f}")


if __name__ == "__main__":
    main()
