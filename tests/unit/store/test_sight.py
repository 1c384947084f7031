"""R11, R17: what a mount shows of the storage that was fenced, on real folders; how far a call has got; what failures are called."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from everstep_protocol import codec
from everstep_sidecar.store import failures, hashing
from everstep_sidecar.store.fence import highest, raise_fence
from everstep_sidecar.store.files import Files
from everstep_sidecar.store.sight import unseen
from everstep_sidecar.store.steps import Steps, run_watched
from store_support import world


@pytest.fixture
def root(tmp_path: Path) -> Path:
    world.begin(tmp_path / "gpt", world.make_plan(3))
    return tmp_path / "gpt"


def test_r11_the_storage_that_was_fenced_is_seen_and_nothing_is_changed(root: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (root, *root.rglob("*"))}
    assert unseen(root, world.OWNER, attempt=3) is None
    assert unseen(root, world.OWNER, attempt=3, intent_id="intent-3") is None
    assert {path: path.stat().st_mtime_ns for path in (root, *root.rglob("*"))} == before


def nothing_mounted(root: Path) -> None:
    shutil.rmtree(root)


def empty_volume(root: Path) -> None:
    shutil.rmtree(root)
    root.mkdir()


def another_jobs(root: Path) -> None:
    rewrite_owner(root, name="bert")


def a_former_jobs(root: Path) -> None:
    rewrite_owner(root, job_uid="former")


def a_later_jobs(root: Path) -> None:
    rewrite_owner(root, job_uid="later", adopted=(world.JOB,))


def damaged_owner(root: Path) -> None:
    (root / "everstep.json").write_text("{")


def an_older_copy(root: Path) -> None:
    shutil.rmtree(root / "attempts" / "0003")


def a_copy_from_before_the_first_attempt(root: Path) -> None:
    shutil.rmtree(root / "attempts")


def a_torn_fence(root: Path) -> None:
    (root / "attempts" / "0003" / "fence.json").write_text("")


def another_intents_fence(root: Path) -> None:
    shutil.rmtree(root / "attempts" / "0003")
    raise_fence(root, world.make_fence(3, intent="another"))


def rewrite_owner(root: Path, **changes: object) -> None:
    (root / "everstep.json").write_text(codec.dumps(replace(world.OWNER, **changes)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("damage", "path"),
    [
        (nothing_mounted, "everstep.json"),
        (empty_volume, "everstep.json"),
        (another_jobs, "everstep.json"),
        (a_former_jobs, "everstep.json"),
        (a_later_jobs, "everstep.json"),
        (damaged_owner, "everstep.json"),
        (an_older_copy, "attempts/0003/fence.json"),
        (a_copy_from_before_the_first_attempt, "attempts/0003/fence.json"),
        (a_torn_fence, "attempts/0003/fence.json"),
        (another_intents_fence, "attempts/0003/fence.json"),
    ],
)
def test_r11_another_storage_is_not_taken_for_the_jobs_and_not_touched(
    root: Path, damage: Callable[[Path], None], path: str
) -> None:
    damage(root)
    before = sorted(root.rglob("*"))
    found = unseen(root, world.OWNER, attempt=3, intent_id="intent-3")
    assert found is not None
    assert str(root / path) in found
    assert sorted(root.rglob("*")) == before


def test_r11_a_fence_of_the_same_intent_that_another_pod_raised_is_on_another_mount(root: Path) -> None:
    by = world.make_fence(3).by
    assert unseen(root, world.OWNER, attempt=3, intent_id="intent-3", raised_by=by) is None
    found = unseen(root, world.OWNER, attempt=3, intent_id="intent-3", raised_by="another-pod")
    assert found is not None
    assert str(root / "attempts/0003/fence.json") in found


def test_r11_a_storage_that_does_not_answer_is_an_error(root: Path) -> None:
    def before(verb: str, path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(path))

    with pytest.raises(OSError, match="Input/output"):
        unseen(root, world.OWNER, attempt=3, files=Files(before))


class CachingClient(Files):
    """An NFS client: what it saw of a folder it believes, until it changes that folder itself."""

    def __init__(self) -> None:
        super().__init__()
        self.listings: dict[Path, list[str]] = {}
        self.absent: set[Path] = set()

    def list_names(self, folder: Path) -> list[str]:
        return self.listings.setdefault(folder, super().list_names(folder))

    def read(self, path: Path) -> bytes:
        if any(part in self.absent for part in (path, *path.parents)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        try:
            return super().read(path)
        except FileNotFoundError:
            self.absent.add(next(p for p in (*reversed(path.parents), path) if not p.exists()))
            raise

    def write(self, path: Path, content: bytes) -> None:
        super().write(path, content)
        self.listings.pop(path.parent, None)
        self.absent = {one for one in self.absent if one.parent != path.parent}


def test_r14_the_look_sees_a_fence_that_another_client_made_a_moment_ago(root: Path) -> None:
    client = CachingClient()
    client.list_names(root / "attempts")
    raise_fence(root, world.make_fence(5))
    assert highest(root, client) == 5


def test_r11_a_fence_that_this_client_believes_absent_is_looked_for_again(root: Path) -> None:
    client = CachingClient()
    with pytest.raises(FileNotFoundError):
        client.read(root / "attempts" / "0004" / "fence.json")
    raise_fence(root, world.make_fence(4))
    assert unseen(root, world.OWNER, attempt=4, files=client) is None


@pytest.mark.parametrize("looked_for", ["everstep.json", "attempts/0003/fence.json"])
def test_r11_what_this_client_saw_absent_before_the_first_attempt_is_looked_for_again(
    tmp_path: Path, looked_for: str
) -> None:
    root, client = tmp_path / "gpt", CachingClient()
    root.mkdir()
    with pytest.raises(FileNotFoundError):
        client.read(root / looked_for)
    world.begin(root, world.make_plan(3))
    assert unseen(root, world.OWNER, attempt=3, files=client) is None


def test_r5_a_higher_fence_that_comes_during_the_take_refuses(root: Path) -> None:
    (root / "step_9.tmp-3").mkdir()

    def before(verb: str, path: Path) -> None:
        if verb == "rename" and path.name == "step_9.tmp-3":
            raise_fence(root, world.make_fence(5))

    result = raise_fence(root, world.make_fence(4), Files(before))
    assert (result.outcome, result.highest) == ("higher", 5)


def test_a_call_says_at_which_step_it_is(root: Path) -> None:
    steps = Steps()
    seen: list[tuple[str, Path | None]] = []

    def before(verb: str, path: Path) -> None:
        seen.append((steps.verb, steps.path))

    files = Files(before)
    assert run_watched(steps, unseen, root, world.OWNER, attempt=3, files=files) is None
    assert seen == [("read", root / "everstep.json"), ("read", root / "attempts" / "0003" / "fence.json")]
    unseen(root, world.OWNER, attempt=3, files=files)  # not watched: nobody's
    assert steps.path == root / "attempts" / "0003" / "fence.json"


def test_a_long_copy_gets_on_with_each_block(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "BLOCK_BYTES", 10)
    (root / "file").write_bytes(bytes(35))
    clock = iter(range(1000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    steps = Steps()
    run_watched(steps, hashing.hash_file, root / "file")
    assert steps.age_seconds == 1.0
    assert next(clock) == 6  # made, four blocks, asked


@pytest.mark.parametrize(("bytes_a_second", "longest_seconds"), [(2 << 20, 5.0), (5 << 20, 4.0), (1 << 30, 1.0)])
def test_st18_bytes_of_a_slow_storage_are_told_in_time(
    root: Path, monkeypatch: pytest.MonkeyPatch, bytes_a_second: int, longest_seconds: float
) -> None:
    """The page cache takes everything at once: only what was made durable is told, and how long that takes is the storage's speed."""
    now, synced, told = [0.0], [0], [0.0]

    def make_durable(handle: int) -> None:
        size = os.fstat(handle).st_size
        now[0] += (size - synced[0]) / bytes_a_second
        synced[0] = size

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, make_durable)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    (root / "snapshot").write_bytes(bytes(200 << 20))
    with (root / "snapshot").open("rb", buffering=0) as source:
        hashing.copy_and_hash(source, root / "copy", "copy", on_block=lambda: told.append(now[0]))
    assert max(after - before for before, after in itertools.pairwise(told)) <= longest_seconds
    assert len(told) > 3


def test_what_is_said_of_a_failure_is_the_same_each_time(root: Path) -> None:
    said = set()
    for _ in range(2):
        with pytest.raises(OSError, match="No such") as caught:
            Files().write(root / "gone" / f".probe-{os.urandom(16).hex()}", b"")
        said.add(failures.explain(caught.value, root))
    assert len(said) == 1
    assert f"ENOENT: No such file or directory: {root / 'gone'}" in said.pop()
