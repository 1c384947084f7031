"""R5: every order in which a fencer's and a committer's steps can fall, on real folders; and the rules that are needed for it.

The fencer of attempt 2: fence, scan, take, list. The coordinator of attempt 1, a ghost by then: first look, mkdir, look, rename.
Two threads stop before each of these; a schedule says whose turn it is. Taking a rule out must let a late commit through in at
least one order, or the test does not see what the rule is for.
"""

import itertools
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from everstep_protocol import storage
from everstep_protocol.plan import Plan, Resume
from everstep_sidecar.store import commit as commit_module
from everstep_sidecar.store import fence as fence_module
from everstep_sidecar.store.commit import Commit, commit
from everstep_sidecar.store.files import Files
from everstep_sidecar.store.listing import list_checkpoints
from everstep_sidecar.store.temporary import Fenced, open_temporary, temporary_path
from store_support import world

HANG_SECONDS = 60
UIDS = frozenset({world.JOB})
OLD = world.make_plan(1)
STEP = 10

Outcome = Commit | None
Fencer = Callable[[Path, Files], tuple[str, ...]]
Committer = Callable[[Path, Path, Files], Outcome]


class Actor(threading.Thread):
    """Runs a function that stops before each visible step until it is told to go on."""

    def __init__(self, run: Callable[[Files], object], is_visible: Callable[[str, Path], bool]) -> None:
        super().__init__(daemon=True)
        self._run_with, self._is_visible = run, is_visible
        self._arrived, self._granted = threading.Semaphore(0), threading.Semaphore(0)
        self.result: object = None
        self.error: BaseException | None = None
        self.done = False

    def run(self) -> None:
        self._pause()
        try:
            self.result = self._run_with(Files(self._before))
        except BaseException as error:  # noqa: BLE001 - handed to the test
            self.error = error
        self.done = True
        self._arrived.release()

    def _before(self, verb: str, path: Path) -> None:
        if self._is_visible(verb, path):
            self._pause()

    def _pause(self) -> None:
        self._arrived.release()
        assert self._granted.acquire(timeout=HANG_SECONDS)

    def begin(self) -> None:
        self.start()
        assert self._arrived.acquire(timeout=HANG_SECONDS)
        self.advance()  # to its first visible step

    def advance(self) -> None:
        """Let it do the step before which it stands, up to the next one."""
        if not self.done:
            self._granted.release()
            assert self._arrived.acquire(timeout=HANG_SECONDS)


def play(schedule: str, fencer: Actor, committer: Actor) -> None:
    actors = {"f": fencer, "c": committer}
    for actor in actors.values():
        actor.begin()
    for letter in schedule:
        actors[letter].advance()
    for actor in actors.values():
        while not actor.done:
            actor.advance()
        actor.join(HANG_SECONDS)
        assert actor.error is None, actor.error


# The fencer, as it is and with a rule taken out. Each gives the names that it listed as complete.


def fence_rightly(root: Path, files: Files) -> tuple[str, ...]:
    assert fence_module.raise_fence(root, world.make_fence(2), files).outcome == "raised"
    return listed(root, files)


def fence_after_scan(root: Path, files: Files) -> tuple[str, ...]:
    fence_module._take(root, 2, files)
    fence_module._enter(root, world.make_fence(2), files)
    fence_module._write_fence(root, world.make_fence(2), files)
    return listed(root, files)


def list_before_take(root: Path, files: Files) -> tuple[str, ...]:
    fence_module._enter(root, world.make_fence(2), files)
    fence_module._write_fence(root, world.make_fence(2), files)
    names = listed(root, files)
    fence_module._take(root, 2, files)
    return names


def fence_without_take(root: Path, files: Files) -> tuple[str, ...]:
    fence_module._enter(root, world.make_fence(2), files)
    fence_module._write_fence(root, world.make_fence(2), files)
    return listed(root, files)


def listed(root: Path, files: Files) -> tuple[str, ...]:
    return tuple(v.dir for v in list_checkpoints(root, UIDS, files) if v.state == "complete")


# The committer.


def commit_rightly(root: Path, snapshot: Path, files: Files) -> Outcome:
    try:
        open_temporary(root, 1, STEP, files)
        world.write_ranks(root, snapshot, OLD, files)
    except Fenced:
        return None
    return commit(root, OLD, STEP, samples_consumed=640, torch="2.6.0", files=files)


def look_only_before_mkdir(root: Path, snapshot: Path, files: Files) -> Outcome:
    with without_look():
        return commit_rightly(root, snapshot, files)


def never_look(root: Path, snapshot: Path, files: Files) -> Outcome:
    files.make_dir(temporary_path(root, 1, STEP))
    try:
        world.write_ranks(root, snapshot, OLD, files)
    except Fenced:
        return None
    with without_look():
        return commit(root, OLD, STEP, samples_consumed=640, torch="2.6.0", files=files)


class without_look:  # noqa: N801 - reads as a statement
    def __enter__(self) -> None:
        self._look = commit_module._is_highest
        commit_module._is_highest = lambda *_: True  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        commit_module._is_highest = self._look


def fencer_sees(root: Path) -> Callable[[str, Path], bool]:
    def is_visible(verb: str, path: Path) -> bool:
        is_fence = verb == "mkdir" and path.parent.name == storage.ATTEMPTS
        is_take = verb == "rename" and storage.parse_temporary_name(path.name) is not None
        return is_fence or is_take or (verb == "list" and path == root)

    return is_visible


def committer_sees(root: Path) -> Callable[[str, Path], bool]:
    def is_visible(verb: str, path: Path) -> bool:
        is_own = storage.parse_temporary_name(path.name) is not None
        is_look = verb == "list" and path.name == storage.ATTEMPTS
        return is_look or (is_own and verb in ("mkdir", "rename"))

    return is_visible


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Attempt 1 has committed step 5; step 10 is whole in memory."""
    folder = tmp_path_factory.mktemp("base")
    world.begin(folder / "root", OLD)
    world.committed(folder / "root", folder / "memory", OLD, 5)
    world.make_snapshot(folder / "memory", OLD, STEP)
    return folder


def schedules() -> Iterator[str]:
    """All orders of the fencer's four steps and the committer's four."""
    for places in itertools.combinations(range(8), 4):
        yield "".join("f" if i in places else "c" for i in range(8))


def late_commits(base: Path, folder: Path, schedule: str, fencer: Fencer, committer: Committer) -> list[str]:
    """What is complete on storage in the end, but was not when attempt 2's resume was chosen."""
    shutil.copytree(base, folder)
    root, snapshot = folder / "root", folder / "memory" / "a1" / f"step_{STEP}"
    fencing = Actor(lambda files: fencer(root, files), fencer_sees(root))
    committing = Actor(lambda files: committer(root, snapshot, files), committer_sees(root))
    play(schedule, fencing, committing)
    seen = set(fencing.result)  # type: ignore[call-overload]
    there = set(listed(root, Files()))
    assert "step_5" in there & seen, "a committed one is never lost"
    assert seen <= there
    said = committing.result
    if isinstance(said, Commit) and fencer is fence_rightly and committer is commit_rightly:
        assert (said.outcome == "committed") == (f"step_{STEP}" in there), said
        assert said.outcome != "failed", said
    go_on(root, folder / "memory", seen)
    return sorted(there - seen)


def go_on(root: Path, memory: Path, seen: set[str]) -> None:
    """R6: attempt 2 replays step 10 beside whatever is there; nothing is displaced."""
    before = {name: (root / name / storage.MANIFEST).read_bytes() for name in listed(root, Files())}
    plan = next_plan(seen)
    world.start(root, plan)
    world.committed(root, memory, plan, STEP)
    after = {name: (root / name / storage.MANIFEST).read_bytes() for name in listed(root, Files())}
    assert before.items() <= after.items()
    assert len(after) == len(before) + 1


def next_plan(seen: set[str]) -> Plan:
    step = STEP if f"step_{STEP}" in seen else 5
    return world.make_plan(2, resume=Resume("checkpoint", "id", f"step_{step}", 1, step), lineage=((1, step),))


@pytest.mark.parametrize("schedule", list(schedules()))
def test_r5_no_order_lets_a_late_commit_through(base: Path, tmp_path: Path, schedule: str) -> None:
    assert late_commits(base, tmp_path / "run", schedule, fence_rightly, commit_rightly) == []


MUTANTS: dict[str, tuple[Fencer, Committer]] = {
    "scan before the fence": (fence_after_scan, commit_rightly),
    "list before the take": (list_before_take, commit_rightly),
    "no take, only looking": (fence_without_take, commit_rightly),
    "look before the mkdir": (fence_rightly, look_only_before_mkdir),
    "no look, only taking": (fence_rightly, never_look),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_r5_each_rule_is_needed(base: Path, tmp_path: Path, mutant: str) -> None:
    fencer, committer = MUTANTS[mutant]
    for i, schedule in enumerate(schedules()):
        if late_commits(base, tmp_path / f"run-{i}", schedule, fencer, committer):
            return
    pytest.fail(f"{mutant}: no order showed a late commit, so the test cannot see what the rule prevents")


def test_r5_whole_fence_between_any_two_steps_of_the_commit(base: Path, tmp_path: Path) -> None:
    """Finer than the schedules: before each single system call of a save, another sidecar fences and lists."""
    snapshot = base / "memory" / "a1" / f"step_{STEP}"
    shutil.copytree(base, tmp_path / "count")
    num_steps = world.count_steps(lambda files: commit_rightly(tmp_path / "count" / "root", snapshot, files))
    assert num_steps > 20
    for at in range(num_steps + 1):
        root = tmp_path / str(at) / "root"
        shutil.copytree(base / "root", root)
        seen = fence_between(root, at, lambda files, root=root: commit_rightly(root, snapshot, files))  # type: ignore[misc]
        assert set(listed(root, Files())) == set(seen), f"fence before step {at}"


def fence_between(root: Path, at: int, run: Callable[[Files], object]) -> tuple[str, ...]:
    steps = itertools.count()
    seen: list[tuple[str, ...]] = []

    def before(verb: str, path: Path) -> None:
        if next(steps) == at:
            seen.append(fence_rightly(root, Files()))

    run(Files(before))
    return seen[0] if seen else fence_rightly(root, Files())
