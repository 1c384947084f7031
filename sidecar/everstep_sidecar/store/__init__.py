"""What is true about storage: the file-system half of PROTOCOL, one module a concern. Everything is synchronous and may block.

`root` is always the job's own folder on the storage volume (`names.MOUNT_STORAGE` / `names.ENV_STORAGE_PATH`). Functions raise
OSError where the storage does not answer (EIO, ESTALE, ENOSPC, ...): the caller says "unknown" and asks again; `prepare` and
`commit` say it themselves. The last keyword of all, `files: Files = FILES`, is the layer that does the system calls; tests record,
interrupt and interleave it.

`prepare` R4
    prepare(root, request: PrepareRequest, *, owner: Owner, pod_uid: str, mount: Path | None = None, on_fenced=...) -> PrepareAnswer
`owner` R11
    claim(root, owner: Owner, *, known: bool, mount: Path | None = None)
        -> Claim(outcome: claimed | ours | adopted | former | missing | another | damaged, owner, where)
    judge(root, owner: Owner) -> Claim: the same, without changing anything
    job_uids(owner) -> frozenset[str]: its own and the adopted ones
`sight` R11, R17
    unseen(root, owner: Owner, *, attempt: int, intent_id: str = "") -> str | None: what this mount does not show, in words
`fence` R5
    raise_fence(root, fence: Fence) -> FenceResult(outcome: raised | mine | higher, highest, taken)
    highest(root) -> int; read_fence(root, attempt) -> Fence | None
`listing` R12, R14
    list_checkpoints(root, job_uids) -> tuple[Verdict, ...]; info(root, verdict) -> CheckpointInfo
    list_uncached(folder) -> list[str]
`go` R7, R31
    write_plan(root, plan: Plan); give_go(root, attempt, go: Go) -> bool (False: it was there); has_go(root, attempt) -> bool
    mark_finished(root, attempt); is_finished(root, attempt) -> bool
`temporary` R14
    open_temporary(root, attempt, step) -> Path: coordinator only, raises Fenced; its own from before a restart is used again
    write_rank(root, snapshot: Path, ready: Ready, *, job_uid: str, on_block=...) -> RankRecord: raises Fenced, BadSnapshot; a rank
        that is recorded already is not copied again
    is_seen(root, attempt, step) -> bool: whether this mount shows the temporary directory
    read_ready(snapshot: Path, rank) -> Ready | None; read_records(root, attempt, step) -> dict[int, RankRecord]
    discard(root, attempt, step): R16, give up one's own save
`commit` R14, R6
    commit(root, plan: Plan, step, *, samples_consumed: int, torch: str)
        -> Commit(outcome: committed | fenced | failed, checkpoint: CheckpointInfo | None, reason, message): may be repeated
`retention` R13
    take_away(root, identity, where=""), empty_trash(root, identity): one checkpoint, gone when both have returned
    clean_up(root, *, attempt: int, lineage: Lineage): what nobody reads any more; raises the first error when all was tried
`verify` R17
    verify_share(root, resume: Resume, *, index: int, count: int) -> Share(mismatched, missing, num_bytes); .ok, .is_bad
"""
