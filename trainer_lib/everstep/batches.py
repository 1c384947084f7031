"""What sampler, loader and stream have in common: whose share it is, how samples become a batch, what a refusal looks like."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from everstep.console import say

Collate = Callable[[list[Any]], Any]


def rank_and_world(fixed: tuple[int, int] | None) -> tuple[int, int]:
    """`fixed` where the user has given it; else torch.distributed's once it is initialised, else what the environment says."""
    if fixed is not None:
        return fixed
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def fixed_place(who: str, rank: int | None, world: int | None) -> tuple[int, int] | None:
    """(rank, world) where the user has given them. Raises ValueError for one without the other, or a rank that is not in the world."""
    if rank is None and world is None:
        return None
    if rank is None or world is None:
        raise ValueError(f"{who}: give both `rank` and `world`, or neither")
    if not 0 <= rank < world:
        raise ValueError(f"{who}: rank={rank}, world={world}: ranks are 0 to world - 1")
    return rank, world


def require_positive(who: str, **values: int | None) -> None:
    """Raises ValueError that names every value below 1; None is a value that was not given."""
    wrong = [f"{name}={value!r}" for name, value in values.items() if value is not None and value < 1]
    if wrong:
        raise ValueError(f"{who}: {', '.join(wrong)}: must be at least 1")


def require_same(who: str, what: str, saved: dict[str, Any], own: dict[str, Any], keys: tuple[str, ...]) -> None:
    """Raises ValueError that names what of `keys` was another in the checkpoint."""
    changed = [key for key in keys if saved.get(key) != own[key]]
    if changed:
        told = ", ".join(f"{key} was {saved.get(key)!r}, now is {own[key]!r}" for key in changed)
        raise ValueError(f"{who}: the checkpoint's position is in {what}: {told}")


def default_collate() -> Collate:
    """What torch's DataLoader makes batches with."""
    from torch.utils.data import default_collate

    collate: Collate = default_collate
    return collate


def tell_where(error: BaseException, where: str) -> None:
    """Add to a failure of the user's code where in the data it happened; its type stays what it is."""
    if hasattr(error, "add_note"):  # Python 3.11
        error.add_note(where)
    else:
        say(f"{type(error).__name__} {where}")
