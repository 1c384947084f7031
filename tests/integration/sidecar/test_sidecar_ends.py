"""How a job ends badly. R31: a script that fails by its own word after its last step: still a crash, but one that says that training
was complete.
"""

from __future__ import annotations

from pathlib import Path

from everstep_protocol import local
from everstep_protocol.messages import Ack, ExitRequest, Over
from everstep_protocol.plan import Plan
from integration.sidecar.sidecar_harness import Trainer, World

RAISED = "ValueError: no metric"


def _finish(world: World, one: Plan, step: int, *, save: bool) -> list[Path]:
    """What the library leaves behind at the end of the loop; the folders of the last save."""
    trainers = [Trainer(pod.memory, rank, 0, one) for rank, pod in enumerate(world.pods)]
    places = [trainer.snapshot(step) for trainer in trainers] if save else []
    for trainer in trainers:
        trainer.report(step, "finished")
    return places


def _fail(world: World, attempt: int) -> Over:
    """Rank 1 raises, rank 0 has only lost it, and so has finished."""
    world.pods[0].launcher.say(local.Finished(attempt))
    world.pods[1].launcher.say(local.ProcessExited(attempt, 1, 1, None, False, False, RAISED))
    over = world.pump_until(lambda: world.pods[0].status().over, "over")
    assert isinstance(over, Over)
    return over


def _message(saved: str = "done and saved") -> str:
    return (
        f"rank 1 (pod w1 on node-1) exited with code 1; all steps that the script asked for (step 60) are {saved}; "
        f"it fails after its last step: correct or take out what the script does after its loop"
    )


def test_r31_a_crash_after_the_last_step_says_that_training_was_complete(make_world):
    world = make_world(2)
    places = _finish(world, world.begin(1, world.pods), 60, save=True)
    over = _fail(world, 1)  # at once: the crash waits for the last save, not the other way round
    assert not any(place.exists() for place in places)
    assert [info.step for info in world.pods[0].status().checkpoints] == [60]
    assert (over.cause, over.rank, over.message) == ("crash", 1, _message())
    assert not world.pods[0].status().finished

    two = world.begin(2, world.pods)
    assert two.resume.step == 60
    _finish(world, two, -1, save=False)  # nothing was left to do
    again = _fail(world, 2)
    assert (again.cause, again.message) == ("crash", _message())


def test_r31_a_last_save_that_is_not_on_storage_is_not_called_saved(make_world):
    world = make_world(2)
    _finish(world, world.begin(1, world.pods), 60, save=False)
    assert _fail(world, 1).message == _message("done, but the last save did not reach the storage")


def test_r31_before_the_last_step_a_crash_says_nothing_of_it(make_world):
    world = make_world(2)
    one = world.begin(1, world.pods)
    for rank, pod in enumerate(world.pods):
        Trainer(pod.memory, rank, 0, one).report(60, "saving")
    world.pods[1].launcher.say(local.ProcessExited(1, 1, 1, None, False, False, RAISED))
    over = world.pump_until(lambda: world.pods[0].status().over, "over")
    assert over.message == "rank 1 (pod w1 on node-1) exited with code 1"
    assert over.details == RAISED


def test_of_a_failed_job_a_launcher_that_comes_later_is_told_too(make_world):
    world = make_world(1, launchers=False)
    (pod,) = world.pods
    for _ in range(2):
        assert pod.ask_ok("/v1/exit", ExitRequest(0, "NoProgress: why"), Ack) == Ack(0)
    for nonce in ("first", "restarted"):
        launcher = pod.connect_launcher(nonce=nonce)
        order = world.pump_until(lambda launcher=launcher: launcher.find(local.Exit), "the order to end")
        assert (order.result, order.why, order.grace_seconds > 0) == ("failed", "NoProgress: why", True)
        assert launcher.count(local.Exit) == 1
        launcher.close()


def test_only_the_operator_ends_a_pod_and_only_for_the_newest_attempt(make_world):
    world = make_world(2)
    world.begin(1, world.pods)
    first, second = world.pods
    assert first.ask("/v1/exit", ExitRequest(1, "why"), sender=second.uid)[0] == 403
    assert first.ask("/v1/exit", ExitRequest(0, "why"))[0] == 409
    assert first.launcher.find(local.Exit) is None
