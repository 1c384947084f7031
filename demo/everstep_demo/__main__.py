"""`make demo`: a training job on a real Kubernetes; in the middle a node loses its power.

Exit code 0 only if the job succeeded and the ledger is the one that was to be seen.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console
from testcluster.cluster import Cluster
from testcluster.shell import CommandError, Progress

from everstep_demo.ledger import Ledger, ledger_of, problems_of
from everstep_demo.looks import Look
from everstep_demo.screen import Screen, Shown, print_ledger
from everstep_demo.stage import NAMESPACE, ROOT, Example, Stage, read_example
from everstep_demo.story import FINAL, Act, go_on
from everstep_demo.watcher import Watcher

LEDGER = ROOT / "build" / "demo-ledger.json"
LOGS = ROOT / "build" / "demo-logs"
_LOOK_EVERY_SECONDS = 0.2
_HANG_SECONDS = 180.0  # nothing new for so long is a failure, not patience
_PLAIN_WIDTH = 120

_KEPT = """\
The cluster is up, the job's pods and checkpoints are still there:

  tests/cluster/cluster kubectl get trainingjobs -A -w
  tests/cluster/cluster kubectl -n {namespace} describe trainingjob {job}
  tests/cluster/cluster kubectl -n {namespace} get pods -o wide
  tests/cluster/cluster kubectl -n {namespace} logs {job}-w0 -c trainer
  tests/cluster/cluster node power-off node-2      (partition, heal, boot, drain: tests/cluster/cluster --help)
  make cluster-down                                removes it
"""


def main() -> int:
    """Exit code: 0 as it should be, 1 not so, 130 by Ctrl-C."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the cluster up")
    arguments = parser.parse_args()
    if os.geteuid():
        print("make demo: needs root, for network namespaces, mounts and containers", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _demo(keep=arguments.keep)
    except KeyboardInterrupt:
        return 130
    except (CommandError, RuntimeError, TimeoutError, ValueError, OSError, subprocess.SubprocessError) as error:
        print(f"make demo: {error}", file=sys.stderr)
        return 1


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _demo(*, keep: bool) -> int:
    console, began = Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH), time.monotonic()
    LEDGER.parent.mkdir(exist_ok=True)
    LEDGER.unlink(missing_ok=True)
    cluster = Cluster(quiet=False)
    example, stage = read_example(), Stage(cluster, Progress())
    with cluster.reserved(), _struck_afterwards(stage, keep=keep):
        stage.build(example)
        look = _play(stage, example, console)
        problems = _report(look, example, console)
        if problems:
            stage.keep_logs(LOGS)
    if keep:
        print(_KEPT.format(namespace=NAMESPACE, job=example.name))
    print(f"the whole demo: {time.monotonic() - began:.0f} s")
    return 1 if problems else 0


@contextmanager
def _struck_afterwards(stage: Stage, *, keep: bool) -> Iterator[None]:
    """Takes the stage down in any case; with `keep` only what was never finished."""
    finished = False
    try:
        yield
        finished = True
    except KeyboardInterrupt:
        print("\ninterrupted: cleaning up", file=sys.stderr)
        raise
    except Exception:
        stage.keep_logs(LOGS)
        raise
    finally:
        if not (keep and finished):
            # A second Ctrl-C would leave half of it running.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            stage.strike()


def _play(stage: Stage, example: Example, console: Console) -> Look:
    """Shows the job and acts on its nodes until it has ended; the last look at it."""
    shown = Shown(stage.cluster.nodes, example.until)
    watcher = Watcher(stage.cluster, NAMESPACE, example.name)
    watcher.start()
    try:
        with Screen(shown, console) as screen, ThreadPoolExecutor(1) as hands:
            return _follow(shown, watcher, screen, Hands(stage, shown, hands))
    finally:
        watcher.stop()


class Hands:
    """Does what the story asks for, one thing after the other, while the screen goes on."""

    def __init__(self, stage: Stage, shown: Shown, pool: ThreadPoolExecutor) -> None:
        self._stage = stage
        self._shown = shown
        self._pool = pool
        self._doing: list[Future[None]] = []

    def do(self, act: Act) -> None:
        self._doing.append(self._pool.submit(self._act, act))

    def check(self) -> None:
        """Raises what went wrong."""
        for done in [future for future in self._doing if future.done()]:
            self._doing.remove(done)
            done.result()

    def _act(self, act: Act) -> None:
        if act.kind == "power-off":
            self._shown.dark |= {act.node}
            self._stage.cluster.power_off(act.node)
        else:
            self._stage.cluster.boot(act.node)
            self._shown.dark -= {act.node}


def _follow(shown: Shown, watcher: Watcher, screen: Screen, hands: Hands) -> Look:
    news_at = time.monotonic()
    while True:
        look = watcher.seen.look
        if _is_news(look, shown.look):
            news_at = time.monotonic()
        elif time.monotonic() - news_at > _HANG_SECONDS:
            return look
        story, act = go_on(shown.story, look)
        shown.update(story, look)
        shown.trouble = watcher.seen.trouble
        if act:
            hands.do(act)
        hands.check()
        screen.refresh()
        if story.chapter in FINAL:
            return _last_look(watcher, shown)
        time.sleep(_LOOK_EVERY_SECONDS)


def _is_news(look: Look, before: Look) -> bool:
    return (look.step, look.attempt, look.state, look.message) != (
        before.step,
        before.attempt,
        before.state,
        before.message,
    )


def _last_look(watcher: Watcher, shown: Shown, within_seconds: float = 10) -> Look:
    """The log's last line may be read a moment after the job was declared done."""
    deadline = time.monotonic() + within_seconds
    while (
        watcher.seen.look.step < shown.until and watcher.seen.look.phase == "Succeeded" and time.monotonic() < deadline
    ):
        time.sleep(_LOOK_EVERY_SECONDS)
    return watcher.seen.look


def _report(look: Look, example: Example, console: Console) -> list[str]:
    ledger = ledger_of(look)
    problems = problems_of(ledger, look.step, example.until)
    _write(ledger, LEDGER)
    print_ledger(ledger, console)
    print(f"final loss {ledger['final_loss']}; the ledger is in {LEDGER.relative_to(ROOT)}")
    if look.phase != "Succeeded":
        print(f"the job is {look.phase or 'without a status'}: {look.message}", file=sys.stderr)
    for problem in problems:
        print(f"not as it should be: {problem}", file=sys.stderr)
    return problems


def _write(ledger: Ledger, file: Path) -> None:
    file.write_text(json.dumps(ledger, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
