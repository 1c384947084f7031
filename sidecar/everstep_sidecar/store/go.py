"""R7: an attempt starts once; R31: its end is said."""

from __future__ import annotations

from pathlib import Path

from everstep_protocol import codec, storage
from everstep_protocol.plan import Plan
from everstep_protocol.records import Go

from everstep_sidecar.store.files import FILES, Files


def write_plan(root: Path, plan: Plan, files: Files = FILES) -> None:
    """The plan, beside its fence, before go. Raises FileNotFoundError where the attempt was never fenced."""
    files.write_durably(_folder(root, plan.attempt) / storage.PLAN, codec.dumps(plan).encode())


def give_go(root: Path, attempt: int, go: Go, files: Files = FILES) -> bool:
    """R7: create `go`, exclusively and durably. False: it was there, the attempt has started before and is over."""
    try:
        files.create_durably(_folder(root, attempt) / storage.GO, codec.dumps(go).encode())
    except FileExistsError:
        return False
    return True


def has_go(root: Path, attempt: int, files: Files = FILES) -> bool:
    """R7: whether the attempt has started, ever. Its existence counts, whatever is in it."""
    return storage.GO in files.list_names(_folder(root, attempt))


def mark_finished(root: Path, attempt: int, files: Files = FILES) -> None:
    """R31: every member finished and the last save is committed. Repeating it is fine."""
    files.write_durably(_folder(root, attempt) / storage.FINISHED, b"")


def is_finished(root: Path, attempt: int, files: Files = FILES) -> bool:
    """R31: whether the attempt finished."""
    return storage.FINISHED in files.list_names(_folder(root, attempt))


def _folder(root: Path, attempt: int) -> Path:
    return root / storage.ATTEMPTS / storage.attempt_name(attempt)
