"""Plays cells in ranks: trains, saves, starts again, and tells what became of each. Here is no judgement of what is right."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import pickle
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import everstep
import torch.distributed as dist
from deep import differences, rough_differences, written
from everstep.errors import EverstepError
from ranks import Ranks
from things import Cell, Part, Saved, rank, world

SAVED_STEP = 2  # where the state is taken
LAST_STEP = 4  # up to where training goes on, at first and again
JOB_SECONDS = 60.0  # says only "it hangs"


@dataclass
class Told:
    """What became of something on one rank. `error`: kind and text of what the Checkpointer raised."""

    kind: str = ""
    error: str = ""
    stderr: str = ""
    found: dict[int | None, str] = field(default_factory=dict)  # by number of the cell: what is wrong with it
    facts: dict[str, Any] = field(default_factory=dict)

    def note(self, number: Any, problems: list[str]) -> None:
        """Keep what is wrong with a cell, if it is the first."""
        if problems:
            self.found.setdefault(number, "; ".join(problems[:3]))

    @property
    def text(self) -> str:
        """All that a user would read."""
        return f"{self.error}\n{self.stderr}"


# ---------------------------------------------------------------------- jobs in ranks


def play(num_ranks: int, jobs: Sequence[Callable[[], Told]], folder: Path) -> list[list[Told]]:
    """What each job tells, by rank; as many as possible in the same processes. A job that hangs or dies says so."""
    told: list[list[Told]] = []
    while len(told) < len(jobs):
        begun = len(told)
        Ranks(num_ranks, lambda: _serve(jobs[begun:], folder), hang_seconds=600).outcomes()  # noqa: B023 - called at once
        files = [folder / f"told-{number}" for number in range(num_ranks)]
        by_rank = [list(_read(file)) for file in files]
        for file in files:
            file.unlink(missing_ok=True)
        finished = max(map(len, by_rank)) or 1
        for job in range(finished):
            told.append([found[job] if job < len(found) else Told("hung or died") for found in by_rank])
    return told


def _serve(jobs: Sequence[Callable[[], Told]], folder: Path) -> None:
    """Do jobs until one ends otherwise on another rank: then the ranks' process groups may be out of step."""
    with (folder / f"told-{rank()}").open("wb") as file:
        for job in jobs:
            faulthandler.dump_traceback_later(JOB_SECONDS, exit=True)
            told = _watched(job)
            pickle.dump(told, file)
            file.flush()
            if len(set(_everybodys(told.kind))) > 1:
                return


def _watched(job: Callable[[], Told]) -> Told:
    stderr = io.StringIO()
    with contextlib.redirect_stderr(stderr):
        try:
            told = job()
        except BaseException as error:  # noqa: BLE001 - it is the result
            told = Told(type(error).__name__, traceback.format_exc())
    told.stderr += stderr.getvalue()
    return told


def _everybodys(value: Any) -> list[Any]:
    if world() == 1:
        return [value]
    values: list[Any] = [None] * world()
    dist.all_gather_object(values, value)
    return values


def _read(file: Path) -> Iterator[Told]:
    if file.exists():
        with file.open("rb") as stream, contextlib.suppress(EOFError, pickle.UnpicklingError):
            while True:
                yield pickle.load(stream)


# ---------------------------------------------------------------------- one script with many cells


def entry_name(local: str, number: int | None) -> str:
    """An entry's name where many cells share a Checkpointer."""
    return local if number is None else f"{local}{number}"


def checkpointer(parts: Mapping[int | None, tuple[Cell, Part]], folder: Path, every: int) -> everstep.Checkpointer:
    """One Checkpointer for all."""
    state = {entry_name(name, n): thing for n, (_, part) in parts.items() for name, thing in part.entries.items()}
    options: dict[str, list[str]] = {}
    for number, (cell, _) in parts.items():
        for option, names in cell.thing.options.items():
            options.setdefault(option, []).extend(entry_name(name, number) for name in names)
    return everstep.Checkpointer(state, directory=folder, every=every, keep_last=9, timeout_seconds=30, **options)  # type: ignore[arg-type]


def _made(cells: Mapping[int | None, Cell]) -> dict[int | None, tuple[Cell, Part]]:
    parts: dict[int | None, tuple[Cell, Part]] = {}
    for number, cell in cells.items():
        part = cell.thing.make()
        cell.change.prepare(part)
        parts[number] = (cell, part)
    return parts


def save(cells: Mapping[int | None, Cell], folder: Path, last_step: int = LAST_STEP) -> Told:
    """Train, let happen what happens, save, and go on to the last step; what each part looked like is left beside.

    Without a step after the save, parts that training has broken may be saved, too.
    """
    told, looks, ends = Told(), {}, {}
    parts = _made(cells)
    try:
        for step in checkpointer(parts, folder / "checkpoints", SAVED_STEP).steps(until=LAST_STEP + 1):
            if step == last_step:
                break
            for number, (cell, part) in parts.items():
                with _noting(told, number):
                    if step < SAVED_STEP or part.goes_on:
                        part.step(step)
                    if step == SAVED_STEP - 1:
                        cell.change.make(part)
                        looks[number] = part.look()
                    if step == LAST_STEP - 1 and part.goes_on:
                        ends[number] = part.look()
    except EverstepError as error:
        told.kind, told.error = type(error).__name__, str(error)
    (folder / f"looks-{rank()}").write_bytes(written((looks, ends)))
    told.facts["saved"] = (folder / "checkpoints" / f"step_{SAVED_STEP}").exists()
    return told


def resume(cells: Mapping[int | None, Cell], folder: Path, checkpoint: Path, start: str, saved_by: int) -> Told:
    """Start again from a checkpoint, compare, train to the last step, and compare again."""
    told = Told()
    saved = [pickle.loads((folder / f"looks-{number}").read_bytes()) for number in range(saved_by)]
    parts = _made(cells)
    fresh: dict[Any, Any] = {}
    places: dict[Any, Any] = {}
    for number, (_, part) in parts.items():
        part.forget(start)
        fresh[number], places[number] = part.look(), part.places()
    first = True
    try:
        for step in checkpointer(parts, checkpoint, 100).steps(until=LAST_STEP):
            for number, (cell, part) in parts.items():
                with _noting(told, number):
                    if first:
                        wanted = _wanted(cell, [looks[number] for looks, _ in saved], fresh[number])
                        told.note(number, differences(wanted, part.look()) + _moved(places[number], part))
                    if part.goes_on:  # also where it is wrong already: the other ranks may need this one
                        part.step(step)
            first = False
            if step == LAST_STEP - 1:
                break
    except EverstepError as error:
        told.kind, told.error = type(error).__name__, str(error)
        return told
    told.facts["began"] = not first
    for number, (cell, part) in parts.items():
        if part.goes_on and not (part.has_own_data and saved_by != world()):
            with _noting(told, number):
                all_ends = [ends[number] for _, ends in saved]
                if saved_by == world():
                    told.note(number, differences(all_ends[rank()], part.look(), "after going on"))
                else:
                    wanted = _wanted(cell, all_ends, fresh[number])
                    told.note(number, rough_differences(wanted, part.look(), "after going on"))
    return told


@contextlib.contextmanager
def _noting(told: Told, number: Any) -> Iterator[None]:
    """What a part raises is its own cell's outcome."""
    try:
        yield
    except EverstepError:
        raise
    except Exception as error:  # noqa: BLE001 - it is the result
        told.note(number, [f"the script itself raised {type(error).__name__}: {error}"])


def _wanted(cell: Cell, looks: Sequence[Any], fresh: Any) -> Any:
    return cell.thing.comes_back_as(Saved(looks, fresh, rank(), len(looks) == world()))


def _moved(places: dict[Any, Any], part: Part) -> list[str]:
    """Tensors that should have been filled where they are, and are not."""
    now = part.places()
    problems = []
    for place, tensor in places.items():
        found = now.get(place)
        if found is None or (found.dtype, found.shape) != (tensor.dtype, tensor.shape):
            continue  # another shape or type was saved: nothing to fill
        if found is not tensor:
            problems.append(f"{place}: another tensor object stands where one of this shape and dtype stood")
    return problems


# ---------------------------------------------------------------------- what is to be refused


def begin(cells: Mapping[int | None, Cell], folder: Path) -> Told:
    """Only begin. What the Checkpointer raises is told; nothing if it goes on."""
    told = Told()
    try:
        next(checkpointer(_made(cells), folder / "start", 1).steps(until=1))
    except EverstepError as error:
        told.kind, told.error = type(error).__name__, str(error)
    return told


def break_and_repair(cells: Mapping[int | None, Cell], folder: Path) -> Told:
    """Let it happen before the first save, repair it before the second, let it happen again before the last."""
    told = Told()
    parts = _made(cells)
    chosen = checkpointer(parts, folder, 1)
    memories: dict[Any, Any] = {}
    stderr = io.StringIO()
    with contextlib.redirect_stderr(stderr):
        for step in chosen.steps(until=2):
            for number, (cell, part) in parts.items():
                if step == 1:
                    part.repair(memories[number])
                part.step(step)
                if step == 0:
                    memories[number] = part.remember()
                    cell.change.make(part)
    told.facts["first"] = stderr.getvalue()
    told.facts["saved"] = [step for step in (1, 2) if (folder / f"step_{step}").exists()]
    try:
        for step in chosen.steps(until=3):
            for cell, part in parts.values():
                part.step(step)
                cell.change.make(part)
    except EverstepError as error:
        told.kind, told.error = type(error).__name__, str(error)
    return told


def start_again(cells: Mapping[int | None, Cell], checkpoint: Path, start: str) -> Told:
    """Only begin, where a checkpoint is."""
    told = Told()
    parts = _made(cells)
    for _, part in parts.values():
        part.forget(start)
    try:
        next(checkpointer(parts, checkpoint, 100).steps(until=LAST_STEP))
    except EverstepError as error:
        told.kind, told.error = type(error).__name__, str(error)
    return told
