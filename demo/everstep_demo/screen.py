"""How the demo is shown: one live screen on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from everstep_demo.ledger import Ledger, rows_of
from everstep_demo.looks import Look, Worker
from everstep_demo.story import Story

_BARS = "▁▂▃▄▅▆▇█"
_NUM_EVENTS = 6
_PLAIN_EVERY_SECONDS = 5.0


def sparkline(values: Iterable[float], width: int) -> str:
    """The last `width` values as a row of bars."""
    shown = list(values)[-width:]
    if not shown:
        return ""
    low, span = min(shown), max(shown) - min(shown)
    return "".join(_BARS[round((value - low) / span * (len(_BARS) - 1)) if span else 0] for value in shown)


@dataclass
class Shown:
    """All that the screen shows: kept up to date by the demo."""

    nodes: tuple[str, ...]
    until: int
    story: Story = field(default_factory=Story)
    look: Look = field(default_factory=Look)
    dark: frozenset[str] = frozenset()
    losses: list[float] = field(default_factory=list)
    trouble: str = ""
    began: float = field(default_factory=time.monotonic)

    def update(self, story: Story, look: Look) -> None:
        if look.loss is not None and look.step != self.look.step:
            self.losses.append(look.loss)
        self.story, self.look = story, look

    def __rich__(self) -> RenderableType:
        # Rendered anew at every refresh: the clock goes on even while nothing is heard.
        return Panel(
            Group(_headline(self), "", _nodes_table(self), "", _facts(self), "", _events(self)),
            title="[bold]Everstep[/]: a small GPT on four nodes",
            subtitle=f"{time.monotonic() - self.began:.0f} s  -  Ctrl-C ends it and cleans up",
        )


def _headline(shown: Shown) -> Text:
    style = {"dark": "bold red", "failed": "bold red", "succeeded": "bold green"}.get(shown.story.chapter, "bold cyan")
    return Text(shown.story.headline, style=style)


def _nodes_table(shown: Shown) -> Table:
    table = Table(expand=True, box=None, header_style="dim")
    for heading in ("node", "power", "worker", "pod is", "rank"):
        table.add_column(heading)
    for node in shown.nodes:
        power = "[red]off[/]" if node in shown.dark else "[green]on[/]"
        workers = [worker for worker in shown.look.workers if worker.node == node]
        for worker in workers:
            # The API server goes on saying what a dead kubelet said last.
            table.add_row(
                node, power, *_worker_cells(replace(worker, state="silent") if node in shown.dark else worker)
            )
        if not workers:
            table.add_row(node, power, "[dim]-[/]")
    for worker in shown.look.workers:
        if not worker.node:
            table.add_row("[dim]none yet[/]", "", *_worker_cells(worker))
    return table


def _worker_cells(worker: Worker) -> tuple[str, str, str]:
    ranks = f"[bold]{worker.ranks}[/]" if worker.ranks else "[dim]not in this attempt[/]"
    return worker.name, worker.state, ranks


def _facts(shown: Shown) -> Table:
    look = shown.look
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(style="dim", width=11)
    table.add_column(ratio=1)
    table.add_row("job", f"{look.phase or 'not seen yet'}  [dim]{escape(look.message)}[/]")
    table.add_row(
        "attempt", f"{look.attempt}  [dim]{look.cause}[/]  {look.world} workers" if look.attempt else "none yet"
    )
    table.add_row("step", _progress(max(look.step, 0), shown.until))
    table.add_row("loss", _loss(shown))
    newest = look.newest
    kept = f"step {newest.step}  [dim]of attempt {newest.attempt}, {newest.committed_at}[/]" if newest else "none yet"
    table.add_row("checkpoint", kept)
    if shown.trouble:
        table.add_row("trouble", f"[yellow]{escape(shown.trouble)}[/]")
    return table


def _progress(step: int, until: int) -> Table:
    row = Table.grid(padding=(0, 1))
    row.add_row(f"{step}/{until}", ProgressBar(total=until, completed=min(step, until), width=50))
    return row


def _loss(shown: Shown) -> str:
    if shown.look.loss is None:
        return "none yet"
    return f"{shown.look.loss:.3f}  [cyan]{sparkline(shown.losses, 48)}[/]"


def _events(shown: Shown) -> Table:
    table = Table(expand=True, box=None, header_style="dim")
    table.add_column("events", no_wrap=True, overflow="ellipsis")
    lines = shown.look.events[-_NUM_EVENTS:]
    for line in (*lines, *[""] * (_NUM_EVENTS - len(lines))):
        table.add_row(escape(line))
    return table


def plain_line(shown: Shown) -> str:
    """The state of things in one line, for logs."""
    look = shown.look
    nodes = ",".join(worker.node for worker in look.workers if worker.ranks) or "-"
    loss = "-" if look.loss is None else f"{look.loss:.3f}"
    newest = look.newest.step if look.newest else "-"
    return (
        f"[{time.monotonic() - shown.began:5.0f} s] {look.phase or '-'} attempt {look.attempt} ({look.cause or '-'}) "
        f"world {look.world} on {nodes} step {look.step}/{shown.until} loss {loss} checkpoint {newest}"
    )


class Screen:
    """Shows the demo until it is closed: `with Screen(shown) as screen: ... screen.refresh()`."""

    def __init__(self, shown: Shown, console: Console) -> None:
        self._shown = shown
        self._console = console
        self._live = Live(shown, console=console, refresh_per_second=4) if console.is_terminal else None
        self._said_at = 0.0
        self._said: tuple[object, ...] = ()
        self._said_events: set[str] = set()

    def __enter__(self) -> Screen:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def refresh(self) -> None:
        """Says what is new; a live screen refreshes by itself."""
        if self._live is None:
            self._say_plainly()

    def _say_plainly(self) -> None:
        shown, now = self._shown, time.monotonic()
        key = (shown.story.chapter, shown.look.phase, shown.look.attempt, shown.look.state)
        # Not by their number: events of one second come in any order.
        for line in shown.look.events:
            if line not in self._said_events:
                print(f"         event {line}", flush=True)
        self._said_events.update(shown.look.events)
        if key == self._said and now - self._said_at < _PLAIN_EVERY_SECONDS:
            return
        if not self._said or key[0] != self._said[0]:
            print(f"== {shown.story.headline}", flush=True)
        self._said, self._said_at = key, now
        print(plain_line(shown), flush=True)


def print_ledger(ledger: Ledger, console: Console) -> None:
    """The ledger as a table."""
    headings, *rows = rows_of(ledger)
    table = Table(padding=0, title="Ledger: every attempt, and what it cost; seconds since the failure")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "cause" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)
