"""A job's storage and memory as the sidecars use them: attempts, saves and commits on real folders."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from everstep_protocol import codec, plan, storage
from everstep_protocol.lineage import Lineage
from everstep_protocol.messages import PrepareAnswer, PrepareRequest
from everstep_protocol.plan import Coordinator, Member, Plan, Resume, SaveInterval
from everstep_protocol.records import Fence, Go, Owner, Ready
from everstep_sidecar.store.commit import Commit, commit
from everstep_sidecar.store.fence import raise_fence
from everstep_sidecar.store.files import FILES, Files
from everstep_sidecar.store.go import give_go, write_plan
from everstep_sidecar.store.owner import claim
from everstep_sidecar.store.prepare import prepare
from everstep_sidecar.store.temporary import open_temporary, write_rank

JOB = "job-uid-1"
OWNER = Owner(1, "cluster-uid", "team", "gpt", JOB)
NONE = Resume("none")


class Crash(BaseException):
    """The machine stopped here."""


def make_plan(
    attempt: int, *, world: int = 1, resume: Resume = NONE, lineage: Lineage = (), job_uid: str = JOB
) -> Plan:
    return plan.sealed(
        Plan(
            format=plan.FORMAT,
            job_uid=job_uid,
            attempt=attempt,
            plan_id="",
            intent_generation=1,
            template_hash="t",
            world=world,
            coordinator=Coordinator(0, "pod-0", "10.0.0.1", 7471),
            members=(Member(0, "pod-0", "10.0.0.1", "node-a", (0, world)),),
            resume=resume,
            lineage=lineage,
            cause="start",
            interval=SaveInterval(),
        )
    )


def make_fence(attempt: int, *, intent: str | None = None, job_uid: str = JOB) -> Fence:
    return Fence(1, job_uid, attempt, intent or f"intent-{attempt}", (), "pod-0")


def begin(root: Path, the_plan: Plan, files: Files = FILES) -> None:
    """Claim, fence, plan and go, as a coordinator does."""
    claim(root, replace(OWNER, job_uid=the_plan.job_uid), known=False, files=files)
    raise_fence(root, make_fence(the_plan.attempt, job_uid=the_plan.job_uid), files)
    start(root, the_plan, files)


def start(root: Path, the_plan: Plan, files: Files = FILES) -> None:
    write_plan(root, the_plan, files)
    assert give_go(root, the_plan.attempt, Go(1, the_plan.plan_id, {"pod-0": "nonce"}), files)


def make_snapshot(memory: Path, the_plan: Plan, step: int, *, num_bytes: int = 100) -> Path:
    """What the trainers leave in memory: data, `.metadata` and a ready record of each rank."""
    folder = memory / storage.snapshot_name(the_plan.attempt) / storage.step_name(step)
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(the_plan.world):
        content = f"attempt {the_plan.attempt} step {step} rank {rank} ".encode()
        names = {f"__{rank}_0.distcp": content.ljust(num_bytes, b".")}
        if rank == 0:
            names[storage.METADATA] = b"metadata of " + content
        for name, data in names.items():
            (folder / name).write_bytes(data)
        sizes = {name: len(data) for name, data in names.items()}
        ready = Ready(the_plan.attempt, the_plan.plan_id, step, rank, sizes, step * 64, "2.6.0")
        (folder / storage.ready_name(rank)).write_text(codec.dumps(ready))
    return folder


def ready_of(snapshot: Path, rank: int) -> Ready:
    return codec.loads(Ready, (snapshot / storage.ready_name(rank)).read_bytes())


def write_ranks(root: Path, snapshot: Path, the_plan: Plan, files: Files = FILES) -> None:
    for rank in range(the_plan.world):
        write_rank(root, snapshot, ready_of(snapshot, rank), job_uid=the_plan.job_uid, files=files)


def save(root: Path, memory: Path, the_plan: Plan, step: int, files: Files = FILES) -> Commit:
    """One whole save, from memory to commit."""
    snapshot = make_snapshot(memory, the_plan, step)
    open_temporary(root, the_plan.attempt, step, files)
    write_ranks(root, snapshot, the_plan, files)
    return commit(root, the_plan, step, samples_consumed=step * 64, torch="2.6.0", files=files)


def committed(root: Path, memory: Path, the_plan: Plan, *steps: int) -> list[str]:
    """Saves that must succeed; gives their ids."""
    ids = []
    for step in steps:
        done = save(root, memory, the_plan, step)
        assert done.checkpoint is not None, done
        ids.append(done.checkpoint.id)
    return ids


def make_request(attempt: int, *, intent: str | None = None, **changes: object) -> PrepareRequest:
    base = PrepareRequest(
        attempt=attempt,
        intent_id=intent or f"intent-{attempt}",
        lineage=(),
        last_attempt=0,
        condemned=(),
        bad=(),
        ever=False,
        storage_known=False,
        resume_from=None,
        peers=(),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def ask(root: Path, request: PrepareRequest, *, owner: Owner = OWNER, files: Files = FILES) -> PrepareAnswer:
    return prepare(root, request, owner=owner, pod_uid="pod-0", files=files)


@dataclass
class Step:
    verb: str
    path: Path


class Recorder:
    """A `before` that records every step, holds to what must be durable before it gets a name, and can stop the machine.

    `crash_at`: the number of the step that does not happen any more. Contents that were not fsynced are lost with it.
    """

    def __init__(self, crash_at: int | None = None) -> None:
        self.steps: list[Step] = []
        self.unsynced: set[Path] = set()
        self.changed_folders: set[Path] = set()
        self._crash_at = crash_at

    def __call__(self, verb: str, path: Path) -> None:
        if len(self.steps) == self._crash_at:
            self.lose_unsynced()
            raise Crash
        self.steps.append(Step(verb, path))
        self._follow(verb, path)

    def _follow(self, verb: str, path: Path) -> None:
        if verb == "write" and not path.name.startswith(".probe-"):
            self.unsynced.add(path)
            self.changed_folders.add(path.parent)
        if verb in ("mkdir", "link"):
            self.changed_folders.add(path.parent)
        if verb == "fsync":
            self.unsynced.discard(path)
            self.changed_folders.discard(path)
        if verb == "remove":
            self.unsynced.discard(path)
        if verb == "rename":
            assert path not in self.unsynced, f"{path} gets a name before its content is durable"
            assert not [file for file in self.unsynced if path in file.parents], (
                "a folder is renamed with unsynced files"
            )
            assert path not in self.changed_folders, f"{path} gets a name before its entries are durable"
            self.changed_folders.add(path.parent)

    def lose_unsynced(self) -> None:
        for path in self.unsynced:
            if path.exists():
                os.truncate(path, 0)

    def has(self, verb: str, name: str) -> int:
        """The place of the first such step."""
        return next(i for i, step in enumerate(self.steps) if step.verb == verb and step.path.name == name)


def count_steps(run: Callable[[Files], object]) -> int:
    """How many steps a run takes."""
    recorder = Recorder()
    run(Files(recorder))
    return len(recorder.steps)
