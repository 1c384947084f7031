"""Models in every wrapping, what may happen to their buffers and parameters, and what a wrapper makes of ranks that differ."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from models import NEW_TORCH
from nets import Growing, Net, Tied, WithExtraState, ddp, fully_sharded, sharded_by_hand, tensor_parallel
from things import (
    AT_RESUME,
    CHANGES_DTYPE,
    CHANGES_TYPE,
    DIFFERS,
    EQUAL,
    GETS_KEYS,
    GROWS,
    LOSES_KEYS,
    NOTHING,
    REPLACED,
    TO_META,
    UNCOPYABLE,
    Change,
    Impossible,
    Thing,
    of_rank_0,
    only,
    rank,
)
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from training import Training, descend, descend_by_hand


def _set(value: Callable[[Any], Any]) -> Change:
    def change(part: Any) -> None:
        part.model.seen = value(part.model.seen)

    return Change(change)


def _add_buffer(part: Any) -> None:
    part.model.register_buffer("late", torch.ones(2))


def _lose_buffer(part: Any) -> None:
    del part.model.seen


def _differ_in_weight(part: Any) -> None:
    with torch.no_grad():
        part.model.layers[2].weight.add_(float(rank()))


def _differ_in_buffer(part: Any) -> None:
    part.model.seen.add_(float(rank()))


def _replace_weight(part: Any) -> None:
    last = part.model.layers[2]
    last.weight = nn.Parameter(last.weight.detach().clone())


BUFFER_CHANGES: dict[str, Change | Impossible] = {
    NOTHING: Change(lambda part: None),
    GROWS: _set(lambda seen: torch.ones(5)),
    CHANGES_TYPE: _set(lambda seen: None),
    CHANGES_DTYPE: _set(lambda seen: seen.double()),
    GETS_KEYS: Change(_add_buffer),
    LOSES_KEYS: Change(_lose_buffer),
    DIFFERS: Change(_differ_in_buffer),
    REPLACED: _set(lambda seen: seen + 1),
    UNCOPYABLE: _set(lambda seen: torch.zeros(4, dtype=torch.uint8).view(torch.uint1)),
    TO_META: _set(lambda seen: seen.to("meta")),
}
_OTHER_MODEL = dict.fromkeys((GROWS, CHANGES_TYPE, CHANGES_DTYPE, GETS_KEYS, LOSES_KEYS), AT_RESUME)


def _model(name: str, make_model: Callable[[], Any], advance: Any = descend, **more: Any) -> Thing:
    """A model alone: SGD without state trains it."""

    def make() -> Training:
        model = make_model()
        return Training({"model": model}, lambda step: advance(model, step))

    changes = more.pop("changes", BUFFER_CHANGES)
    outcomes = {**_OTHER_MODEL, **more.pop("outcomes", {})}
    keys = {GETS_KEYS: "model.late"}
    key = more.pop("key", "model.seen")
    return Thing(name, make, key=key, keys=keys, changes=changes, outcomes=outcomes, **more)


def _only(**changes: Change) -> dict[str, Any]:
    return only("said by the model alone", **changes)


def _never(name: str, make_model: Callable[[], Any], **more: Any) -> Thing:
    changes = only("refused at the start", nothing=Change(lambda part: None))
    return _model(name, make_model, changes=changes, is_savable=False, **more)


def _buffer(value: Any) -> Net:
    model = Net()
    model.seen = value
    return model


def _fsdp1() -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(Net(), device_id=torch.device("cpu"))


def _seeded_by_rank() -> Net:
    model = Net()
    with torch.no_grad():
        model.layers[0].weight.add_(rank())
    return model


def _on_meta() -> Net:
    return Net().to("meta")


def _normed(wrap: Callable[[Any], Any], name: str, **more: Any) -> Thing:
    """BatchNorm's buffers, each rank's of its own data."""

    def make() -> Training:
        model = wrap(Net(norm=True))
        part = Training({"model": model}, lambda step: descend(model, step, by_rank=True))
        part.has_own_data = True
        return part

    return Thing(name, make, key="model", changes=_only(nothing=Change(lambda part: None)), **more)


def _ema(name: str, **more: Any) -> Thing:
    def make() -> Training:
        model = Net()
        ema = torch.optim.swa_utils.AveragedModel(model, **more)

        def advance(step: int) -> None:
            descend(model, step)
            ema.update_parameters(model)

        return Training({"model": model, "ema": ema}, advance)

    return Thing(name, make, key="ema", changes=_only(nothing=Change(lambda part: None)))


# ---------------------------------------------------------------------- more than tensors


def _extra(change: Callable[[Any], Any]) -> Change:
    def make(part: Any) -> None:
        part.model.extra = change({**part.model.extra})

    return Change(make)


EXTRA_CHANGES: dict[str, Change | Impossible] = {
    NOTHING: Change(lambda part: None),
    GROWS: _extra(lambda extra: extra | {"value": [1, 2, 3], 2: [torch.ones(4), torch.ones(1)]}),
    CHANGES_TYPE: _extra(lambda extra: [1, {"a": torch.ones(2)}]),
    CHANGES_DTYPE: _extra(lambda extra: extra | {2: [torch.ones(2).double(), None]}),
    GETS_KEYS: _extra(lambda extra: extra | {3.5: torch.zeros(1), "late": ()}),
    LOSES_KEYS: _extra(lambda extra: {}),
    DIFFERS: _extra(lambda extra: extra | {"value": rank()}),
    REPLACED: _extra(lambda extra: extra),
    UNCOPYABLE: _extra(lambda extra: extra | {"value": threading.Lock()}),
    TO_META: _extra(lambda extra: extra | {"value": torch.empty(1, device="meta")}),
}


class WithExtra(Training):
    """Repaired by its first extra state."""

    def remember(self) -> Any:
        """See `Part.remember`."""
        return self.model.extra

    def repair(self, memory: Any) -> None:
        """See `Part.repair`."""
        self.model.extra = memory

    def forget(self, start: str) -> None:
        """See `Part.forget`."""
        self.model.extra = {"other": start}


def _with_extra() -> Training:
    model = WithExtraState()
    return WithExtra({"model": model}, lambda step: descend(model, step))


def model_things() -> list[Thing]:
    """All of this module."""
    broadcast = {"outcomes": {DIFFERS: EQUAL}, "comes_back_as": of_rank_0}
    own = {"outcomes": {DIFFERS: EQUAL}}
    things = [
        _model("model", Net),
        _model("model whose weights come to differ", Net, key="model.layers.2.weight", changes=_only(
            differs_by_rank=Change(_differ_in_weight), is_replaced=Change(_replace_weight))),
        _model("ranks seeded differently", _seeded_by_rank, key="model.layers.0.weight", starts_alike=False, changes=_only(
            nothing=Change(lambda part: None))),
        _model("tied weights", Tied),
        _model("compiled", lambda: torch.compile(Net(), backend="eager"), lambda model, step: descend(model._orig_mod, step)),
        _model("activation checkpointing", lambda: checkpoint_wrapper(Net())),
        _model("DDP", lambda: ddp(Net()), **broadcast),
        _model("DDP without broadcast", lambda: ddp(Net(), broadcast_buffers=False), **own),
        _model("sharded by hand", lambda: sharded_by_hand(Net()), descend_by_hand),
        _model("tensor parallel", lambda: tensor_parallel(Net()), descend_by_hand),
        _model("model with a buffer that grows", Growing, outcomes={GROWS: EQUAL, CHANGES_DTYPE: EQUAL}, changes=_only(
            nothing=BUFFER_CHANGES[NOTHING], grows=BUFFER_CHANGES[GROWS], changes_dtype=BUFFER_CHANGES[CHANGES_DTYPE])),
        Thing("model with extra state", _with_extra, key="model._extra_state", changes=EXTRA_CHANGES),
        _normed(ddp, "DDP of BatchNorm", comes_back_as=of_rank_0),
        _normed(lambda model: ddp(model, broadcast_buffers=False), "DDP of BatchNorm without broadcast"),
        _ema("average of models"),
        _ema("moving average of models", multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5), use_buffers=True),
        _never("model on meta", _on_meta, key="model"),
        _never("model with a sparse buffer", lambda: _buffer(torch.eye(3).to_sparse())),
        _never("model with a quantized buffer", lambda: _buffer(torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8))),
        _never("FSDP1", _fsdp1, key="model", saved_by=(2,)),
    ]  # fmt: skip
    if NEW_TORCH:
        things.append(_model("FSDP2", lambda: fully_sharded(Net()), **own))
        things.append(_normed(fully_sharded, "FSDP2 of BatchNorm"))
    return things
