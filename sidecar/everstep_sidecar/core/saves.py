"""The coordinator's book of saves: which members have what, when to make the temporary directory, when to commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from everstep_protocol.messages import SaveNotice

State = Literal["new", "making", "discarding", "open", "committing", "committed", "dropped"]
Effect = Literal["none", "make", "commit"]
FINISHED: Final = ("committed", "dropped")
KEPT = 50  # finished entries that are remembered, for members that ask late
KEPT_UNFINISHED = 8  # a pod holds two snapshots at most: older ones than these were taken away by their ranks


@dataclass(frozen=True)
class Save:
    """One step's save. `open`: its temporary directory is there."""

    state: State = "new"
    ready: frozenset[str] = frozenset()  # pod UIDs that said that their part is whole in memory
    durable: frozenset[str] = frozenset()  # pod UIDs whose files and rank records are fsynced
    stale: frozenset[str] = frozenset()  # must write again: their `durable` does not count until they said `ready` anew
    why: str = ""  # of `dropped`: a sentence


@dataclass(frozen=True)
class Book:
    """All saves of one attempt, by step."""

    members: frozenset[str]
    saves: Mapping[int, Save] = field(default_factory=dict)

    def save(self, step: int) -> Save:
        """The entry of a step, a new one if there is none."""
        return self.saves.get(step, Save())


def hear(book: Book, uid: str, notice: SaveNotice) -> tuple[Book, Effect]:
    """What a member's notice leads to. Repeated ones change nothing: a restarted sidecar reports everything again."""
    save = book.save(notice.step)
    if save.state in ("committing", *FINISHED):
        return book, "none"
    if save.state == "new":
        # A restarted coordinator hears `durable` of a directory that it made before: making it again is safe (R14's look comes later).
        return _with(book, notice.step, replace(_marked(save, uid, notice), state="making")), "make"
    save = _marked(save, uid, notice)
    if save.state in ("making", "discarding"):
        return _with(book, notice.step, save), "none"
    return _with(book, notice.step, save), "commit" if save.durable == book.members else "none"


def made(book: Book, step: int) -> tuple[Book, Effect]:
    """The temporary directory is there."""
    save = replace(book.save(step), state="open")
    return _with(book, step, save), "commit" if save.durable == book.members else "none"


def committing(book: Book, step: int) -> Book:
    """The commit has begun: one at a time for each step."""
    return _with(book, step, replace(book.save(step), state="committing"))


def committed(book: Book, step: int) -> Book:
    """The commit is done."""
    return _settled(book, step, Save("committed"))


def dropped(book: Book, step: int, why: str) -> Book:
    """This save is given up for ever."""
    return _settled(book, step, Save("dropped", why=why))


def _settled(book: Book, step: int, save: Save) -> Book:
    """The oldest finished entries are forgotten."""
    book = _with(book, step, save)
    finished = sorted(s for s, save in book.saves.items() if save.state in FINISHED)
    forgotten = set(finished[:-KEPT])
    return replace(book, saves={s: save for s, save in book.saves.items() if s not in forgotten})


def abandoned(book: Book, committed: int) -> tuple[int, ...]:
    """B14: saves that nobody will complete: each member writes its steps in order, and all have written a later one."""
    return tuple(step for step in _undecided(book) if step < committed)


def surplus(book: Book) -> tuple[int, ...]:
    """B14: saves of which nobody can hold a part any more, though none was committed since."""
    return _undecided(book)[:-KEPT_UNFINISHED]


def _undecided(book: Book) -> tuple[int, ...]:
    return tuple(sorted(step for step, save in book.saves.items() if save.state not in ("committing", *FINISHED)))


def discarding(book: Book, step: int) -> Book:
    """R16: what is on storage of this save is given up; every member writes its own part once more."""
    return _with(book, step, Save("discarding", ready=book.save(step).ready, stale=book.members))


def unmade(book: Book, step: int) -> Book:
    """The temporary directory is not there: the next notice makes it."""
    return _with(book, step, replace(book.save(step), state="new"))


def answer(book: Book, uid: str, step: int) -> Literal["write", "committed", "drop", "wait"]:
    """What a member that asks is told."""
    save = book.save(step)
    if save.state == "committed":
        return "committed"
    if save.state == "dropped":
        return "drop"
    return "write" if save.state == "open" and uid not in save.durable else "wait"


def is_worth_an_answer(book: Book, uid: str, step: int) -> bool:
    """Whether a member that asked and was held is told now; also `wait`, where its next notice is what makes the directory anew."""
    return answer(book, uid, step) != "wait" or book.save(step).state == "new"


def _marked(save: Save, uid: str, notice: SaveNotice) -> Save:
    save = replace(save, ready=save.ready | {uid})
    if notice.stage == "durable":
        return save if uid in save.stale else replace(save, durable=save.durable | {uid})
    return replace(save, durable=save.durable - {uid}, stale=save.stale - {uid})


def _with(book: Book, step: int, save: Save) -> Book:
    return replace(book, saves={**book.saves, step: save})
