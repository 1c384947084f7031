"""Checkpoints outside a cluster: a folder of one's own, written by one run at a time, with a job's rules for what counts."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path

from everstep_protocol import codec, complete, records, resume, storage
from everstep_protocol.resume import Choice
from everstep_protocol.verdict import Verdict

from everstep import folder_runs
from everstep.console import say
from everstep.durable import fsync_path
from everstep.errors import EverstepError, LoadError
from everstep.folder_lock import FolderLock
from everstep.folder_runs import Run
from everstep.room import free_bytes

_TEMPORARY_ATTEMPT = 0  # one run at a time: its number, which only rank 0 knows, is not needed in temporary names


class FolderPlace:
    """`<folder>/step_<N>`, complete or not there; all ranks write into one temporary directory, rank 0 renames it.

    `open`, then `resume` before the first save, `close` at the end; after that `open` may come again. Rank 0 does the work, for the
    others these do nothing. `world`: number of ranks, for the record in each checkpoint.
    """

    sync_files = True

    def __init__(self, folder: Path, *, rank: int, keep_last: int, world: int = 0) -> None:
        self.folder = folder
        self._rank = rank
        self._keep_last = keep_last
        self._world = world
        self._lock = FolderLock(folder)
        self._is_open = False
        self._run: Run | None = None
        self._undeletable: set[str] = set()

    def open(self) -> None:
        """Make the folder, lock it, remove what a killed run left half-done. Raises EverstepError for one that cannot be written."""
        if self._rank != 0 or self._is_open:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
            self._require_writable()
            self._clean()
            if self._run is not None:
                self._run = folder_runs.go_on(self._run, self._verdicts())
        except OSError as error:
            self.close()
            raise EverstepError(
                f"checkpoints cannot be written to {self.folder} ({_described(error)}): let this user write there, or choose another "
                "directory= (or EVERSTEP_CHECKPOINT_DIR)"
            ) from error
        self._is_open = True

    def close(self) -> None:
        """Give the folder back to other runs."""
        self._lock.release()
        self._is_open = False

    def resume(self) -> tuple[Path, int] | None:
        """The checkpoint to resume from and its step, None: step 0. Tells what is passed over. Raises LoadError where none may be chosen."""
        if self._rank != 0:
            return None
        try:
            verdicts = self._verdicts()
        except OSError as error:  # R12: unknown is not missing
            raise LoadError(
                f"{self.folder}: what is there cannot be read ({_described(error)}): start again when it can"
            ) from error
        choice = resume.choose(folder_runs.question(verdicts), verdicts)
        self._tell(choice)
        if choice.outcome == "stop":
            raise LoadError(f"{self.folder}: {choice.message}")
        self._run = folder_runs.begin(choice, verdicts)
        self._prune()
        chosen = choice.resume
        return None if chosen.kind == "none" else (self.folder / chosen.dir, chosen.step)

    def directory(self, step: int) -> Path:
        """See `Place.directory`."""
        return self.folder / storage.temporary_name(step, _TEMPORARY_ATTEMPT)

    def make(self, step: int) -> Path:
        """See `Place.make`."""
        self.discard(step)
        return self.directory(step)

    def num_waiting(self) -> int:
        """See `Place.num_waiting`."""
        return 0

    def free_bytes(self) -> int | None:
        """See `Place.free_bytes`."""
        return free_bytes(self.folder)

    def publish(self, step: int, samples_consumed: int) -> None:
        """As rank 0, when all ranks' files and `.metadata` are on the disk: one rename, then old checkpoints go.

        Raises OSError where the commit failed. It counts once the rename is durable: what cannot be deleted afterwards is only told.
        """
        if self._rank != 0:
            return
        run = self._run
        assert run is not None, "published before it was known what the run builds on"
        directory = self.directory(step)
        self._write_record(directory, run, step)
        target = self._free_name(run, step)
        directory.rename(target)
        fsync_path(self.folder)
        self._run = folder_runs.commit(run, target.name, step)
        self._prune()

    def discard(self, step: int) -> None:
        """See `Place.discard`."""
        if self._rank == 0:
            shutil.rmtree(self.directory(step), ignore_errors=True)

    def _require_writable(self) -> None:
        """Raises OSError. A full disk passes: each save looks for room by itself."""
        try:
            Path(tempfile.mkdtemp(prefix=storage.TRASH_PREFIX, dir=self.folder)).rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise

    def _clean(self) -> None:
        for entry in sorted(self.folder.iterdir()):
            if storage.parse_temporary_name(entry.name) is not None or entry.name.startswith(storage.TRASH_PREFIX):
                self._remove(entry)

    def _verdicts(self) -> tuple[Verdict, ...]:
        """By step. Raises OSError where the storage does not answer."""
        entries = [entry for entry in self.folder.iterdir() if storage.parse_step_name(entry.name) is not None]
        verdicts = [complete.inspect(entry, job_uids=None) for entry in entries]
        return tuple(sorted(verdicts, key=lambda verdict: (verdict.step, verdict.dir)))

    def _tell(self, choice: Choice) -> None:
        for refusal in choice.refused:
            say(f"{self.folder / refusal.dir} is passed over: {refusal.reason}")
        if choice.outcome == "resume" and choice.reason != "Newest":
            say(f"{self.folder}: {choice.message}")

    def _write_record(self, directory: Path, run: Run, step: int) -> None:
        record = records.Run(records.FORMAT, "", run.number, step, run.lineage, self._world)
        path = directory / storage.RUN
        path.write_text(codec.dumps(records.sealed_run(record)))
        fsync_path(path)
        fsync_path(directory)

    def _free_name(self, run: Run, step: int) -> Path:
        target, number = self.folder / storage.step_name(step), run.number
        while os.path.lexists(target):
            target = self.folder / storage.step_name_of_attempt(step, number)
            number += 1
        return target

    def _prune(self) -> None:
        """Only complete ones count, and only complete ones go; each by itself."""
        assert self._run is not None
        try:
            verdicts = self._verdicts()
        except OSError as error:
            say(
                f"{self.folder}: old checkpoints are kept this time: what is there cannot be read ({_described(error)})"
            )
            return
        for name in folder_runs.expired(verdicts, keep_last=self._keep_last, base=self._run.base):
            self._delete(name)

    def _delete(self, name: str) -> None:
        """By a rename first: half a checkpoint never keeps its name."""
        if name in self._undeletable:
            return
        trash = self._free_trash(name)
        try:
            (self.folder / name).rename(trash)
        except OSError as error:
            self._tell_undeletable(name, error)
        else:
            self._remove(trash)

    def _free_trash(self, name: str) -> Path:
        trash, number = self.folder / f"{storage.TRASH_PREFIX}{name}", 0
        while os.path.lexists(trash):
            number += 1
            trash = self.folder / f"{storage.TRASH_PREFIX}{name}.{number}"
        return trash

    def _remove(self, path: Path) -> None:
        """All of it that can be removed."""
        shutil.rmtree(path, ignore_errors=True)
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            return
        except OSError as error:
            self._tell_undeletable(path.name, error)

    def _tell_undeletable(self, name: str, error: OSError) -> None:
        """Once a run: it is not tried again before the next one."""
        if name not in self._undeletable:
            say(
                f"{self.folder / name} cannot be deleted ({_described(error)}): training goes on, remove it by hand to free its room"
            )
        self._undeletable.add(name)


def _described(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror or repr(error)
