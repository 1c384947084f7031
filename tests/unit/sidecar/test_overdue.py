"""R16: which saves are overdue, and what is said of them, as tables of values."""

from __future__ import annotations

from dataclasses import replace

import pytest
from everstep_protocol.messages import SaveNotice
from everstep_protocol.plan import SaveInterval
from everstep_sidecar.core import overdue, saves
from everstep_sidecar.core.overdue import Course, Word

BY_STEPS = Course(SaveInterval(steps=10), saved_step=0)
BY_SECONDS = Course(SaveInterval(seconds=60.0), saved_step=0)
NEVER = Course(SaveInterval(), saved_step=0)


def _went(course: Course, *happened: tuple[float, str, int]) -> Course:
    """The course after what happened: (at, what, step)."""
    for at, what, step in happened:
        change = getattr(overdue, what)
        course = change(course, step) if what == "dropped" else change(course, step, at)
    return course


STEPS_10S = tuple((float(at), "stepped", at) for at in range(100))  # one a second, from 0
MINUTES = tuple((70.0 * minute, "stepped", 50 * minute) for minute in range(10))
LONG = ((0.0, "begun", 10), (20.0, "committed", 10))
SHORT = tuple((float(at), "committed", at) for at in range(20, 70, 10))  # as fast as they were begun
SEVENTIES = ((100.0, "stepped", 70), (101.0, "stepped", 80), (102.0, "stepped", 90))
# Due at 10, whole in memory at 40 only, and soon on storage.
SLOW_SNAPSHOT = (*STEPS_10S[:41], (40.0, "begun", 10), *STEPS_10S[41:46], (45.0, "committed", 10))


@pytest.mark.parametrize(
    ("course", "happened", "now", "bytes_age", "since"),
    [
        (BY_STEPS, (), 1e6, None, None),
        (BY_STEPS, STEPS_10S[:30], 30.0, None, None),
        (BY_STEPS, STEPS_10S[:31], 30.0, None, 10.0),
        (BY_STEPS, STEPS_10S[:31], 30.0, 1.0, None),
        (BY_STEPS, STEPS_10S[:31], 30.0, 11.0, 10.0),
        (BY_STEPS, ((0.0, "stepped", 1), (0.2, "stepped", 500)), 9.0, None, None),
        (BY_STEPS, ((0.0, "stepped", 1), (0.2, "stepped", 500)), 10.3, None, 0.2),
        (BY_STEPS, (*STEPS_10S[:25], (25.0, "committed", 20), *STEPS_10S[26:50]), 49.0, None, None),
        (BY_STEPS, (*STEPS_10S[:25], (25.0, "committed", 20), *STEPS_10S[26:51]), 50.0, None, 30.0),
        (BY_STEPS, (*STEPS_10S[:31], (31.0, "committed", 30)), 31.0, None, None),
        (BY_STEPS, (*LONG, *STEPS_10S[21:61]), 61.0, None, None),
        (BY_STEPS, (*LONG, *STEPS_10S[21:91]), 90.0, None, 21.0),
        (BY_STEPS, (*LONG, *SHORT, *SEVENTIES), 115.0, None, 100.0),
        (BY_STEPS, (*SLOW_SNAPSHOT, *STEPS_10S[46:90]), 89.0, None, None),
        (replace(BY_STEPS, saved_step=995), ((0.0, "stepped", 996), (1.0, "stepped", 1019)), 60.0, None, None),
        (BY_SECONDS, ((0.0, "stepped", 5), (100.0, "stepped", 50)), 1e6, None, None),
        (BY_SECONDS, ((0.0, "stepped", 5), *MINUTES[1:3]), 1e6, None, None),
        (BY_SECONDS, ((0.0, "stepped", 5), *MINUTES[1:4]), 200.0, None, 70.0),
        (BY_SECONDS, ((0.0, "stepped", 1), (900.0, "stepped", 2)), 1000.0, None, None),
        (BY_SECONDS, ((0.0, "stepped", 5), (900.0, "stepped", 50)), 960.0, None, None),
        (BY_SECONDS, ((0.0, "stepped", 5), (900.0, "stepped", 50), (970.0, "stepped", 120)), 1020.0, None, None),
        (BY_SECONDS, tuple((200.0 * step, "stepped", step) for step in range(1, 5)), 860.0, None, None),
        (BY_SECONDS, tuple((200.0 * step, "stepped", step) for step in range(1, 6)), 1060.0, None, 600.0),
        (NEVER, STEPS_10S, 1e6, None, None),
        (NEVER, (*STEPS_10S[:20], (19.0, "begun", 20)), 48.0, None, None),
        (NEVER, (*STEPS_10S[:20], (19.0, "begun", 20)), 49.0, None, 19.0),
        (NEVER, (*STEPS_10S[:20], (19.0, "begun", 20)), 49.0, 2.0, None),
        (NEVER, (*STEPS_10S[:20], (19.0, "begun", 20), (20.0, "dropped", 20)), 1e6, None, None),
        (NEVER, (*STEPS_10S[:20], (19.0, "begun", 20), (25.0, "committed", 20)), 1e6, None, None),
        (NEVER, (*LONG, (30.0, "begun", 40)), 89.0, None, None),
        (NEVER, (*LONG, (30.0, "begun", 40)), 91.0, None, 30.0),
        (NEVER, ((0.0, "begun", 20), *STEPS_10S), 100.0, None, None),
    ],
    ids=[
        "nothing happens",
        "two were due",
        "three were due",
        "bytes advance",
        "bytes do not advance any more",
        "steps of milliseconds: not within 10 s",
        "steps of milliseconds: after 10 s",
        "two since the commit",
        "three since the commit",
        "committed at last",
        "commits are usually as long",
        "three times as long as usual",
        "one that was long, long ago",
        "snapshots are usually as long",
        "only what is due by multiples",
        "seconds pass only with steps",
        "two intervals of seconds",
        "three intervals of seconds",
        "never more than steps were done",
        "a pause between steps is one interval",
        "a pause between steps, and one more interval",
        "slow steps: the first save comes after three",
        "slow steps: three were due",
        "no interval",
        "begun, training stopped: within 30 s",
        "begun, training stopped: for 30 s",
        "begun, training stopped, bytes advance",
        "given up",
        "committed",
        "begun, and usually as long",
        "begun, and three times as long",
        "begun, and training goes on",
    ],
)
def test_r16_a_save_that_was_due_is_overdue_when_three_are(course, happened, now, bytes_age, since):
    assert overdue.since(_went(course, *happened), now, bytes_age) == since


def test_what_is_remembered_of_saves_is_bounded():
    course = _went(BY_STEPS, *((float(step), "begun", step) for step in range(0, 1000, 10)))
    for step in range(0, 1000, 10):
        course = overdue.committed(course, step, 1e4) if step % 20 else overdue.dropped(course, step)
    assert course.begun == {}
    for step in range(1000, 2000):
        course = overdue.stepped(course, step, float(step))
    assert len(course.points) <= overdue.NUM_POINTS


BOTH = frozenset({"a", "b"})
WELL = {"a": Word("pod w0 on node-0", False), "b": Word("pod w1 on node-1", False)}
BEGUN = _went(BY_STEPS, (0.0, "begun", 50))


def _book(*said: tuple[str, str], made: bool = True) -> saves.Book:
    book = saves.Book(BOTH)
    for uid, stage in said:
        book, effect = saves.hear(book, uid, SaveNotice(1, "p", 50, (0, 1), stage))
        if effect == "make" and made:
            book, _ = saves.made(book, 50)
    return book


READY_A = ("a", "ready"), ("a", "durable")


@pytest.mark.parametrize(
    ("course", "book", "words", "told"),
    [
        (
            BEGUN,
            _book(*READY_A),
            WELL,
            "pod w1 on node-1 has not said that its part of step 50 is whole in memory.",
        ),
        (
            BEGUN,
            _book(*READY_A, ("b", "ready")),
            WELL,
            "pod w1 on node-1 said that its part of step 50 is whole in memory, and has not said that it is on storage.",
        ),
        (
            BEGUN,
            _book(*READY_A, ("b", "ready")),
            {**WELL, "b": Word("pod w1 on node-1", True)},
            "the sidecar of pod w1 on node-1 is silent.",
        ),
        (
            BEGUN,
            _book(("a", "ready"), ("b", "ready")),
            {**WELL, "b": Word("pod w1 on node-1", True)},
            "the sidecar of pod w1 on node-1 is silent; pod w0 on node-0 said",
        ),
        (
            BEGUN,
            _book(*READY_A),
            {**WELL, "b": Word("pod w1 on node-1", False, "/data does not answer")},
            "pod w1 on node-1: /data does not answer.",
        ),
        (
            BY_STEPS,
            saves.Book(BOTH),
            WELL,
            "pod w0 on node-0 has not said that a snapshot is whole in memory; pod w1 on node-1 has not said",
        ),
        (
            BEGUN,
            saves.committing(_book(*READY_A, ("b", "durable")), 50),
            WELL,
            "pod w0 on node-0 writes the commit of step 50, and its storage does not answer.",
        ),
        (
            BEGUN,
            _book(("a", "ready"), made=False),
            WELL,
            "pod w0 on node-0 makes the directory of step 50, and its storage does not answer.",
        ),
        (
            BEGUN,
            _book(*READY_A, ("b", "durable")),
            WELL,
            "pod w0 on node-0 has all parts of step 50, and does not commit them.",
        ),
    ],
)
def test_r16_the_sentence_names_who_is_missing_and_its_last_word(course, book, words, told):
    sentence = overdue.sentence(course, book, words, "a")
    assert sentence.startswith("saves were due after step 0 and none has reached the storage: ")
    assert told in sentence
    assert "deleting the pod" in sentence


def test_r16_of_many_that_are_missing_three_are_named():
    words = {str(number): Word(f"pod w{number} on node-{number}", True) for number in range(10)}
    sentence = overdue.sentence(BEGUN, saves.Book(frozenset(words)), words, "0")
    assert sentence.count("is silent") == 3
    assert "; and others." in sentence


def test_b14_saves_that_nobody_can_hold_any_more_are_given_up_though_none_is_committed():
    book = saves.Book(BOTH)
    for step in range(0, 200, 10):
        book, _ = saves.hear(book, "a", SaveNotice(1, "p", step, (0, 1), "ready"))
        for old in saves.surplus(book):
            book = saves.dropped(book, old, "nobody holds it")
    assert saves.surplus(book) == ()
    assert sum(save.state == "making" for save in book.saves.values()) == saves.KEPT_UNFINISHED
    assert [saves.answer(book, "b", step) for step in (0, 110, 120, 190)] == ["drop", "drop", "wait", "wait"]
    assert book.save(0).why == "nobody holds it"
