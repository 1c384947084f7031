"""Power cut to the next training step, again and again, on the test cluster: `make bench-recovery CYCLES=10`.

One job of four workers; each cycle cuts the power of one member's node (every other time the coordinator's), waits until three
train, boots the node, waits until four train. Prints each cycle's ledger line and, for each stage, median and worst. The stages are
what the job's own status says (seconds since the last step finished before the cut); `cut to step` is seen from outside: from the moment
the power went to the first step that a trainer wrote down in the new attempt.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from kit import product, reference
from kit.job import Job, Space
from testcluster.cluster import Cluster

STAGES = ("detected", "planned", "firstStep")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=10)
    parser.add_argument("--output", type=Path, default=Path("build/bench-recovery.json"))
    arguments = parser.parse_args()
    cluster = Cluster(quiet=False)
    with cluster.reserved():
        was_up = cluster.is_up()
        try:
            cluster.up()
            product.install(cluster)
            rows = run(cluster, arguments.cycles)
        finally:
            if not was_up:
                cluster.down()
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(rows, indent=1) + "\n")
    for kind in ("member", "coordinator"):
        print_summary(kind, [row for row in rows if row["lost"] == kind])


def run(cluster: Cluster, cycles: int) -> list[dict[str, Any]]:
    space = Space(cluster, "bench-recovery")
    space.remove()
    space.create()
    try:
        job = space.job(
            "bench",
            command=["torchrun", "--nproc-per-node=1", "/scripts/trainer_probe.py"],
            env=reference.environment(steps=1_000_000, global_batch=24) | {"STEP_SECONDS": "0.1"},
        )
        attempt = job.wait_training(4)
        rows = []
        for cycle in range(cycles):
            row, attempt = one_cycle(job, lost="coordinator" if cycle % 2 else "member", attempt=attempt)
            print(json.dumps(row), flush=True)
            rows.append(row)
        return rows
    finally:
        space.remove()


def one_cycle(job: Job, *, lost: str, attempt: int) -> tuple[dict[str, Any], int]:
    """Cut, recover, boot, grow; the figures and the number of the attempt that trains with four."""
    cluster = job.space.cluster
    job.wait_commit(above=job.newest_step())
    node = list(job.member_nodes().values())[0 if lost == "coordinator" else -1]
    cut_at = time.time()
    cluster.power_off(node)
    shrunk = job.wait_training(3, after_attempt=attempt)
    first = min(record.at for record in job.records() if record.attempt == shrunk)
    job.wait_until(
        "the ledger has the first step", lambda: (entry_of(job, shrunk).get("seconds") or {}).get("firstStep")
    )
    entry = entry_of(job, shrunk)
    cluster.boot(node)
    grown = job.wait_training(4, after_attempt=shrunk, hang_seconds=240)
    row = {"lost": lost, "cutToStep": round(first - cut_at, 2), "stepsLost": entry.get("stepsLost"), **entry["seconds"]}
    return row, grown


def entry_of(job: Job, number: int) -> dict[str, Any]:
    return next((entry for entry in job.history() if entry["number"] == number), {})


def print_summary(kind: str, rows: list[dict[str, Any]]) -> None:
    print(f"{kind}'s node lost, {len(rows)} times: median / worst, in seconds since the last step before the cut")
    for stage in (*STAGES, "cutToStep", "stepsLost"):
        values = [float(row[stage]) for row in rows if row.get(stage) is not None]
        if values:
            print(f"  {stage:10} {statistics.median(values):6.2f} / {max(values):6.2f}   (n={len(values)})")


if __name__ == "__main__":
    main()
