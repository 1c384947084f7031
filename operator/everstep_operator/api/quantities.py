"""Kubernetes' quantities and Go's durations as numbers."""

from __future__ import annotations

import re
from decimal import Decimal

_FACTORS = {
    "": Decimal(1),
    "n": Decimal("0.000000001"),
    "u": Decimal("0.000001"),
    "m": Decimal("0.001"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:([eE][+-]?[0-9]+)|([A-Za-z]*))", re.ASCII)


def parse_quantity(value: object) -> Decimal:
    """`2Gi` -> 2147483648, `250m` -> 0.25, 3 -> 3. Raises ValueError."""
    match = None if isinstance(value, bool) else _QUANTITY.fullmatch(str(value).strip())
    if match is None or (match[3] or "") not in _FACTORS:
        raise ValueError(f"{value!r} is not a quantity such as 500m, 3 or 2Gi")
    return Decimal(match[1] + (match[2] or "")) * _FACTORS[match[3] or ""]


def parse_duration(text: str) -> float:
    """`1h30m` -> 5400.0 seconds. Raises ValueError."""
    parts = re.findall(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is not a duration such as 90s, 30m or 1h30m")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)
