"""What ranks hold in different ways, or come to: values, orders, types, replicas; and what a script says of whose counts."""

from __future__ import annotations

import collections
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from boxes import HeldBox, get, put
from happenings import VALUE_CHANGES, value_thing
from nets import WithExtraState, ddp
from things import CHANGES_TYPE, DIFFERS, EQUAL, NOTHING, Change, Thing, of_rank_0, only, rank
from things_models import EXTRA_CHANGES, WithExtra
from things_tensors import ShardedBox, mesh, sharded
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from training import descend

_ONE_RANK = "said by other values"
_NOTHING_ONLY = only(_ONE_RANK, nothing=VALUE_CHANGES[NOTHING])


def _first_key_of_one_rank(part: Any) -> None:
    if rank() > 0:
        part.box["only here"] = 1


def _comes_to(name: str, first: Callable[[], Any], others: Callable[[], Any], **more: Any) -> Thing:
    """A value that is one on rank 0 and another one on the others when it is saved."""
    differ = Change(lambda part: put(part, others() if rank() > 0 else first()))
    changes = only(_ONE_RANK, differs_by_rank=differ)
    return replace(value_thing(name, lambda: 1, changes=changes), **more)


VALUES = [
    value_thing("another value on each rank", lambda: f"rank {rank()}", starts_alike=False, changes=only(
        _ONE_RANK, nothing=VALUE_CHANGES[NOTHING], changes_type=VALUE_CHANGES[CHANGES_TYPE]
    )),
    value_thing("key of one rank", lambda: {"everywhere": 1} | ({"only here": 2} if rank() else {}), starts_alike=False,
                changes=_NOTHING_ONLY),
    Thing("key of one rank, later", lambda: HeldBox(lambda: 1), key="holder.only here",
          changes=only(_ONE_RANK, differs_by_rank=Change(_first_key_of_one_rank))),
    _comes_to("key of one rank in a dict, later", lambda: {"a": 1}, lambda: {"a": 1, "b": 2}),
    _comes_to("True on one rank, 1 on the other", lambda: 1, lambda: True),
    _comes_to("tensor of another shape on each rank", lambda: torch.ones(2), lambda: torch.ones(3)),
    _comes_to("zeros in another shape on each rank", lambda: torch.zeros(2, 3), lambda: torch.zeros(3, 2)),
    _comes_to("list in another order", lambda: [1, 2], lambda: [2, 1]),
    _comes_to("OrderedDict in another order", lambda: collections.OrderedDict(a=1, b=2), lambda: collections.OrderedDict(b=2, a=1)),
    _comes_to("list on one rank, tuple on the other", lambda: (1, [2]), lambda: (1, (2,))),
]  # fmt: skip


# ---------------------------------------------------------------------- what nests are made of


SHAPES = [
    _comes_to("tensors by int on one rank, by text on the other", lambda: {1: torch.ones(1)}, lambda: {"1": torch.ones(1)}, key="box"),
    _comes_to("list of tensors on one rank, tuple on the other", lambda: [torch.ones(1)], lambda: (torch.ones(1),), key="box"),
    _comes_to("Parameter on one rank, tensor on the other", lambda: nn.Parameter(torch.ones(1)), lambda: torch.ones(1), key="box"),
]  # fmt: skip


# ---------------------------------------------------------------------- replicas


def _hybrid() -> Any:
    return distribute_tensor(torch.ones(4), init_device_mesh("cpu", (2, 1)), [Replicate(), Shard(0)])


def _differ_in_replica(part: Any) -> None:
    value = get(part)
    put(part, DTensor.from_local(value.to_local() + rank(), value.device_mesh, value.placements))


def _with_extra() -> WithExtra:
    model = ddp(WithExtraState())
    return WithExtra({"model": model}, lambda step: descend(model, step))


def _of_rank_0() -> list[Thing]:
    given = {"comes_back_as": of_rank_0, "outcomes": {DIFFERS: EQUAL}}
    shards = {"changes": _NOTHING_ONLY, "part": ShardedBox}
    return [
        value_thing("from rank 0: dict", rank, options={"from_rank_0": ("box",)}, **given),
        value_thing("from rank 0: object", rank, part=HeldBox, options={"from_rank_0": ("holder",)}, **given),
        value_thing("from rank 0: dict with shards", lambda: [rank(), sharded(torch.arange(5.0))],
                    options={"from_rank_0": ("box",)}, **given, **shards),
    ]  # fmt: skip


def by_rank_things() -> list[Thing]:
    """All of this module."""
    replicas = {
        "replicated DTensor": lambda: distribute_tensor(torch.ones(4), mesh(), [Replicate()]),
        "shards and their replicas": _hybrid,
    }
    differ = only("said by other tensors", differs_by_rank=Change(_differ_in_replica))
    extra = only("said by a model alone", nothing=EXTRA_CHANGES[NOTHING], differs_by_rank=EXTRA_CHANGES[DIFFERS])
    return [
        *VALUES,
        *SHAPES,
        *(value_thing(f"{name} that come to differ", make, changes=differ, saved_by=(2,)) for name, make in replicas.items()),
        Thing("DDP of a model with extra state", _with_extra, key="model._extra_state", changes=extra, outcomes={DIFFERS: EQUAL}),
        *_of_rank_0(),
    ]  # fmt: skip
