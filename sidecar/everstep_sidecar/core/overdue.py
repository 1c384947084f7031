"""R16: silence is a failure, too. Which saves were due, since when one is missing, and who has not said its part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from everstep_protocol.plan import SaveInterval

from everstep_sidecar.core.saves import Book, Save

NUM_DUE: Final = 3  # so many saves were due and none was committed
LEAST_SECONDS: Final = 10.0  # where steps take milliseconds, saves are due faster than any storage writes
BEGUN_SECONDS: Final = (
    30.0  # a save that was begun may take so long where no further one becomes due: training has stopped
)
USUAL_FACTOR: Final = 3.0  # and three times as long as the longest of those that were committed last
NUM_USUAL: Final = 5  # so many: what an outage made long once is forgotten
NUM_POINTS: Final = 32
FIRST_SAVE_STEPS: Final = 3  # an interval in seconds asks for the first save of an attempt after so many steps
ADVANCING_SECONDS: Final = 10.0  # bytes that reached the storage so lately are no silence
SILENT_SECONDS: Final = 10.0  # members say something every second
NAMED: Final = 3  # members that a sentence names


@dataclass(frozen=True)
class Course:
    """How the saves of one attempt go. All times are monotonic seconds of one clock, the coordinator's."""

    interval: SaveInterval
    saved_step: int  # of the newest checkpoint; before the first one, where the attempt began
    saved_at: float | None = None  # when it was committed; before the first one, when a step was first reported
    step: int = -1  # newest that was reported
    step_at: float = 0.0
    due_at: float | None = None  # when the first save after `saved_step` was due; None: none was
    num_due_by_seconds: int = 0
    counted_at: float = 0.0  # when one was due by seconds last
    took_seconds: tuple[
        float, ...
    ] = ()  # from when a save was due, or its first notice came, to its commit; the newest
    points: tuple[tuple[int, float], ...] = ()  # steps of which a save was due, and when; the newest, oldest first
    has_committed: bool = False  # in this attempt
    begun: Mapping[int, float] = field(
        default_factory=dict
    )  # saves that are neither committed nor given up: first notice


@dataclass(frozen=True)
class Word:
    """What was last heard of a member."""

    name: str  # `pod w1 on node-1`
    is_silent: bool  # not a word in the last seconds
    trouble: str = ""  # its own sentence about what keeps it


def stepped(course: Course, step: int, at: float) -> Course:
    """A member reports a step."""
    if step <= course.step:
        return course
    if course.saved_at is None:
        course = replace(course, saved_at=at, counted_at=at)
    return _with_due(_counted(replace(course, step=step, step_at=at), at), at)


def begun(course: Course, step: int, at: float) -> Course:
    """A member's first word of a save."""
    return course if step in course.begun else replace(course, begun={**course.begun, step: at})


def dropped(course: Course, step: int) -> Course:
    """A save was given up."""
    return replace(course, begun={other: at for other, at in course.begun.items() if other != step})


def committed(course: Course, step: int, at: float) -> Course:
    """A save was committed."""
    took = at - min(course.begun.get(step, at), _was_due_at(course, step, at))
    course = replace(dropped(course, step), took_seconds=(*course.took_seconds, took)[-NUM_USUAL:])
    if step < course.saved_step:
        return course
    saved = replace(course, saved_step=step, saved_at=at, due_at=None, has_committed=True)
    return _with_due(replace(saved, num_due_by_seconds=0, counted_at=at), at)


def num_due(course: Course) -> int:
    """How many saves were due since the newest checkpoint, by the plan's interval."""
    if course.saved_at is None:
        return 0
    steps = course.interval.steps
    by_steps = course.step // steps - course.saved_step // steps if steps else 0
    return max(0, by_steps, course.num_due_by_seconds)


def since(course: Course, now: float, bytes_age_seconds: float | None) -> float | None:
    """Since when a save is overdue; None: none is.

    `bytes_age_seconds`: since bytes of a save last reached the storage from any member, None: none is being written.
    """
    if bytes_age_seconds is not None and bytes_age_seconds <= ADVANCING_SECONDS:
        return None
    usual = USUAL_FACTOR * max(course.took_seconds, default=0.0)
    if course.due_at is not None and num_due(course) >= NUM_DUE and now - course.due_at >= max(LEAST_SECONDS, usual):
        return course.due_at
    first = min(course.begun.values(), default=None)
    if first is not None and now - max(first, course.step_at) >= max(BEGUN_SECONDS, usual):
        return first
    return None


def sentence(course: Course, book: Book, words: Mapping[str, Word], coordinator: str) -> str:
    """Who is missing, what was last heard of it, and what to do. Stable: nothing in it counts or ages. `coordinator`: its pod's UID."""
    step = min(course.begun, default=None)
    told = "; ".join(_missing(step, book, words, coordinator))
    return (
        f"saves were due after step {course.saved_step} and none has reached the storage: {told}. "
        "Training goes on. See the log of that pod's sidecar (kubectl logs POD -c everstep-sidecar) and its node; "
        "deleting the pod lets another take its place"
    )


def _missing(step: int | None, book: Book, words: Mapping[str, Word], coordinator: str) -> list[str]:
    save = Save() if step is None else book.save(step)
    if save.state == "committing":
        return [f"{words[coordinator].name} writes the commit of step {step}, and its storage does not answer"]
    if save.state in ("making", "discarding"):
        return [f"{words[coordinator].name} makes the directory of step {step}, and its storage does not answer"]
    waited = [uid for uid in words if uid not in save.durable]
    # A member that is silent or in trouble says more than those that wait for it.
    waited.sort(key=lambda uid: (not (words[uid].is_silent or words[uid].trouble), uid in save.ready))
    if not waited:
        return [f"{words[coordinator].name} has all parts of step {step}, and does not commit them"]
    told = [_last_word(step, words[uid], is_ready=uid in save.ready) for uid in waited[:NAMED]]
    return [*told, "and others"] if len(waited) > NAMED else told


def _last_word(step: int | None, word: Word, *, is_ready: bool) -> str:
    if word.is_silent:
        return f"the sidecar of {word.name} is silent"
    if word.trouble:
        return f"{word.name}: {word.trouble}"
    if step is None:
        return f"{word.name} has not said that a snapshot is whole in memory"
    if is_ready:
        return (
            f"{word.name} said that its part of step {step} is whole in memory, and has not said that it is on storage"
        )
    return f"{word.name} has not said that its part of step {step} is whole in memory"


def _counted(course: Course, at: float) -> Course:
    """One more was due by seconds: but one however long the pause before this step was, for trainers ask their clock between steps."""
    seconds = course.interval.seconds
    num_steps = 1 if course.has_committed else FIRST_SAVE_STEPS
    if not seconds or at - course.counted_at < seconds or course.step - course.saved_step < num_steps:
        return course
    return replace(course, num_due_by_seconds=course.num_due_by_seconds + 1, counted_at=at)


def _with_due(course: Course, at: float) -> Course:
    if num_due(course) == 0:
        return course
    steps = course.interval.steps
    step = course.step // steps * steps if steps else course.step
    is_new = not course.points or course.points[-1][0] < step
    points = (*course.points, (step, at))[-NUM_POINTS:] if is_new else course.points
    return replace(course, due_at=at if course.due_at is None else course.due_at, points=points)


def _was_due_at(course: Course, step: int, otherwise: float) -> float:
    """When the save of a step was due: it may have taken long until it was whole in memory, too."""
    return next((at for due, at in reversed(course.points) if due <= step), otherwise)
