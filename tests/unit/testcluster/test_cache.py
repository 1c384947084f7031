"""A part is built once, and is there only when it is whole."""

from pathlib import Path

import pytest
from testcluster.cache import Cache, Part, file_lock, key_of
from testcluster.shell import Progress


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache", Progress(quiet=True))


def test_keys_tell_recipes_apart() -> None:
    assert key_of("a", ("b",)) == key_of("a", ("b",))
    assert len({key_of("a", "b"), key_of("ab"), key_of("b", "a"), key_of("a", ("b",))}) == 4


def test_a_part_is_built_once(cache: Cache) -> None:
    built: list[Path] = []
    part = Part("tool", "v1", built.append)
    first = cache.get(part)
    assert first == cache.root / "tool-v1"
    assert cache.get(part) == first
    assert len(built) == 1
    assert built[0].is_relative_to(cache.root / "unfinished")


def test_a_failed_build_leaves_nothing_that_looks_finished(cache: Cache) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        cache.get(Part("tool", "v1", fail))
    assert not (cache.root / "tool-v1").exists()


def test_what_a_killed_build_left_is_not_built_upon(cache: Cache) -> None:
    left = cache.root / "unfinished" / "tool-v1"
    left.mkdir(parents=True)
    (left / "half").touch()
    folder = cache.get(Part("tool", "v1", lambda folder: (folder / "whole").touch()))
    assert [file.name for file in folder.iterdir()] == ["whole"]


def test_a_busy_lock_says_so(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with (
        file_lock(lock),
        pytest.raises(RuntimeError, match="somebody is here"),
        file_lock(lock, busy="somebody is here"),
    ):
        pass
    with file_lock(lock, busy="free again"):
        pass


def test_superseded_are_other_recipes_of_the_same_parts_only(cache: Cache) -> None:
    for name in ("tool-v1", "tool-v2", "other-v1", "unfinished/tool-v3"):
        (cache.root / name).mkdir(parents=True)
    current = Part("tool", "v2", lambda folder: None)
    assert cache.superseded([current]) == [cache.root / "tool-v1", cache.root / "unfinished" / "tool-v3"]
