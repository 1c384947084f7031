"""Texts of others (API server, scheduler, kubelet, storage) that are told again and again while only their numbers change."""

from __future__ import annotations

import re
from collections.abc import Iterable

# 12, 0/4, 1.5, 500m, 3Gi, 1m20s; no part of a name or a path (gpt-w3, ip-10-0-0-7, step_40, worker 3), and no address
_NUMBER = re.compile(r"(?<!worker )(?<!rank )(?<!attempt )(?<![\w.\-/])(?!\d+\.\d+\.\d+)\d[\w.]*(?:/\d+)?(?![\w\-/])")


def without_numbers(text: str) -> str:
    """The text, with one sign for each number."""
    return _NUMBER.sub("#", text)


def stable_text(before: str, after: str) -> str:
    """`before` where `after` says the same with other numbers: a change of condition, Event or status each time helps nobody."""
    return before if without_numbers(before) == without_numbers(after) else after


def stable_among(before: Iterable[str], after: str) -> str:
    """The one of `before` that says the same, else `after`."""
    return next((text for text in before if without_numbers(text) == without_numbers(after)), after)
