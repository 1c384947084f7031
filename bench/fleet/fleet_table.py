"""The table that the benchmark prints."""

from __future__ import annotations

import argparse
from typing import Any


def print_table(rows: dict[str, Any], arguments: argparse.Namespace, lost_share: float) -> None:
    jobs = rows["jobs"]
    print(
        f"\n{jobs} jobs x {arguments.workers} workers, {arguments.nodes} nodes, a save every {arguments.save_seconds:g} s"
    )
    lines = [
        ("start of all jobs, CPU-seconds", f"{rows['start']:.1f}", f"{rows['start'] / jobs:.3f}"),
        ("quiet: CPU, % of a core", f"{100 * rows['cpu']:.1f}", f"{100 * rows['cpu_per_job']:.4f}"),
        ("quiet: memory (RSS), MB", f"{rows['memory_mb']:.0f}", f"{rows['memory_mb'] / jobs:.3f}"),
        ("quiet: passes a second", f"{rows['passes']:.1f}", f"{rows['passes'] / jobs:.4f}"),
        ("quiet: a pass, ms of wall time", f"{rows['pass_ms']:.2f}", ""),
        ("quiet: polls a second", f"{rows['polls']:.1f}", f"{rows['polls'] / jobs:.4f}"),
        *(
            (f"quiet: {name} a second", f"{rate:.2f}", f"{rate / jobs:.4f}")
            for name, rate in rows["writes"].items()
            if rate
        ),
        (f"loss of {lost_share:.0%} of the nodes: jobs hit, planned anew", f"{rows['hit']}, {rows['planned_count']}", ""),
        ("loss: jobs not hit that were disturbed", f"{rows['disturbed']}", ""),
        ("loss -> next attempt begun, s: p50 / p99", pair(rows["begun"]), ""),
        ("loss -> next plan written, s: p50 / p99", pair(rows["planned"]), ""),
        ("loss: CPU-seconds until all are planned", f"{rows['loss_cpu']:.1f}", f"{rows['loss_cpu'] / max(1, rows['hit']):.3f}"),
        *((f"loss: {name}", f"{n:.0f}", f"{n / max(1, rows['hit']):.2f}") for name, n in rows["loss_writes"].items() if n),
        ("peak memory (RSS), MB", f"{rows['peak_mb']:.0f}", ""),
    ]  # fmt: skip
    print(f"{'':52}{'all':>14}{'a job':>12}")
    for what, value, each in lines:
        print(f"{what:52}{value:>14}{each:>12}")


def pair(times: dict[str, float]) -> str:
    return f"{times['p50']:.2f} / {times['p99']:.2f}"
