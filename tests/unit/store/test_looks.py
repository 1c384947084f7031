"""R5, R7, R13, R14: the looks that others rely on: at the newest fence, at go, at what is being deleted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from everstep_protocol import storage
from everstep_sidecar.store import fence, go, retention
from everstep_sidecar.store.commit import commit
from everstep_sidecar.store.files import Files
from everstep_sidecar.store.temporary import open_temporary
from store_support import world

PLAN = world.make_plan(2)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    world.begin(tmp_path / "root", PLAN)
    return tmp_path / "root"


def test_r5_a_higher_fence_that_came_while_this_one_was_raised_is_seen(root: Path) -> None:
    """Between the first look and the mkdir: who is higher may have listed already, before this one took anything."""

    def before(verb: str, path: Path) -> None:
        if (verb, path.name) == ("mkdir", "0003"):
            assert fence.raise_fence(root, world.make_fence(4)).outcome == "raised"

    result = fence.raise_fence(root, world.make_fence(3), Files(before))
    assert (result.outcome, result.highest) == ("higher", 4)


def test_r5_a_fence_that_comes_too_late_touches_nothing(root: Path) -> None:
    world.begin(root, world.make_plan(5))
    open_temporary(root, 5, 10)
    (root / storage.temporary_name(10, 2)).mkdir()  # a ghost's, which attempt 5 has not seen yet
    before = sorted(root.rglob("*"))
    result = fence.raise_fence(root, world.make_fence(3))
    assert (result.outcome, result.highest, result.taken) == ("higher", 5, ())
    assert sorted(root.rglob("*")) == before


def test_r14_a_storage_that_does_not_show_the_own_fence_is_another_one(root: Path, tmp_path: Path) -> None:
    open_temporary(root, 2, 10)
    world.write_ranks(root, world.make_snapshot(tmp_path / "memory", PLAN, 10), PLAN)
    shutil.rmtree(root / storage.ATTEMPTS / "0002")
    done = commit(root, PLAN, 10, samples_consumed=1, torch="2.6.0")
    assert (done.outcome, done.reason) == ("failed", "ESTALE")
    assert "does not show attempt 2, only 0" in done.message
    assert not (root / "step_10").exists()


def test_r14_every_look_at_the_fences_goes_past_the_cache_of_an_nfs_client(root: Path) -> None:
    """A client that answers from what it knew, until a file is made and removed in the folder: so NFS keeps names for a minute."""
    client = CachingClient()
    assert fence.highest(root, client) == 2
    fence.raise_fence(root, world.make_fence(3))  # by another client
    assert client.list_names(root / storage.ATTEMPTS) == ["0002"], "what a plain look would see"
    assert fence.highest(root, client) == 3


class CachingClient(Files):
    """Knows a folder's names from the first look on; what it changes there itself makes it ask again."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[Path, list[str]] = {}

    def list_names(self, folder: Path) -> list[str]:
        if folder not in self._known:
            self._known[folder] = super().list_names(folder)
        return self._known[folder]

    def write(self, path: Path, content: bytes) -> None:
        super().write(path, content)
        self._known.pop(path.parent, None)

    def remove(self, path: Path) -> None:
        super().remove(path)
        self._known.pop(path.parent, None)


def test_r7_that_go_is_there_counts_whatever_is_in_it(root: Path) -> None:
    (root / storage.ATTEMPTS / "0002" / storage.GO).write_bytes(b"")
    assert go.has_go(root, 2)
    assert not go.give_go(root, 2, world.Go(1, PLAN.plan_id, {}))


def test_r13_what_is_deleted_keeps_its_manifest_to_the_last(root: Path, tmp_path: Path) -> None:
    """Whoever finds it half-deleted must know whether it was condemned."""
    (only,) = world.committed(root, tmp_path / "memory", PLAN, 10)
    trash = root / f"{storage.TRASH_PREFIX}{only}"
    left: list[list[str]] = []

    def before(verb: str, path: Path) -> None:
        if verb == "remove" and trash in path.parents:
            left.append(sorted(file.name for file in trash.iterdir()))

    retention.take_away(root, only)
    retention.empty_trash(root, only, Files(before))
    assert left[-1] == [storage.MANIFEST], left
    assert all(storage.MANIFEST in names for names in left)
    assert not trash.exists()


def test_r13_what_was_not_condemned_is_not_even_moved(root: Path, tmp_path: Path) -> None:
    """A checkpoint that is put back was gone for a while: a reader may have been there."""
    first, _ = world.committed(root, tmp_path / "memory", PLAN, 10, 20)
    moved: list[str] = []
    retention.take_away(root, first, Files(lambda verb, path: moved.append(path.name) if verb == "rename" else None))
    assert moved == ["step_10"]


def test_r13_only_trash_that_a_deletion_made_is_removed(root: Path, tmp_path: Path) -> None:
    (only,) = world.committed(root, tmp_path / "memory", PLAN, 10)
    retention.take_away(root, only)
    (root / f"{storage.TRASH_PREFIX}mine").mkdir()
    retention.clean_up(root, attempt=2, lineage=())
    assert [path.name for path in root.glob(f"{storage.TRASH_PREFIX}*")] == [f"{storage.TRASH_PREFIX}mine"]
