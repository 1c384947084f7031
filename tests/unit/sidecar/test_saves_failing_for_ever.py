"""R16: each call into the storage that saving makes fails for ever, or hangs: nothing is lost, it is told, and tried with pauses."""

from __future__ import annotations

import asyncio
import errno
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from everstep_sidecar import commits
from everstep_sidecar.backoff import Backoff
from everstep_sidecar.store.files import FILES
from store_support import world
from unit.sidecar.save_life import PLAN, SAVED, Life, pause_briefly

ERRORS = (errno.EIO, errno.ENOSPC, errno.EACCES, errno.ESTALE, errno.ENOENT, errno.EBUSY)
HANGS = 0
PAUSES = 8
MOST_CALLS = 200  # with fewer pauses: a loop without
# A try makes a call so often at most: for each of two ranks and each of three saves, or in one look at several folders.
CALLS_A_TRY = 12
STAYS_SO = 30.0  # seconds
NUM_THREADS = 100


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where that is to be had: hundreds of lives fsync some thousand files."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


@pytest.fixture
def lives(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Life]]:
    """By folder; the storage's layer asks the one in whose folder a step happens."""
    found: dict[str, Life] = {}

    def before(verb: str, path: Path) -> None:
        life = found.get(next(iter(path.relative_to(folder).parts), ""))
        if life is not None:
            life.before(verb, path)

    monkeypatch.setattr(FILES, "_before", before)
    monkeypatch.setattr(Backoff, "pause", pause_briefly)
    monkeypatch.setattr(
        commits, "HELD_SECONDS", 3600.0
    )  # whoever may go on is told so, and does not find out by asking again
    yield found
    for life in found.values():
        life.released.set()


def _run(*lives: Life, going: object) -> None:
    async def run() -> None:
        pool = ThreadPoolExecutor(NUM_THREADS)
        asyncio.get_running_loop().set_default_executor(pool)
        working = (asyncio.create_task(going(life)) for life in lives)  # type: ignore[operator]
        outcomes = await asyncio.gather(*working, return_exceptions=True)
        wrong = [str(outcome).splitlines()[0] for outcome in outcomes if outcome is not None]
        assert not wrong, "\n".join(wrong)

    asyncio.run(run())


async def _well(life: Life) -> None:
    life.begin()
    await life.until(life.is_done, "all is saved")
    await life.end()


async def _broken(life: Life) -> None:
    life.begin()
    try:
        await (_fail_for_ever(life) if life.number else _hang(life))
    finally:
        life.released.set()
    life.ahead = 0.0
    await life.until(life.is_done, "it is well again, and all is saved")
    assert life.lost() == set()
    await life.end()


async def _fail_for_ever(life: Life) -> None:
    def is_at_rest() -> bool:
        return life.is_done() or (len(life.pauses) >= PAUSES and life.is_told_by_whoever_met_it())

    await life.until(lambda: is_at_rest() or life.hits > MOST_CALLS, "it is told")
    assert life.hits <= CALLS_A_TRY * (len(life.pauses) + 1), f"{life}: it is tried without pauses"
    assert is_at_rest(), f"{life}: nobody is told"
    later = life.now() + STAYS_SO
    await life.until(lambda: life.now() >= later, "it stays so")
    assert life.hits <= CALLS_A_TRY * (len(life.pauses) + 1), f"{life}: it is tried without pauses"
    told = life.commits.failure()
    if told is not None and told.reason == "DeletionFails":
        await life.until(life.is_saved, "what cannot be deleted keeps no save")
    assert life.lost() == set()


async def _hang(life: Life) -> None:
    await life.until(lambda: life.is_done() or life.hits, "it hangs")
    life.ahead = 3600.0
    await life.until(lambda: life.is_saved() or life.commits.failure(), "it is told")


@pytest.mark.parametrize("number", [*ERRORS, HANGS], ids=lambda number: errno.errorcode.get(number, "hangs"))
def test_r16_no_call_that_fails_for_ever_or_hangs_loses_a_save_or_is_silent(
    folder: Path, lives: dict[str, Life], number: int
) -> None:
    normal = lives["normal"] = Life(folder / "normal")
    _run(normal, going=_well)
    kinds = list(normal.kinds)
    verbs = {"mkdir", "list", "read", "write", "fsync", "rename", "remove", "inspect", "verified"}
    assert {verb for verb, _ in kinds} == verbs
    normal.released.set()
    for at, kind in enumerate(kinds):
        lives[str(at)] = Life(folder / str(at), kind, number)
    broken = [life for life in lives.values() if life is not normal]
    _run(*broken, going=_broken)
    assert sum(life.hits > 0 for life in broken) > 0.9 * len(broken)


def test_r13_a_normal_life_leaves_nothing_that_nobody_needs(folder: Path, lives: dict[str, Life]) -> None:
    lives["normal"] = Life(folder / "normal")
    _run(lives["normal"], going=_well)


def test_r14_a_save_that_an_earlier_process_committed_is_not_made_again(
    folder: Path, lives: dict[str, Life], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator's sidecar was killed after its rename; members ask the new one before it has listed the storage."""
    life = lives["life"] = Life(folder / "life")
    world.committed(life.root, life.folder / "killed", PLAN, 10)
    monkeypatch.setattr(life, "_learn", asyncio.Event().wait)

    async def going(life: Life) -> None:
        life.begin()
        await life.until(lambda: not any(life.snapshots[step].exists() for step in SAVED), "all is saved")
        await life.end()

    _run(life, going=going)
    assert sorted(path.name for path in life.root.glob("step_10*")) == ["step_10"]
