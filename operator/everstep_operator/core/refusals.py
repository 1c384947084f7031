"""R12: checkpoints that were looked at and not taken are told, each with its reason, in Events of bounded length."""

from __future__ import annotations

from collections.abc import Iterable

from everstep_protocol.messages import PrepareAnswer
from everstep_protocol.resume import Refusal

from everstep_operator.core.model import Notice

FALLS_BACK = ("Older", "OffLineage")
LONGEST_EVENT = 1000  # characters; the API server admits 1024
MOST_EVENTS = 10
_REMEDY = "; repair or delete what is broken"


def notices(answer: PrepareAnswer) -> tuple[Notice, ...]:
    """Warnings about what was refused: everything when the resume is not the newest, else what is broken."""
    falls_back = answer.reason in FALLS_BACK
    told = answer.refused if falls_back else _broken(answer)
    if not told and not falls_back:
        return ()
    head = f"attempt {answer.attempt} {answer.message or f'resumes from step {answer.resume.step}'}; refused: "
    room = LONGEST_EVENT - len(head) - len(_REMEDY)
    parts = list(_packed((f"{refusal.dir}: {refusal.reason}" for refusal in told), room)) or ["none"]
    return tuple(Notice("Warning", "CheckpointRefused", head + part + _REMEDY) for part in parts[-MOST_EVENTS:])


def _broken(answer: PrepareAnswer) -> tuple[Refusal, ...]:
    """Not those that are complete: condemned ones, and ones off the lineage, are refused in every recovery."""
    complete = {info.dir for info in answer.checkpoints}
    return tuple(refusal for refusal in answer.refused if refusal.dir not in complete)


def _packed(lines: Iterable[str], room: int) -> Iterable[str]:
    """The lines, as many as fit into `room` characters at a time; one that is longer is cut."""
    packed = ""
    for line in (line if len(line) <= room else line[: room - 1] + "…" for line in lines):
        if packed and len(packed) + len(line) + 2 > room:
            yield packed
            packed = ""
        packed = f"{packed}; {line}" if packed else line
    if packed:
        yield packed
