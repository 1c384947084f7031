"""Loops over steps that follow each other, are left, or end early: nothing leaks, no save is lost, `finished` is said in time."""

import gc
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import cluster_kit as kit
import everstep
import torch
import torch.distributed as dist
from checks_local import steps_in
from everstep import dcp_files
from everstep.errors import EverstepError
from everstep_protocol import storage
from models import OddShapes, step_by_hand
from ranks import run_ranks, try_ranks


def build(folder: Path, **options: Any) -> tuple[everstep.Checkpointer, OddShapes, Any, dict[str, int]]:
    model, counter = OddShapes(), {"steps": 0}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    state = {"model": model, "optimizer": optimizer, "counter": counter}
    return everstep.Checkpointer(state, directory=folder, **options), model, optimizer, counter


def num_open_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def num_threads() -> int:
    """Also those that are not Python's; the kernel still counts one for a moment after it was joined."""
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208


def check_a_loop_an_epoch_leaks_nothing(folder: Path) -> None:
    """TR12: file descriptors and threads are as many after 40 loops as after three."""

    def epochs() -> None:
        checkpointer, model, optimizer, counter = build(folder, every=1000)
        found = []
        for epoch in range(40):
            for step in checkpointer.steps(until=2 * (epoch + 1), total=80):
                step_by_hand(model, optimizer, step)
                counter["steps"] += 1
            found.append((num_open_files(), num_threads()))
        assert counter["steps"] == 80
        assert num_open_files() <= found[2][0]
        kit.wait_for(lambda: num_threads() <= found[2][1], f"threads to end: {found}")

    run_ranks(2, epochs)
    assert steps_in(folder)[-1] == 80


LEFT = """
import sys, threading, everstep, torch
from everstep import dcp_files
release = threading.Event()
slow = dcp_files.Writer.write_data
def write_data(self, plan, planner):
    release.wait(30)
    return slow(self, plan, planner)
dcp_files.Writer.write_data = write_data
progress = {"step": 0}
loop = everstep.Checkpointer({"progress": progress}, directory=sys.argv[1], every=2).steps(until=9)
for step in loop:
    progress["step"] = step
    if step == 2:  # the save after step 2 is still being written
        break
threading.Timer(0.3, release.set).start()
"""


def check_a_save_that_is_running_outlives_a_break_and_the_script(folder: Path) -> None:
    """Also while somebody holds the generator, so that it is never closed."""
    done = subprocess.run(
        [sys.executable, "-c", LEFT, str(folder / "run")], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert steps_in(folder / "run") == [2]


def check_garbage_that_is_collected_on_the_saving_thread_does_not_wait_for_itself(folder: Path) -> None:
    """A loop that hangs in a cycle (a traceback holds it) may die on any thread, also on the one that it would wait for."""

    def leave() -> None:
        from everstep import dcp_files

        write_data = dcp_files.Writer.write_data
        dropped = threading.Event()

        def collect_first(self: Any, plan: Any, planner: Any) -> Any:
            assert dropped.wait(kit.HANG_SECONDS)
            gc.collect()
            return write_data(self, plan, planner)

        dcp_files.Writer.write_data = collect_first
        gc.disable()
        loop = build(folder / "run", every=1)[0].steps(until=9)
        assert [next(loop), next(loop)] == [0, 1]  # the save after step 1 is under way
        cycle: list[Any] = [loop]
        cycle.append(cycle)
        del loop, cycle
        dropped.set()
        kit.wait_for(lambda: threading.active_count() == 1, "the save to end")

    run_ranks(1, leave)
    assert steps_in(folder / "run") == [1]


def check_a_step_that_was_left_is_done_again_and_an_old_loop_is_refused(folder: Path) -> None:
    def loops() -> Any:
        checkpointer, _, _, counter = build(folder)
        old = checkpointer.steps(until=9)
        assert [next(old), next(old)] == [0, 1]
        new, refusal = checkpointer.steps(until=3), ""
        done = [next(new)]
        try:
            next(old)
        except EverstepError as error:
            refusal = str(error)
        del old
        holder = (folder / storage.LOCK).read_text()
        for step in new:
            counter["steps"] += 1
            done.append(step)
        return done, refusal, holder

    ((done, refusal, holder),) = run_ranks(1, loops)
    assert done == [1, 2]
    assert "has taken over" in refusal
    assert "pid" in holder, "the folder is the new loop's, the old one may not give it back"


def check_a_save_that_cannot_be_begun_ends_the_loop_and_hangs_nobody(folder: Path) -> None:
    def begin() -> None:
        from everstep.folder import FolderPlace

        def make(self: Any, step: int) -> Path:
            raise PermissionError(13, "not yours", "the folder")

        FolderPlace.make = make
        list(build(folder, every=1)[0].steps(until=3))

    for outcome in try_ranks(2, begin):
        assert "not yours" in outcome, outcome
        assert outcome != "hung"


def check_an_interval_in_seconds_outlives_a_loop_that_ends_early_at_its_step(folder: Path) -> None:
    """The step at which ranks meant to ask each other again may be one that no loop ends."""

    def early() -> None:
        checkpointer = build(folder, every=None, every_seconds=0.001, keep_last=99)[0]
        for step in checkpointer.steps(until=99, total=99):
            if step == 2:  # the first save is asked for after three steps
                checkpointer.finish_early()
        for _ in checkpointer.steps(until=30, total=99):
            kit.wait_for(lambda: threading.active_count() == 1, "the save before to end")

    run_ranks(1, early)
    assert len([step for step in steps_in(folder) if 3 < step < 30]) > 1, steps_in(folder)


def check_things_without_any_state_are_no_trouble(folder: Path) -> None:
    def loss_beside(until: int) -> int:
        counter = {"steps": 0}
        state = {"model": OddShapes(), "loss": torch.nn.CrossEntropyLoss(), "counter": counter}
        for _ in everstep.Checkpointer(state, directory=folder).steps(until=until):
            counter["steps"] += 1
        return counter["steps"]

    assert run_ranks(2, loss_beside, 2) == [2, 2]
    assert run_ranks(1, loss_beside, 3) == [3]


def check_no_save_is_in_the_background_of_a_loop_that_was_left(folder: Path) -> None:
    """Its folder is given back only then; and should the process end first, it waits for the thread that saves (TR13)."""

    def leave() -> bool:
        write, may_go_on = dcp_files.Writer.write_data, threading.Event()

        def write_data(*args: Any) -> Any:
            assert may_go_on.wait(kit.HANG_SECONDS)
            return write(*args)

        dcp_files.Writer.write_data = write_data  # type: ignore[method-assign]
        loop = build(folder, every=1)[0].steps(until=9)
        assert [next(loop), next(loop)] == [0, 1]
        (saving,) = (thread for thread in threading.enumerate() if thread.name == "everstep-save")
        threading.Timer(0.3, may_go_on.set).start()
        loop.close()
        assert steps_in(folder) == [1]
        return saving.daemon

    assert run_ranks(1, leave) == [False]


def check_a_script_can_finish_early(folder: Path) -> None:
    def early() -> list[int]:
        checkpointer, _, _, counter = build(folder)
        done = []
        for step in checkpointer.steps(until=100):
            counter["steps"] += 1
            done.append(step)
            if step == 4:
                checkpointer.finish_early()
        assert checkpointer.step == 5
        return [*done, *checkpointer.steps(until=8)]

    assert run_ranks(2, early) == [[0, 1, 2, 3, 4, 5, 6, 7]] * 2
    assert steps_in(folder) == [5, 8]


def check_finished_is_said_when_no_loop_can_follow(folder: Path) -> None:
    """Between the loops of a script that gives `total`, or that has shown that it has several, the job is not finished (R31)."""
    phases: dict[str, list[str]] = {}
    for name, total in (("told", 6), ("shown", None)):
        (pod,) = kit.make_pods(folder / name, 1)

        def epochs(pod: Path = pod, total: int | None = total) -> list[str]:
            kit.enter_pod(pod)
            counter = {"steps": 0}
            checkpointer = everstep.Checkpointer({"counter": counter})
            page, found = kit.progress_page(pod), []
            for until in (2, 4, 6):
                for _ in checkpointer.steps(until=until, total=total):
                    assert kit.phase(page) == "training"
                found.append(kit.phase(page))
                kit.wait_saved(pod, until)
                shutil.rmtree(kit.snapshot(pod, until))
            del checkpointer  # as the interpreter's end does
            return [*found, kit.phase(page)]

        (phases[name],) = run_ranks(1, epochs)
    assert phases["told"] == ["training", "training", "finished", "finished"]
    assert phases["shown"] == ["finished", "training", "training", "finished"]


def check_finished_is_said_at_the_end_of_what_was_the_last_loop_only(folder: Path) -> None:
    """Not where a loop was left, nor where `total` is not reached; but where the script has ended early."""

    def left(checkpointer: everstep.Checkpointer) -> None:
        list(checkpointer.steps(until=1))
        next(checkpointer.steps(until=2))

    def short(checkpointer: everstep.Checkpointer) -> None:
        list(checkpointer.steps(until=1, total=2))

    def early(checkpointer: everstep.Checkpointer) -> None:
        for _ in checkpointer.steps(until=2, total=2):
            checkpointer.finish_early()

    def process(script: Any) -> str:
        (pod,) = kit.make_pods(folder / script.__name__, 1)
        kit.enter_pod(pod)
        checkpointer = everstep.Checkpointer({"counter": {}})
        script(checkpointer)
        del checkpointer  # as the interpreter's end does
        return kit.phase(kit.progress_page(pod))

    phases = {script.__name__: run_ranks(1, process, script) for script in (left, short, early)}
    assert phases == {"left": ["training"], "short": ["training"], "early": ["finished"]}


def check_a_process_group_made_anew_is_met(folder: Path) -> None:
    """A script may destroy its process group between two loops; ours died with it, and so must their threads."""

    def again(store: str) -> int:
        checkpointer, model, optimizer, counter = build(folder / "run")
        rank, threads = dist.get_rank(), []
        for until in (2, 4, 6, 8):
            for step in checkpointer.steps(until=until):
                step_by_hand(model, optimizer, step)
                counter["steps"] += 1
            threads.append(num_threads())
            kit.wait_for(lambda: num_threads() <= threads[0], f"threads to end: {threads}")
            dist.barrier()
            dist.destroy_process_group()
            dist.init_process_group("gloo", init_method=f"file://{store}-{until}", rank=rank, world_size=2)
        return counter["steps"]

    assert run_ranks(2, again, str(folder / "store")) == [8, 8]
    assert steps_in(folder / "run") == [4, 6, 8]


def check_steps_that_no_save_holds_outlive_a_process_group(folder: Path) -> None:
    def twice(store: str) -> list[int]:
        checkpointer, _, _, counter = build(folder / "run")
        loop = checkpointer.steps(until=9)
        assert [next(loop), next(loop), next(loop)] == [0, 1, 2]
        counter["steps"] = 2
        loop.close()
        dist.barrier()
        dist.destroy_process_group()
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(os.environ["RANK"]), world_size=2)
        return [counter["steps"], *checkpointer.steps(until=4)]

    assert run_ranks(2, twice, str(folder / "store")) == [[2, 2, 3]] * 2


def check_a_start_that_fails_holds_nothing(folder: Path) -> None:
    """Neither the folder nor a group with its threads: as long as the error is looked at, too."""

    def fail() -> list[int]:
        errors, threads = [], []
        for _ in range(4):
            try:
                next(everstep.Checkpointer({"counter": [0]}, directory=folder).steps(until=2))
            except EverstepError as error:
                errors.append(error)
            threads.append(num_threads())
        assert len(errors) == 4
        kit.wait_for(lambda: num_threads() <= threads[0], f"threads to end: {threads}")
        return list(everstep.Checkpointer({"counter": {}}, directory=folder).steps(until=2))

    run_ranks(1, lambda: list(everstep.Checkpointer({"counter": {}}, directory=folder).steps(until=1)))
    assert run_ranks(2, fail) == [[1]] * 2


def check_a_checkpointer_that_is_dropped_leaves_no_threads(folder: Path) -> None:
    """Its groups are let go with it: one that outlives the interpreter aborts it (TR13)."""

    def many() -> None:
        threads = []
        for number in range(4):
            list(everstep.Checkpointer({"counter": {}}, directory=folder / f"{number}").steps(until=1))
            threads.append(num_threads())
        kit.wait_for(lambda: num_threads() <= threads[0], f"threads to end: {threads}")

    run_ranks(2, many)


def check_what_fails_at_the_start_can_be_put_right_in_the_same_process(folder: Path) -> None:
    """The folder is given back and no group stays: with the state repaired the same process trains."""

    def again() -> tuple[str, list[int], int]:
        progress: dict[str, Any] = {"odd": object()}
        checkpointer = everstep.Checkpointer({"progress": progress}, directory=folder)
        try:
            next(checkpointer.steps(until=2))
        except EverstepError as error:
            told = str(error)
        progress["odd"] = None
        return told, list(checkpointer.steps(until=2)), threading.active_count()

    for told, done, threads in run_ranks(2, again):
        assert "progress.odd: a object" in told
        assert done == [0, 1]
        assert threads == 1
    (outcome, *_) = try_ranks(1, lambda: everstep.Checkpointer({"a": {}}, per_rank=["b"], from_rank_0=["a", "b"]))
    assert "'b' is not in the state" in outcome
    assert "both in per_rank and in from_rank_0" in outcome
