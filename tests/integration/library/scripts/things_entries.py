"""Tensors and random generators as entries of their own, and entries that are kept for each rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from boxes import Box, HeldBox, zeroed
from deep import kept
from happenings import grown, value_thing, varied
from things import AT_RESUME, CHANGES_DTYPE, DIFFERS, EQUAL, GROWS, Change, Part, Thing, only, own_or_fresh, rank
from things_tensors import FORMS, SHARDED


class TensorEntry(Part):
    """A tensor that stands in the state by itself."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.tensor = make()
        self.entries = {"tensor": self.tensor}

    def look(self) -> Any:
        """See `Part.look`."""
        return kept(self.tensor)

    def forget(self, start: str) -> None:
        """See `Part.forget`."""
        zeroed(self.tensor)

    def places(self) -> dict[Any, Any]:
        """See `Part.places`."""
        return {(): self.tensor}

    def remember(self) -> Any:
        """See `Part.remember`."""
        return self.tensor.data

    def repair(self, memory: Any) -> None:
        """See `Part.repair`."""
        self.tensor.data = memory

    def become(self, tensor: Any) -> None:
        """The same object with other contents."""
        self.tensor.data = tensor


def _become_other(part: Any) -> None:
    if rank() > 0:
        part.become(varied(part.tensor))


_ENTRY_CHANGES = only(
    "cannot be done to a tensor in place",
    nothing=Change(lambda part: None),
    grows=Change(lambda part: part.become(grown(part.tensor))),
    changes_dtype=Change(lambda part: part.become(part.tensor.data.to(torch.float64))),
    differs_by_rank=Change(_become_other),
    is_replaced=Change(lambda part: part.become(part.tensor.data.clone())),
)
_ONLY_AS_IT_IS = only("said by a tensor that is not sharded", nothing=Change(lambda part: None))


class GeneratorEntry(Part):
    """A torch.Generator that stands in the state by itself and is drawn from in each step."""

    goes_on = True

    def __init__(self, first_seed: int = 5) -> None:
        self.generator = torch.Generator().manual_seed(first_seed)
        self.entries = {"generator": self.generator}

    def step(self, step: int) -> None:
        """See `Part.step`."""
        torch.rand(3, generator=self.generator)

    def look(self) -> Any:
        """See `Part.look`."""
        return self.generator.get_state()

    def remember(self) -> Any:
        """See `Part.remember`."""
        return self.look()

    def repair(self, memory: Any) -> None:
        """See `Part.repair`."""
        self.generator.set_state(memory)

    def draw_on_one_rank(self) -> None:
        """See DIFFERS."""
        if rank() > 0:
            torch.rand(1, generator=self.generator)


_GENERATOR_CHANGES = only(
    "is nothing that a generator can do",
    nothing=Change(lambda part: None),
    differs_by_rank=Change(GeneratorEntry.draw_on_one_rank),
)


def entry_things() -> list[Thing]:
    """All of this module."""
    forms = {
        name: FORMS[name] for name in ("0-dim tensor", "transposed tensor", "leaf with requires_grad", "Parameter")
    }
    shards = {name: make for name, make in SHARDED.items() if not name.startswith("dict")}
    return [
        *(Thing(f"{name}, an entry", lambda make=make: TensorEntry(make), key="tensor", changes=_ENTRY_CHANGES,
                outcomes={GROWS: AT_RESUME, CHANGES_DTYPE: AT_RESUME}) for name, make in forms.items()),
        *(Thing(f"{name}, an entry", lambda make=make: TensorEntry(make), key="tensor", changes=_ONLY_AS_IT_IS)
          for name, make in shards.items()),
        Thing("torch.Generator, an entry", GeneratorEntry, key="generator", changes=_GENERATOR_CHANGES),
        *_per_rank(),
    ]  # fmt: skip


def _per_rank() -> list[Thing]:
    """What is kept for each rank: each gets its own in the same world; another world is refused, or starts afresh."""
    made: list[Thing] = []
    values: dict[str, tuple[Any, Callable[[], Any]]] = {
        "tensor": (Box, lambda: torch.arange(3.0 + rank()) + rank()),
        "list": (HeldBox, lambda: [rank()] * (1 + rank())),
        "keys": (Box, lambda: {f"of rank {rank()}": rank(), rank(): torch.ones(1)}),
    }
    for name, (part, make) in values.items():
        own = {"key": part.name, "outcomes": {DIFFERS: EQUAL}}
        of_each = {"per_rank": (part.name,)}
        refused = value_thing(f"per rank: {name}", make, part=part, elsewhere=AT_RESUME, options=of_each)
        fresh = value_thing(f"per rank or fresh: {name}", make, part=part, comes_back_as=own_or_fresh,
                            options=of_each | {"allow_missing": (part.name,)})  # fmt: skip
        made += [replace(refused, **own), replace(fresh, **own)]
    return [
        *made,
        Thing("per rank: torch.Generator", lambda: GeneratorEntry(5 + rank()), key="generator", changes=_GENERATOR_CHANGES,
              outcomes={DIFFERS: EQUAL}, elsewhere=AT_RESUME, options={"per_rank": ("generator",)}),
    ]  # fmt: skip
