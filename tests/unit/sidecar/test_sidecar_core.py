"""The sidecar's decisions, as tables of values."""

from __future__ import annotations

from dataclasses import replace

import pytest
from everstep_protocol.messages import Exited, Hello, MemberState, Over, SaveNotice, StopAnswer
from everstep_protocol.plan import Coordinator, Member, Plan, Resume, SaveInterval
from everstep_protocol.shared_memory import PHASES, Progress
from everstep_sidecar.core import causes, membership, roll, saves, stop_round, training
from everstep_sidecar.core.causes import Report
from everstep_sidecar.core.membership import Heard

TWO = frozenset({"a", "b"})
PLAN = Plan(
    format=1,
    job_uid="job",
    attempt=1,
    plan_id="p",
    intent_generation=1,
    template_hash="t",
    world=2,
    coordinator=Coordinator(0, "a", "10.0.0.1", 7471),
    members=(Member(0, "a", "10.0.0.1", "node-0", (0, 1)), Member(1, "b", "10.0.0.2", "node-1", (1, 2))),
    resume=Resume("none"),
    lineage=(),
    cause="start",
    interval=SaveInterval(),
)


def _hello(nonce: str, *bad: str) -> Hello:
    return Hello(1, "p", nonce, bad)


def _hear_all(*said: tuple[str, Hello]) -> tuple[roll.Roll, list[str]]:
    state, verdicts = roll.Roll(TWO), []
    for uid, hello in said:
        state, verdict = roll.hear(state, uid, hello)
        verdicts.append(verdict)
        if verdict == "open":
            state = roll.opened(state)
    return state, verdicts


@pytest.mark.parametrize(
    ("said", "verdicts", "cause"),
    [
        ([("a", "1")], ["hold"], None),
        ([("a", "1"), ("a", "1")], ["hold", "hold"], None),
        ([("a", "1"), ("b", "2")], ["hold", "open"], None),
        ([("a", "1"), ("a", "3"), ("b", "2")], ["hold", "hold", "open"], None),
        ([("a", "1"), ("b", "2"), ("a", "1")], ["hold", "open", "go"], None),
        ([("a", "1"), ("b", "2"), ("a", "3")], ["hold", "open", "over"], "launcher-gone"),
        ([("a", "1"), ("b", "2"), ("a", "3"), ("b", "2")], ["hold", "open", "over", "over"], "launcher-gone"),
    ],
    ids=["one", "asks again", "all", "restarted before go", "go was lost", "restarted after go", "over stays"],
)
def test_r7_an_attempt_starts_once(said, verdicts, cause):
    state, heard = _hear_all(*((uid, _hello(nonce)) for uid, nonce in said))
    assert heard == verdicts
    assert (state.over and state.over.cause) == cause


def test_r7_a_restart_while_go_is_written_ends_the_attempt():
    state, _ = roll.hear(roll.Roll(TWO), "a", _hello("1"))
    state, verdict = roll.hear(state, "b", _hello("2"))
    assert verdict == "open"
    state, verdict = roll.hear(state, "a", _hello("3"))
    assert verdict == "over"
    assert roll.opened(state).over == state.over


def test_r17_a_bad_checkpoint_ends_the_attempt_before_it_starts():
    state, verdicts = _hear_all(("a", _hello("1")), ("b", _hello("2", "id-7")), ("a", _hello("1")))
    assert verdicts == ["hold", "over", "over"]
    assert state.over.cause == "bad-checkpoint"
    assert state.over.bad == ("id-7",)


@pytest.mark.parametrize(
    ("nonce", "running", "goes_on"), [("1", True, True), ("1", False, False), ("other", True, False)]
)
def test_r7_a_restarted_coordinator_goes_on_only_if_its_trainers_never_noticed(nonce, running, goes_on):
    state, on = roll.restarted_coordinator(
        roll.Roll(TWO), {"a": "1", "b": "2"}, uid="a", nonce=nonce, still_running=running
    )
    assert (on, state.gone, state.over is None) == (goes_on, True, goes_on)


def _exited(cause="crash", *, rank=1, code=1, signal=None, oom=False, lines="boom", finished=-1) -> Exited:
    return Exited(1, rank, cause, code, signal, oom, lines, 0.0, finished)


PEER_LOST = Report("a", _exited("peer-lost", rank=0), 1.0)
RAISED = Report("b", _exited(), 2.0)
KILLED = Report("b", _exited(code=None, signal=9), 3.0)
GONE = Report("a", _exited("launcher-gone", rank=0, lines=""), 4.0)
REFUSED = Report("b", replace(_exited(code=78), refused=True), 5.0)


@pytest.mark.parametrize(
    ("reports", "first"),
    [
        ((PEER_LOST,), PEER_LOST),
        ((PEER_LOST, RAISED), RAISED),
        ((PEER_LOST, RAISED, KILLED), KILLED),
        ((RAISED, GONE), GONE),
        ((GONE, KILLED), KILLED),
        ((KILLED, REFUSED), REFUSED),
    ],
    ids=["alone", "raised", "killed", "gone", "earlier", "refused"],
)
def test_r32_what_the_others_see_of_a_failure_is_not_its_cause(reports, first):
    assert causes.first_cause(reports) == first
    assert causes.first_cause(tuple(reversed(reports))) == first


def test_r32_the_first_end_of_an_attempt_stays():
    first, second = Over("crash", "first"), Over("peer-lost", "second")
    assert roll.ended(roll.ended(roll.Roll(TWO), first), second).over == first


@pytest.mark.parametrize(
    ("report", "message"),
    [
        (RAISED, "rank 1 (pod w1 on node-1) exited with code 1"),
        (KILLED, "rank 1 (pod w1 on node-1) was killed by signal 9 (SIGKILL)"),
        (GONE, "the trainer container of pod w0 on node-0 is gone"),
        (REFUSED, "rank 1 (pod w1 on node-1) exited with code 78"),
    ],
)
def test_an_end_is_said_in_one_sentence_and_the_last_lines_apart(report, message):
    exited = report.exited
    expected = Over(exited.cause, message, uid=report.uid, rank=exited.rank, details=exited.last_lines)
    expected = replace(expected, refused=report is REFUSED)
    assert causes.over_of(report, PLAN, is_saved=True) == expected


@pytest.mark.parametrize(
    ("is_saved", "saved"), [(True, "done and saved"), (False, "done, but the last save did not reach the storage")]
)
def test_r31_an_end_after_the_last_step_says_that_training_was_complete(is_saved, saved):
    report = Report("b", _exited(finished=60), 1.0)
    assert causes.describe(report, PLAN, is_saved=is_saved) == (
        f"rank 1 (pod w1 on node-1) exited with code 1; all steps that the script asked for (step 60) are {saved}; "
        "it fails after its last step: correct or take out what the script does after its loop"
    )


def test_r31_a_script_without_steps_is_not_said_to_have_done_them():
    message = causes.describe(Report("b", _exited(finished=0), 1.0), PLAN, is_saved=True)
    assert message == "rank 1 (pod w1 on node-1) exited with code 1"


def test_an_oom_kill_says_what_to_do():
    report = Report("b", _exited(oom=True, signal=9), 1.0)
    assert "memory limit" in causes.describe(report, PLAN, is_saved=True)


@pytest.mark.parametrize(
    ("answers", "what", "next_step"),
    [
        ({"a": StopAnswer("agreed", 5), "b": StopAnswer("agreed", 6)}, "confirm", 7),
        ({"a": StopAnswer("agreed", 5), "b": StopAnswer("past", 9)}, "again", 13),
        ({"a": StopAnswer("past", 7), "b": StopAnswer("no-library", -1)}, "no-library", 7),
    ],
)
def test_r19_a_step_is_confirmed_only_if_nobody_had_passed_it(answers, what, next_step):
    outcome = stop_round.judge(stop_round.first_round(5), answers)
    assert (outcome.what, outcome.next.step) == (what, next_step)


def test_r19_the_first_step_is_two_beyond_the_newest():
    assert stop_round.first_round(5).step == 7
    assert stop_round.first_round(-1).step == 2


def _notice(stage: str, step: int = 10) -> SaveNotice:
    return SaveNotice(1, "p", step, (0, 1), stage)


def test_r14_a_save_is_committed_once_when_all_are_durable():
    book = saves.Book(TWO)
    book, effect = saves.hear(book, "a", _notice("ready"))
    assert effect == "make"
    book, effect = saves.hear(book, "b", _notice("ready"))
    assert effect == "none"
    assert saves.answer(book, "a", 10) == "wait"
    book, effect = saves.made(book, 10)
    assert (effect, saves.answer(book, "a", 10)) == ("none", "write")
    book, effect = saves.hear(book, "a", _notice("durable"))
    assert (effect, saves.answer(book, "a", 10), saves.answer(book, "b", 10)) == ("none", "wait", "write")
    book, effect = saves.hear(book, "b", _notice("durable"))
    assert effect == "commit"
    book = saves.committing(book, 10)
    assert saves.hear(book, "b", _notice("durable")) == (book, "none")
    book = saves.committed(book, 10)
    assert saves.answer(book, "a", 10) == "committed"
    assert saves.hear(book, "a", _notice("ready")) == (book, "none")


def test_a_restarted_coordinator_hears_durable_only_and_commits():
    book, effect = saves.hear(saves.Book(TWO), "a", _notice("durable"))
    assert effect == "make"
    book, effect = saves.hear(book, "b", _notice("durable"))
    assert effect == "none"
    assert saves.made(book, 10)[1] == "commit"


def test_r16_after_a_failure_every_part_is_written_again():
    book, _ = saves.hear(saves.Book(TWO), "a", _notice("ready"))
    book, _ = saves.made(book, 10)
    book, _ = saves.hear(book, "a", _notice("durable"))
    book = saves.unmade(saves.discarding(book, 10), 10)
    book, effect = saves.hear(book, "a", _notice("durable"))  # it does not know yet
    assert effect == "make"
    book, effect = saves.made(book, 10)
    assert (effect, saves.answer(book, "a", 10)) == ("none", "write")
    for uid, expected in (("a", "none"), ("b", "commit")):
        book, _ = saves.hear(book, uid, _notice("ready"))
        book, effect = saves.hear(book, uid, _notice("durable"))
        assert effect == expected


def test_a_save_that_is_given_up_is_dropped_by_all_and_old_entries_are_forgotten():
    book = saves.Book(TWO)
    for step in range(100):
        book = saves.committed(book, step) if step != 99 else saves.dropped(book, step, "lost")
    assert saves.answer(book, "a", 99) == "drop"
    assert len(book.saves) == saves.KEPT


def _state(*lost: str, state: str = "running") -> MemberState:
    return MemberState(1, state, 5, dict.fromkeys(lost, 2.0))


def test_r25_silence_is_counted_from_fresh_words_of_others_only():
    heard = {"a": Heard(_state("b"), 0.5), "b": Heard(_state("a", "b"), 9.0)}
    first, second = membership.summarize(PLAN, heard, ready=TWO, gone=True)
    assert (first.lost_by, first.asked) == (0, 0)  # b's word is old
    assert (second.lost_by, second.asked) == (1, 1)


@pytest.mark.parametrize(
    ("own", "ready", "gone", "state"),
    [
        (None, False, False, "absent"),
        (None, True, False, "ready"),
        ("starting", True, True, "running"),
        ("stopped", True, True, "stopped"),
        ("finished", True, True, "finished"),
    ],
)
def test_a_members_state(own, ready, gone, state):
    heard = {"a": Heard(_state(state=own), 0.0)} if own else {}
    summary = membership.summarize(PLAN, heard, ready=frozenset({"a"} if ready else ()), gone=gone)[0]
    assert summary.state == state


@pytest.mark.parametrize(("age", "state"), [(1.0, "preparing"), (11.0, "absent")])
def test_r28_who_prepares_is_not_absent_as_long_as_it_says_so(age, state):
    heard = {"a": Heard(MemberState(1, "preparing", -1, {}), age)}
    assert membership.summarize(PLAN, heard, ready=frozenset(), gone=False)[0].state == state


def test_b14_saves_that_nobody_will_complete_are_known_once_a_later_one_is_committed():
    book = saves.Book(
        TWO, {5: saves.Save("dropped"), 10: saves.Save("open"), 20: saves.Save("committed"), 30: saves.Save("open")}
    )
    assert saves.abandoned(book, 20) == (10,)


def _page(step: int, at: int, phase: str = "training") -> Progress:
    return Progress(1, step, at, 2_000_000_000, PHASES.index(phase), 0, 0)


@pytest.mark.parametrize(
    ("pages", "started", "expected"),
    [
        ((), None, (False, -1, 0.0, "none")),
        ((), 4, (False, -1, 6.0, "starting")),
        ((_page(-1, 0, "loading"),), 4, (True, -1, 6.0, "loading")),
        ((_page(7, 9), _page(6, 8, "saving")), 4, (True, 7, 1.0, "training")),
    ],
    ids=["nothing runs", "no library", "loading", "two ranks"],
)
def test_r25_training_is_told_by_the_trainers_own_clock(pages, started, expected):
    second = 1_000_000_000
    pages = tuple(Progress(p.attempt, p.step, p.step_at_ns * second, p.usual_ns, p.phase, 0, 0) for p in pages)
    seen = training.summarize(pages, started_at_ns=None if started is None else started * second, now_ns=10 * second)
    assert (seen.library, seen.step, seen.age_seconds, seen.phase) == expected
