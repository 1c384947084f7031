"""Loading ahead of the training loop, and which step is next in what was loaded."""

from __future__ import annotations

import functools
import sys
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

Batches = Generator[Any, None, None]


class Prefetcher:
    """The items of an iterator, taken on one background thread, `depth` of them before they are asked for.

    The thread is an executor's: never a daemon, which the interpreter's end could kill inside C++. It ends with `close`, with
    the last reference to this object, or before the process does, which waits for the items, `depth` at most, that were begun.
    `on_start` runs on it first.
    """

    def __init__(self, items: Batches, *, depth: int, on_start: Callable[[], None] | None = None) -> None:
        self._items = items
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="everstep-data", initializer=on_start)
        self._pending: deque[Future[Any]] = deque(self._executor.submit(next, items) for _ in range(depth))
        weakref.finalize(self, self._executor.shutdown, wait=False, cancel_futures=True)

    def __next__(self) -> Any:
        self._pending.append(self._executor.submit(next, self._items))
        return self._pending.popleft().result()

    def close(self) -> None:
        """Return when the thread has ended, which finishes the item that it is at, and the iterator is closed."""
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._pending.clear()
        self._items.close()


class StepCursor:
    """Hands out micro batches by step: `items` are those of step `step`, then of the next one and so on, `num_each` of each."""

    def __init__(self, items: Prefetcher | Batches, *, step: int, num_each: int) -> None:
        self._items: Prefetcher | Batches | None = items
        self._num_each = num_each
        self._step = step  # of the item that comes next
        self._taken = 0  # items of that step that were handed out

    def is_before(self, step: int) -> bool:
        """Whether `step` is still to come, whole."""
        return self._items is not None and step >= self._step + (self._taken > 0)

    def is_next(self, step: int) -> bool:
        """Whether `step` comes next, or after the rest of a step that the loop has left by `break`."""
        return self.is_before(step) and step <= self._step + (self._taken > 0)

    def skip_to(self, step: int) -> None:
        """Drop what is left before `step`."""
        while self._items is not None and self._step < step:
            self._next()

    def take(self, step: int) -> Iterator[Any]:
        """The micro batches of a step that is still to come. Raises RuntimeError where somebody else has taken of them."""
        self.skip_to(step)
        for place in range(self._num_each):
            if self._items is None or (self._step, self._taken) != (step, place):
                raise RuntimeError(
                    f"micro_batches({step}) cannot go on: meanwhile the loader was asked for another step, or closed; "
                    "finish one step before you ask for the next"
                )
            yield self._next()

    def close(self) -> None:
        """Hand out no more, and end what loads."""
        items, self._items = self._items, None
        if items is not None:
            items.close()

    def _next(self) -> Any:
        assert self._items is not None
        try:
            item = self._items.__next__()
        except BaseException:
            self.close()  # what would come after a failure is of another place: whoever asks again begins anew
            raise
        self._taken += 1
        if self._taken == self._num_each:
            self._step, self._taken = self._step + 1, 0
        return item


def on_same_device() -> Callable[[], None] | None:
    """Makes another thread use this one's CUDA device: pinned memory, and datasets that use it, would take device 0."""
    torch = sys.modules.get("torch")
    if torch is None or not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return None
    return functools.partial(torch.cuda.set_device, torch.cuda.current_device())
