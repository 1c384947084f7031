"""R31: which bad ends are none, because they came after the last step was saved."""

from __future__ import annotations

from pathlib import Path

import pytest
from everstep.launcher import finish
from everstep.launcher.cause import Failure
from everstep.launcher.pages import Pages
from everstep.launcher.processes import Exit
from everstep_protocol import names
from everstep_protocol.shared_memory import PHASES, Page, Progress

ATTEMPT = 3
FIRST = 4  # the pod's first rank
PEER = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:3\n"
RAISED = "ValueError: no metric\n"
TRACEBACK = (
    'Traceback (most recent call last):\n  File "/scripts/train.py", line 12, in <module>\n    evaluate()\n'
    '  File "/scripts/train.py", line 4, in evaluate\n    raise ValueError("no metric")\n' + RAISED
)
ABORTED = "terminate called without an active exception\n"
MENTIONED = (
    "Exception ignored in: <function Loader.__del__ at 0x7f>\n"
    'Traceback (most recent call last):\n  File "/lib/loader.py", line 7, in __del__\n    self.stop()\n'
    "AttributeError: 'NoneType' object has no attribute 'stop'\n"
)
CRASHED_THREAD = (
    "Exception in thread Thread-1 (watch):\n"
    'Traceback (most recent call last):\n  File "/lib/watch.py", line 7, in watch\n    self.stop()\nOSError: gone\n'
)
FAULT = (
    'Fatal Python error: Segmentation fault\n\nThread 0x7f (most recent call first):\n  File "/a.py", line 3 in main\n'
)

PHASES_BEFORE = [phase for phase in PHASES if phase != "finished"]


def page_file(memory: Path, local_rank: int = 0) -> Path:
    return memory / f"{names.PROGRESS_PREFIX}{local_rank}"


def write(memory: Path, phase: int, *, attempt: int = ATTEMPT, local_rank: int = 0) -> None:
    page = Page(page_file(memory, local_rank), Progress)
    page.open(create=True)
    page.write(Progress(attempt, 60, 1, 1, phase, 0, 0))
    page.close()


def say(memory: Path, phase: str, **options: int) -> None:
    write(memory, PHASES.index(phase), **options)


def tear(memory: Path) -> None:
    """As its writer leaves the page when it dies in the middle of a record."""
    raw = bytearray(page_file(memory).read_bytes())
    raw[0] |= 1
    page_file(memory).write_bytes(raw)


def ended(*, code: int | None = None, signal: int | None = None, lines: str = "", rank: int = FIRST) -> Failure:
    return Failure(Exit(rank, code, signal), lines)


def pages(memory: Path, num_ranks: int = 1) -> Pages:
    return Pages(memory, ATTEMPT, (FIRST, FIRST + num_ranks))


KILLED = ended(signal=11)
KILLED_SENTENCE = "rank 4 was killed by signal 11 (SIGSEGV) after its last step was saved: it has finished"
PEER_SENTENCE = "rank 4 lost its connection to a peer after its last step was saved: it has finished"


@pytest.mark.parametrize(
    ("failure", "wrapped", "sentence"),
    [
        (KILLED, False, KILLED_SENTENCE),
        (KILLED, True, KILLED_SENTENCE),
        (ended(signal=9), False, KILLED_SENTENCE.replace("11 (SIGSEGV)", "9 (SIGKILL)")),
        (ended(signal=6, lines=ABORTED), False, KILLED_SENTENCE.replace("11 (SIGSEGV)", "6 (SIGABRT)")),
        (ended(signal=11, lines=MENTIONED + CRASHED_THREAD + FAULT), False, KILLED_SENTENCE),
        (ended(signal=40), False, KILLED_SENTENCE.replace("11 (SIGSEGV)", "40 (unknown)")),
        (ended(code=139), True, KILLED_SENTENCE),
        (ended(code=139), False, None),  # no shell: a number that the script chose
        (ended(code=1, lines=RAISED), False, None),
        (ended(code=1, lines=RAISED), True, None),
        (ended(code=128), True, None),
        (ended(code=255), True, None),  # -1: no signal has such a number
        (ended(signal=6, lines=TRACEBACK + ABORTED), False, None),  # it raised, and could not even leave in peace
        (ended(signal=11, lines=TRACEBACK + MENTIONED), False, None),
        (ended(signal=11, lines=TRACEBACK[60:]), False, None),  # cut off, as long ones are
        (ended(code=134, lines=TRACEBACK + ABORTED), True, None),
        (ended(signal=9, lines=TRACEBACK), False, KILLED_SENTENCE.replace("11 (SIGSEGV)", "9 (SIGKILL)")),
        (ended(signal=6, lines=TRACEBACK.replace(RAISED, PEER) + ABORTED), False, PEER_SENTENCE),
        (ended(signal=11, lines=TRACEBACK.replace(RAISED, PEER)), False, PEER_SENTENCE),
        (ended(signal=9, lines=PEER), False, KILLED_SENTENCE.replace("11 (SIGSEGV)", "9 (SIGKILL)")),
        (ended(code=1, lines=PEER), False, PEER_SENTENCE),
        (ended(code=1, lines=PEER), True, PEER_SENTENCE),
    ],
)
def test_r31_after_finished_only_the_scripts_own_word_is_a_failure(
    tmp_path: Path, failure: Failure, wrapped: bool, sentence: str | None
) -> None:
    say(tmp_path, "finished")
    assert finish.explain_rank(failure, pages(tmp_path), wrapped=wrapped) == sentence


@pytest.mark.parametrize("failure", [KILLED, ended(code=1, lines=PEER)], ids=["killed", "peer-lost"])
@pytest.mark.parametrize("phase", PHASES_BEFORE)
def test_r31_before_finished_every_bad_end_is_a_failure(tmp_path: Path, phase: str, failure: Failure) -> None:
    say(tmp_path, phase)
    assert finish.explain_rank(failure, pages(tmp_path), wrapped=False) is None
    assert finish.explain_shell(failure, pages(tmp_path)) is None


@pytest.mark.parametrize("attempt", [ATTEMPT - 1, ATTEMPT + 1])
def test_r31_a_page_of_another_attempt_never_counts(tmp_path: Path, attempt: int) -> None:
    say(tmp_path, "finished", attempt=attempt)
    assert finish.explain_rank(KILLED, pages(tmp_path), wrapped=False) is None
    assert not pages(tmp_path).is_any_there


def test_r31_a_page_that_is_not_there_never_counts(tmp_path: Path) -> None:
    assert finish.explain_rank(KILLED, pages(tmp_path), wrapped=False) is None
    assert not page_file(tmp_path).exists(), "and the look makes none"


def test_r31_an_empty_or_torn_page_or_an_unknown_phase_never_counts(tmp_path: Path) -> None:
    page_file(tmp_path).touch()
    assert finish.explain_rank(KILLED, pages(tmp_path), wrapped=False) is None
    say(tmp_path, "finished")
    tear(tmp_path)
    assert finish.explain_rank(KILLED, pages(tmp_path), wrapped=False) is None
    for unknown in (len(PHASES), -1):  # -1: the last of PHASES, for an unwary reader
        write(tmp_path, unknown)
        assert finish.explain_rank(KILLED, pages(tmp_path), wrapped=False) is None


def test_r31_a_ranks_own_page_counts_and_no_others(tmp_path: Path) -> None:
    say(tmp_path, "finished", local_rank=1)
    say(tmp_path, "saving", local_rank=0)
    both = pages(tmp_path, 2)
    assert finish.explain_rank(ended(signal=11, rank=FIRST), both, wrapped=False) is None
    assert finish.explain_rank(ended(signal=11, rank=FIRST + 1), both, wrapped=False) is not None
    assert both.is_any_there


def test_r31_a_shell_stands_for_all_its_ranks(tmp_path: Path) -> None:
    say(tmp_path, "finished", local_rank=0)
    both = pages(tmp_path, 2)
    assert finish.explain_shell(ended(code=139), both) is None
    say(tmp_path, "finished", local_rank=1)
    assert finish.explain_shell(ended(code=139), both) == KILLED_SENTENCE
    assert finish.explain_shell(ended(signal=9), both) is not None
    assert finish.explain_shell(ended(code=1), both) is None


def test_r31_what_peers_say_of_a_failed_rank_does_not_excuse_it_in_a_shell(tmp_path: Path) -> None:
    """Their lines are mixed there: a rank that raised, and its neighbour that lost it."""
    for local_rank in (0, 1):
        say(tmp_path, "finished", local_rank=local_rank)
    mixed = ended(code=1, lines=RAISED + PEER)
    assert finish.explain_shell(mixed, pages(tmp_path, 2)) is None
    assert finish.explain_shell(mixed, pages(tmp_path, 1)) == PEER_SENTENCE
