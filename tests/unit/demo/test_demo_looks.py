"""What the demo makes of the API server's documents, and how it shows it."""

from __future__ import annotations

import io
from typing import Any

import pytest
from everstep_demo.looks import Checkpoint, LogStep, Look, Worker, last_step, look_at
from everstep_demo.screen import Screen, Shown, plain_line, sparkline
from everstep_demo.story import Story
from rich.console import Console

PLAN = {
    "world": 3,
    "coordinator": {"uid": "u0", "id": 0},
    "members": [{"uid": "u0", "ranks": [0, 2]}, {"uid": "u1", "ranks": [2, 3]}],
}
STATUS = {
    "phase": "Running",
    "step": 118,
    "attempt": {"number": 2, "state": "Started", "cause": "node-lost", "plan": PLAN},
    "checkpoints": {"newest": {"step": 100, "attempt": 2, "committedAt": "2026-01-01T00:00:00Z"}},
    "conditions": [{"type": "Ready", "status": "True", "message": "3 workers train"}],
    "history": [{"number": 1}],
}


def pod(number: int, node: str, **metadata: Any) -> dict[str, Any]:
    named = {"name": f"gpt-w{number}", "uid": f"u{number}", **metadata}
    return {"metadata": named, "spec": {"nodeName": node}, "status": {"phase": "Running"}}


def event(at: str, reason: str) -> dict[str, Any]:
    return {"metadata": {}, "lastTimestamp": at, "reason": reason, "message": "why"}


def test_a_look() -> None:
    pods = [pod(1, "node-2"), pod(0, "node-1"), pod(2, "node-3", deletionTimestamp="now")]
    events = [event("2026-01-01T00:00:05Z", "Planned"), event("2026-01-01T00:00:01Z", "NodeLost")]
    assert look_at({"status": STATUS}, pods, events, LogStep(120, 2.25)) == Look(
        phase="Running",
        message="3 workers train",
        attempt=2,
        state="Started",
        cause="node-lost",
        world=3,
        coordinator="gpt-w0",
        step=121,
        loss=2.25,
        newest=Checkpoint(100, 2, "2026-01-01T00:00:00Z"),
        workers=(
            Worker("gpt-w0", "node-1", "Running", "0-1"),
            Worker("gpt-w1", "node-2", "Running", "2"),
            Worker("gpt-w2", "node-3", "Terminating", ""),
        ),
        events=("00:00:01  NodeLost: why", "00:00:05  Planned: why"),
        history=({"number": 1},),
    )


def test_a_job_that_has_no_status_yet() -> None:
    assert look_at({}, [], [], None) == Look()


def test_an_attempt_that_is_only_prepared() -> None:
    look = look_at(
        {"status": {"attempt": {"number": 2, "state": "Preparing", "cause": "crash", "plan": None}}}, [], [], None
    )
    assert (look.attempt, look.world, look.trains) == (2, 0, False)


@pytest.mark.parametrize("kind", ["Failed", "Valid"])
def test_what_went_wrong_comes_first(kind: str) -> None:
    status = "True" if kind == "Failed" else "False"
    conditions = [
        {"type": "Ready", "status": "False", "message": "no"},
        {"type": kind, "status": status, "message": "why"},
    ]
    assert look_at({"status": {"conditions": conditions}}, [], [], None).message == "why"


@pytest.mark.parametrize(
    ("log", "found"),
    [
        ("", None),
        ("everstep: attempt 2\nloading\n", None),
        ("step 1 loss 4.5 world 4\nstep 2 loss 4.25 world 4\n", LogStep(2, 4.25)),
        ("[rank 0] step 20 loss 1e-05 world 3\n", LogStep(20, 1e-05)),
        ("step 3 loss nan world 4\n", None),
        ("misstep 3 loss 1.0", None),
    ],
)
def test_the_last_step_of_a_log(log: str, found: LogStep | None) -> None:
    assert last_step(log) == found


def test_a_sparkline() -> None:
    assert sparkline([], 8) == ""
    assert sparkline([1.0, 1.0], 8) == "▁▁"
    assert sparkline([9.0, 4.0, 3.0, 2.0, 1.0], 4) == "█▆▃▁"


def shown() -> Shown:
    """A job on node-1, node-2's power off."""
    shown = Shown(("node-1", "node-2"), 400, dark=frozenset({"node-2"}))
    look = look_at(
        {"status": STATUS}, [pod(0, "node-1"), pod(3, "")], [event("2026-01-01T00:00:05Z", "[odd]")], LogStep(120, 2.25)
    )
    shown.update(Story(chapter="shrunk"), look)
    return shown


def test_the_live_screen_shows_everything() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120, no_color=True)
    with Screen(shown(), console):
        pass
    file = console.file
    assert isinstance(file, io.StringIO)
    text = file.getvalue()
    for expected in (
        "Three workers go on",
        "gpt-w0",
        "off",
        "not in this attempt",
        "121/400",
        "2.250",
        "step 100",
        "[odd]: why",
    ):
        assert expected in text, expected


def test_without_a_terminal_it_says_only_what_is_new(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(file=io.StringIO(), force_terminal=False)
    with Screen(shown(), console) as screen:
        screen.refresh()
        first = capsys.readouterr().out
        screen.refresh()
    assert "attempt 2 (node-lost) world 3 on node-1 step 121/400 loss 2.250 checkpoint 100" in first
    assert "event 00:00:05  [odd]: why" in first
    assert capsys.readouterr().out == ""
    assert plain_line(Shown((), 400)).endswith("world 0 on - step -1/400 loss - checkpoint -")
