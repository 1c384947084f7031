"""The library inside a pod: snapshots in memory, agreement, save-and-stop, failures."""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import cluster_kit as kit
import everstep
import torch
import torch.distributed as dist
from everstep.errors import SaveError
from everstep_protocol import codec, local, names, records
from everstep_protocol.shared_memory import Control
from models import assert_equal, everything, sharded_odd_shapes, step_by_hand
from ranks import run_ranks, start_ranks, try_ranks


def train(pods: list[Path], until: int, *, resume: Path | None = None, each: Any = None, extra: Any = None) -> Any:
    """One rank of a job in its pod; `each(rank, step)` runs in the body of each step."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    kit.enter_pod(pods[rank], resume)
    model = sharded_odd_shapes()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    sampler = everstep.data.ElasticSampler(101, global_batch=5)
    state = {"model": model, "optimizer": optimizer, "sampler": sampler, **(extra or {})}
    seen = []
    for step in everstep.Checkpointer(state).steps(until=until):
        seen += [index for indices, weight in sampler.micro_batch_indices(step) for index in indices if weight > 0]
        step_by_hand(model, optimizer, step)
        if each is not None:
            each(rank, step)
    return everything(model, optimizer), seen


def check_snapshots_are_what_a_sidecar_expects_and_another_world_resumes_from_them(folder: Path) -> None:
    pods = kit.make_pods(folder, 2, steps=2)
    storage = folder / "storage"
    nudges: list[Any] = []
    listeners = [listen(pod, nudges) for pod in pods]

    def each(rank: int, step: int) -> None:
        if step in (2, 4):
            kit.wait_saved(pods[rank], step)

    ranks = start_ranks(2, train, pods, 5, each=each)
    kit.wait_for(lambda: all(4 in kit.snapshots(pod) for pod in pods), "the save after step 4")
    pages = [kit.progress_page(pod) for pod in pods]
    kit.wait_for(
        lambda: all(kit.phase(page) == "saving" for page in pages), "the save at the end, which waits for room"
    )
    for rank, pod in enumerate(pods):
        assert kit.snapshots(pod) == [2, 4]
        ready = json.loads((kit.snapshot(pod, 4) / f"ready_{rank}.json").read_text())
        assert (ready["attempt"], ready["step"], ready["rank"], ready["samplesConsumed"]) == (7, 4, rank, 20)
        assert set(ready["files"]) == {f"__{rank}_0.distcp"} | ({".metadata"} if rank == 0 else set())
        assert ready["torch"] == str(torch.__version__)
    kit.commit(pods, 2, storage)
    kit.commit(pods, 4, storage)
    first = ranks.results()
    for page in pages:
        record = page.read()
        assert record is not None
        assert (kit.phase(page), record.attempt, record.step, record.samples_consumed) == ("finished", 7, 5, 25)
        assert record.usual_ns > 0
    resume = kit.commit(pods, 5, storage)
    for listener in listeners:
        listener.close()
    assert {(nudge.attempt, nudge.step, nudge.rank) for nudge in nudges} == {
        (7, step, rank) for step in (2, 4, 5) for rank in (0, 1)
    }

    pods = kit.make_pods(folder / "next", 3, attempt=8, resume=(resume.name, 5))
    assert_equal(run_ranks(3, train, pods, 5, resume=resume)[2][0], first[0][0])
    assert kit.snapshots(pods[0], 8) == [], "nothing was trained: nothing is saved again"
    second = run_ranks(3, train, pods, 12, resume=resume)
    undisturbed = run_ranks(1, train, kit.make_pods(folder / "alone", 1), 12)
    assert_equal(second[0][0], undisturbed[0][0])
    seen = [index for _, samples in first + second for index in samples]
    assert sorted(seen) == sorted(undisturbed[0][1])
    assert kit.snapshots(pods[2], 8) == [12]


def listen(pod: Path, nudges: list[Any]) -> socket.socket:
    """A sidecar's socket that takes down what it is told."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(pod / names.SOCKET_NAME))
    server.listen()

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                nudges.append(local.decode(connection.makefile("rb").readline()))

    threading.Thread(target=serve, daemon=True).start()
    return server


def check_a_save_that_is_due_while_two_wait_is_skipped_by_all_together(folder: Path) -> None:
    """Rank 1's sidecar is behind, rank 0's is not: both skip, both count."""
    pods = kit.make_pods(folder, 2, steps=1)

    def each(rank: int, step: int) -> None:
        if step in (1, 2):
            kit.wait_saved(pods[rank], step)
        if rank == 0 and step == 2:
            shutil.rmtree(kit.snapshot(pods[0], 1))
        if step == 5:
            for earlier in (1, 2):
                shutil.rmtree(kit.snapshot(pods[rank], earlier), ignore_errors=True)
        dist.barrier()

    run_ranks(2, train, pods, 6, each=each)
    for pod in pods:
        record = kit.progress_page(pod).read()
        assert record is not None
        assert (record.num_skipped_saves, record.num_failed_saves) == (3, 0), record
        assert 6 in kit.snapshots(pod)
        assert not set(kit.snapshots(pod)) & {3, 4, 5}


def check_an_interval_in_seconds_gives_the_same_steps_on_all_ranks(folder: Path) -> None:
    pods = kit.make_pods(folder, 2, seconds=0.05)

    def each(rank: int, step: int) -> None:
        time.sleep(0.002 + 0.002 * rank)
        enough = torch.tensor(float(len(kit.snapshots(pods[rank])) == 2))
        dist.all_reduce(enough, op=dist.ReduceOp.MIN)
        if enough:
            raise StopIteration

    outcomes = try_ranks(2, train, pods, 100_000, each=each)
    assert all("StopIteration" in outcome for outcome in outcomes), outcomes
    assert kit.snapshots(pods[0]) == kit.snapshots(pods[1])
    assert kit.snapshots(pods[0])[0] == 3


def check_r19_all_ranks_stop_at_one_step(folder: Path) -> None:
    """Save-and-stop at random moments, proposed and confirmed with random delays between pods: one step, saved by all (B32)."""
    dice = random.Random(5)
    steps = set()
    for repetition in range(30):
        pods = kit.make_pods(folder / f"{repetition}", 3, steps=dice.choice([None, 1, 2, 5]))
        jitter = dice.choice([0.0, 0.0005, 0.004])

        def each(rank: int, step: int, jitter: float = jitter, pods: list[Path] = pods) -> None:
            time.sleep(jitter * random.random())
            dist.all_reduce(torch.ones(1))
            for done in kit.snapshots(pods[rank])[:-1]:
                shutil.rmtree(kit.snapshot(pods[rank], done), ignore_errors=True)

        ranks = start_ranks(3, train, pods, 1_000_000, each=each)
        pages = [kit.progress_page(pod) for pod in pods]
        first = dice.randrange(1, 20)
        kit.wait_for(lambda pages=pages, first=first: newest(pages) >= first, "the first steps")
        stop = agree_on_stop(pods, pages, dice)
        kit.wait_for(lambda pods=pods, pages=pages, stop=stop: are_stopped(pods, pages, stop), "all to stop")
        for pod, page in zip(pods, pages, strict=True):
            record = page.read()
            assert record is not None
            assert record.step == stop
            assert stop in kit.snapshots(pod)
        ranks.kill()
        steps.add(stop)
    assert len(steps) > 3


def check_r19_a_proposed_step_is_waited_at_and_a_withdrawn_one_passed(folder: Path) -> None:
    pods = kit.make_pods(folder, 1)
    control, page = kit.control_page(pods[0]), kit.progress_page(pods[0])
    control.write(Control(7, 3, 0))
    ranks = start_ranks(1, train, pods, 1_000_000, each=lambda rank, step: time.sleep(0.001))
    kit.wait_for(lambda: newest([page]) == 3, "the proposed step")
    time.sleep(0.2)
    record = page.read()
    assert record is not None
    assert (record.step, kit.phase(page), kit.snapshots(pods[0])) == (3, "training", []), (
        "it waits, and has not stopped"
    )
    control.write(Control(7, -1, 0))
    kit.wait_for(lambda: newest([page]) > 5, "steps after the withdrawal")
    stop = agree_on_stop(pods, [page], random.Random(1))
    kit.wait_for(lambda: kit.phase(page) == "stopped", "the stop")
    assert kit.snapshots(pods[0]) == [stop]
    ranks.kill()


def are_stopped(pods: list[Path], pages: list[Any], stop: int) -> bool:
    """Whether all ranks have stopped; meanwhile the sidecars take away what was saved before."""
    for pod in pods:
        for done in kit.snapshots(pod):
            if done != stop:
                shutil.rmtree(kit.snapshot(pod, done), ignore_errors=True)
    return all(kit.phase(page) == "stopped" for page in pages)


def newest(pages: list[Any]) -> int:
    """The newest step that any rank has finished."""
    return max(record.step if (record := page.read()) else -1 for page in pages)


def agree_on_stop(pods: list[Path], pages: list[Any], dice: random.Random) -> int:
    """The coordinator's two rounds: propose a step to all, confirm when none is past it, else name a later one."""
    controls = [kit.control_page(pod) for pod in pods]
    ahead = dice.choice([0, 1, 2])
    while True:
        stop = max(1, newest(pages) + ahead)
        agreed = True
        for control, page in zip(controls, pages, strict=True):
            time.sleep(dice.choice([0.0, 0.003]) * dice.random())
            control.write(Control(7, stop, 0))
            record = page.read()
            agreed = agreed and record is not None and record.step < stop
        if agreed:
            for control in controls:
                time.sleep(dice.choice([0.0, 0.01]) * dice.random())
                control.write(Control(7, stop, 1))
            return stop
        for control in controls:
            control.write(Control(7, -1, 0))
        ahead += 1


def check_a_load_that_fails_on_one_rank_ends_all(folder: Path) -> None:
    """B28: at once, naming rank, file and key; also when the rank dies instead."""
    pods = kit.make_pods(folder, 2)
    run_ranks(2, train, pods, 3)
    good = kit.commit(pods, 3, folder / "storage")
    bad = folder / "bad" / "step_3"
    shutil.copytree(good, bad)
    file = bad / "__1_0.distcp"
    file.write_bytes(file.read_bytes()[:-3000])
    pods = kit.make_pods(folder / "next", 3, attempt=8, resume=("step_3", 3))

    def load(die: bool) -> None:
        if die and dist.get_rank() == 1:
            from everstep import restoring

            restoring.destinations = lambda *_: os._exit(3)
        train(pods, 4, resume=bad if dist.get_rank() == 1 and not die else good)

    began = time.monotonic()
    outcomes = try_ranks(3, load, False)
    for outcome in outcomes:
        assert isinstance(outcome, str)
        assert "LoadError" in outcome
        assert "rank 1" in outcome
    outcomes = try_ranks(3, load, True)
    assert outcomes[1] == "died"
    assert all(isinstance(outcome, str) for outcome in outcomes)
    assert "hung" not in outcomes
    assert time.monotonic() - began < 30


def small_tmpfs(folder: Path, kibibytes: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kibibytes}k", "small", str(folder)], check=True)


def check_a_full_memory_volume_is_told_skipped_and_survived(folder: Path) -> None:
    """B14, B16: no room on rank 1's volume: all skip; room that vanishes meanwhile: all count a failure; room again: saved."""
    pods = [folder / f"pod-{rank}" for rank in range(2)]
    small_tmpfs(pods[1], 200)
    kit.make_pods(folder, 2, steps=1)

    def each(rank: int, step: int) -> None:
        from everstep.saving import Saver

        if step == 1:  # from now on the look before the save is fooled: the write itself meets ENOSPC
            Saver._needed_bytes = lambda *_: 0
        if step == 3 and rank == 1:
            subprocess.run(["mount", "-o", "remount,size=8m", str(pods[1])], check=True)
        if step >= 2:
            kit.wait_for(lambda: threading.active_count() == 1, "the save before to end, one way or the other")
        dist.barrier()

    try:
        extra = {"ballast": {"data": torch.zeros(300_000)}}
        run_ranks(2, lambda: train(pods, 4, each=each, extra={**extra, "mine": {"data": torch.zeros(100_000)}}))
        for pod in pods:
            record = kit.progress_page(pod).read()
            assert record is not None
            assert record.num_skipped_saves >= 1
            assert record.num_failed_saves >= 1
            assert 4 in kit.snapshots(pod)
        left = {path.parent.name for pod in pods for path in (pod / "snapshots" / "a7").rglob("*.distcp")}
        whole = {f"step_{step}" for pod in pods for step in kit.snapshots(pod)}
        assert left == whole, "a failed save leaves nothing"
    finally:
        subprocess.run(["umount", str(pods[1])], check=True)


def check_no_room_at_the_end_is_an_error_on_all_ranks(folder: Path) -> None:
    pods = [folder / f"pod-{rank}" for rank in range(2)]
    small_tmpfs(pods[1], 100)
    kit.make_pods(folder, 2)
    try:
        outcomes = try_ranks(2, lambda: train(pods, 3, extra={"ballast": {"data": torch.zeros(300_000)}}))
        assert all(SaveError.__name__ in outcome and "no room" in outcome for outcome in outcomes), outcomes
        assert "needs about" in outcomes[1]
    finally:
        subprocess.run(["umount", str(pods[1])], check=True)


def check_a_world_without_a_process_group_is_told(folder: Path) -> None:
    (outcome,) = try_ranks(
        1, lambda: [os.environ.update(WORLD_SIZE="2"), list(everstep.Checkpointer({}).steps(until=1))]
    )
    assert "init_process_group" in outcome, outcome
    pods = kit.make_pods(folder, 2)
    (outcome,) = try_ranks(1, lambda: train(pods, 1))
    assert "the plan is for 2 ranks" in outcome, outcome


def check_a_state_that_cannot_be_saved_is_told_to_the_pod_until_a_save_is_good(folder: Path) -> None:
    """On all ranks, with the key and what to do: the sidecar shows it in the job's condition. Training goes on meanwhile (TR4)."""
    pods = kit.make_pods(folder, 2, steps=1)

    def each(rank: int, step: int, odd: dict[str, Any]) -> None:
        unsaved = pods[rank] / f"{names.UNSAVED_PREFIX}0"
        if step == 0:
            assert not unsaved.exists()
        if step in (1, 3):
            kit.wait_saved(pods[rank], step)
            dist.barrier()
        if step == 1 and rank == 1:
            odd["later"] = object()
        if step == 2:
            told = codec.loads(records.Unsaved, unsaved.read_text())
            assert (told.attempt, told.step, told.reason) == (7, 2, "StateRefused")
            assert "odd.later: a object" in told.message, told.message
            assert "keep other things out of the state" in told.message
            odd.pop("later", None)
        if step == 3:
            assert unsaved.exists(), "nobody has looked yet"
        if step == 4:
            assert not unsaved.exists()
            for done in kit.snapshots(pods[rank]):
                shutil.rmtree(kit.snapshot(pods[rank], done), ignore_errors=True)

    def rank_of_job() -> None:
        odd: dict[str, Any] = {}
        train(pods, 5, each=lambda rank, step: each(rank, step, odd), extra={"odd": odd})

    run_ranks(2, rank_of_job)
    for pod in pods:
        record = kit.progress_page(pod).read()
        assert record is not None
        assert record.num_failed_saves == 1


def check_b15_saves_and_the_scripts_collectives_do_not_meet(folder: Path) -> None:
    """Back-to-back saves with the script's own all_reduce on the default group and random pauses."""
    pods = kit.make_pods(folder, 2, steps=1)

    def each(rank: int, step: int) -> None:
        time.sleep(random.random() * 0.01)
        dist.all_reduce(torch.ones(1))
        for done in kit.snapshots(pods[rank]):
            shutil.rmtree(kit.snapshot(pods[rank], done), ignore_errors=True)

    run_ranks(2, train, pods, 60, each=each)


def check_progress_of_a_rank_that_dies_stays_readable(folder: Path) -> None:
    pods = kit.make_pods(folder, 1)
    ranks = start_ranks(1, train, pods, 1_000_000)
    page = kit.progress_page(pods[0])
    kit.wait_for(lambda: newest([page]) > 10, "some steps")
    ranks.kill(signal.SIGKILL)
    record = page.read()
    assert record is None or record.step > 10
