"""The JSON files on storage and on the memory volume: owner, fence, go, rank records, manifest; and outside a cluster the record of a run."""

from __future__ import annotations

from dataclasses import dataclass

from everstep_protocol import codec
from everstep_protocol.lineage import Lineage

FORMAT = 1


@dataclass(frozen=True)
class Owner:
    """`everstep.json` (R11): whose storage path this is."""

    format: int
    cluster_uid: str
    namespace: str
    name: str
    job_uid: str
    adopted: tuple[str, ...] = ()  # UIDs of former jobs of the same cluster, namespace and name


@dataclass(frozen=True)
class Fence:
    """`attempts/<n>/fence.json` (R5): attempt n begins, everything older ends."""

    format: int
    job_uid: str
    attempt: int
    intent_id: str
    lineage_before: Lineage
    by: str  # pod UID of the fencing sidecar


@dataclass(frozen=True)
class Go:
    """`attempts/<n>/go` (R7), created exclusively: the attempt has started, once."""

    format: int
    plan_id: str
    nonces: dict[str, str]  # pod UID -> boot nonce of its launcher


@dataclass(frozen=True)
class FileRecord:
    """One data file: its length in bytes and XXH3-128 (hex)."""

    name: str
    bytes: int
    xxh3_128: str


@dataclass(frozen=True)
class RankRecord:
    """`rank_<R>.json` in a temporary directory: what one rank's sidecar has written and fsynced there."""

    job_uid: str
    attempt: int
    plan_id: str
    step: int
    rank: int
    files: tuple[FileRecord, ...]


@dataclass(frozen=True)
class Ready:
    """`ready_<R>.json` in a snapshot, written by the trainer when its save is whole in memory (sizes in bytes)."""

    attempt: int
    plan_id: str
    step: int
    rank: int
    files: dict[str, int]  # name -> bytes; rank 0's names `.metadata` too
    samples_consumed: int
    torch: str


@dataclass(frozen=True)
class Unsaved:
    """`unsaved-<local rank>` on the memory volume: a trainer's newest save failed before it was whole, on all ranks together."""

    attempt: int
    step: int
    reason: str  # one word for a condition
    message: str  # what is wrong and what to do
    since_ns: int  # CLOCK_MONOTONIC of the first failure in a row


@dataclass(frozen=True)
class Parent:
    """The checkpoint from which the attempt that made this one resumed."""

    id: str
    attempt: int
    step: int


@dataclass(frozen=True)
class Manifest:
    """`manifest.json`: a checkpoint's identity and contents. The directory's name says nothing (R6)."""

    format: int
    id: str  # digest of all the rest
    job_uid: str
    attempt: int
    step: int
    plan_id: str
    committed_by: int
    parent: Parent | None
    lineage: Lineage  # of the attempt that made it, before this checkpoint
    world: int
    samples_consumed: int
    files: tuple[FileRecord, ...]
    metadata: FileRecord  # `.metadata`
    torch: str


@dataclass(frozen=True)
class Run:
    """`run.json` in a checkpoint that was written outside a cluster; runs of a folder are numbered as a job's attempts are."""

    format: int
    id: str  # digest of all the rest
    run: int
    step: int
    lineage: Lineage  # of the run that made it, before this checkpoint
    world: int  # number of ranks, 0: not known


def sealed(manifest: Manifest) -> Manifest:
    """The manifest with its `id` filled in."""
    return codec.sealed(manifest, "id")


def parse_manifest(text: str | bytes) -> Manifest:
    """Raises InvalidDocument: wrong fields, another format, an id that is not its own."""
    return codec.loads_sealed(Manifest, text, known_format=FORMAT, id_field="id")


def sealed_run(run: Run) -> Run:
    """The record with its `id` filled in."""
    return codec.sealed(run, "id")


def parse_run(text: str | bytes) -> Run:
    """Raises InvalidDocument: wrong fields, another format, an id that is not its own."""
    return codec.loads_sealed(Run, text, known_format=FORMAT, id_field="id")
