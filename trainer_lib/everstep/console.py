"""The library's own lines: stderr, `everstep: ` in front, never mixed into the script's stdout."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Print one line for people."""
    print(f"everstep: {text}", file=sys.stderr, flush=True)


def listing(items: list[str], *, most: int = 10, between: str = ", ") -> str:
    """`a, b, c and 7 more`."""
    shown = between.join(items[:most])
    return shown if len(items) <= most else f"{shown} and {len(items) - most} more"
