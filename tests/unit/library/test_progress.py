"""The pages that a trainer and its sidecar share."""

from __future__ import annotations

from pathlib import Path

from everstep.progress import Reporter, StepClock
from everstep_protocol import names
from everstep_protocol.shared_memory import PHASES, Control, Page, Progress


def test_a_reporter_publishes_phases_steps_and_counts(tmp_path: Path) -> None:
    reporter = Reporter(tmp_path, local_rank=2, attempt=4)
    reporter.open()
    page = Page(tmp_path / f"{names.PROGRESS_PREFIX}2", Progress)
    page.open(create=False)
    first = page.read()
    assert first is not None
    assert (first.attempt, first.step, PHASES[first.phase]) == (4, -1, "starting")
    assert first.step_at_ns > 0, "its age counts from the start"
    reporter.enter("training")
    reporter.finish_step(10, at_ns=123, usual_ns=45, samples_consumed=640)
    reporter.count(skipped=2, failed=1)
    assert page.read() == Progress(4, 10, 123, 45, PHASES.index("training"), 640, 2, 1)


def test_r19_only_orders_for_this_attempt_count(tmp_path: Path) -> None:
    reporter = Reporter(tmp_path, local_rank=0, attempt=4)
    reporter.open()
    assert reporter.stop_step() == (-1, False), "nothing was written yet"
    control = Page(tmp_path / names.CONTROL_NAME, Control)
    control.open(create=True)
    control.write(Control(3, 10, 1))
    assert reporter.stop_step() == (-1, False)
    control.write(Control(4, 10, 0))
    assert reporter.stop_step() == (10, False)
    control.write(Control(4, 10, 1))
    assert reporter.stop_step() == (10, True)


def test_the_usual_time_is_a_median() -> None:
    clock = StepClock()
    clock.start()
    for _ in range(9):
        clock.tick()
    quick = clock.usual_ns
    clock._last_ns -= 10**12  # one step took very long
    clock.tick()
    assert clock.usual_ns < 100 * max(quick, 1000)
