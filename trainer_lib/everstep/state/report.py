"""What this rank says of its part of a save, and what rank 0 makes of all ranks' words."""

from __future__ import annotations

from typing import Any

from everstep import rng
from everstep.console import listing
from everstep.errors import StateError
from everstep.state import agreement, tensors, values
from everstep.state.agreement import Note, Report
from everstep.state.items import Item, Sharing
from everstep.state.state import RECORD, RNG, Flat, nest_of
from everstep.state.tree import key_of


def report_of(flat: Flat, streams: dict[str, str], *, compares_tensors: bool = True) -> Report:
    """Of live or frozen values; plain ones frozen."""
    notes: dict[str, Note] = {}
    lists: dict[str, tuple[str, ...]] = {}
    for key, item in flat.items.items():
        if item.sharing is Sharing.LISTED:
            lists[key] = tuple(flat.values[key])
        else:
            notes[key] = _note(flat.paths[key], item, flat.values[key], compares_tensors)
    return Report(notes, lists, streams)


def require_agreement(reports: list[Report]) -> None:
    """Raises StateError that names every key on which ranks differ."""
    found = agreement.problems(reports)
    if found:
        raise StateError(f"ranks do not agree: {listing(found, most=30, between='; ')}")


class SaveAgreement:
    """See `Agreement`: of one save, to which it adds the rank's random streams and, as rank 0, the common record."""

    def __init__(self, flat: Flat, step: int, *, rank: int, world: int) -> None:
        self._flat = flat
        self._streams = rng.snapshot()
        self._record: dict[str, Any] = {"step": step, "world": world, "samples_consumed": flat.samples_consumed}
        flat.add_ours((RNG, str(rank)), self._streams)
        if rank == 0:
            flat.add_ours((RECORD,), self._record)

    def report(self) -> Report:
        """See `Agreement.report`."""
        return report_of(self._flat, rng.digests(self._streams))

    def settle(self, reports: list[Report]) -> None:
        """See `Agreement.settle`."""
        require_agreement(reports)
        self._record["keys"] = agreement.count_keys(reports)
        self._record["groups"] = _groups(agreement.merge_lists(reports))
        self._record["streams"] = agreement.classify_streams(reports)


def _note(path: tuple[Any, ...], item: Item, value: Any, compares_tensors: bool) -> Note:
    entry = str(path[0])
    if tensors.is_tensor(value):
        tensor = tensors.live(value)
        parts = tensors.fingerprints(tensor) if compares_tensors else {}
        return Note(entry, tensors.described(tensor), parts, item.everywhere)
    kind = type(values.thaw(value)).__name__
    parts = {"": values.digest(value)}
    return Note(entry, kind, parts, item.everywhere, values.shown(value), structure_of=key_of(nest_of(path)))


def _groups(lists: dict[str, list[str]]) -> dict[str, list[list[str]]]:
    """`{"optimizer.param_groups.0.params": names}` as the groups of each optimizer."""
    found: dict[str, dict[int, list[str]]] = {}
    for key, names in lists.items():
        entry, place = key.split(".", 1)[0], int(key.split(".")[-2])
        found.setdefault(entry, {})[place] = names
    return {entry: [groups[place] for place in sorted(groups)] for entry, groups in found.items()}
