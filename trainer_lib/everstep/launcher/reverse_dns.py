"""Reverse DNS that nobody answers costs gloo 10 s at each start, without a word: one look-up beside the first start tells the user."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable

from everstep.launcher.loop import Loop

SLOW_SECONDS = 2.0


class ReverseLookup:
    """Asks once, in a thread, as the trainers of this container will ask: for the name of another worker's address."""

    def __init__(
        self,
        loop: Loop,
        say: Callable[[str], None],
        *,
        look_up: Callable[[str], object] = lambda address: socket.getnameinfo((address, 0), 0),
        slow_seconds: float = SLOW_SECONDS,
    ) -> None:
        self._loop = loop
        self._say = say
        self._look_up = look_up
        self._slow_seconds = slow_seconds
        self._asked = False

    def start(self, address: str) -> None:
        """Ask, if nobody has asked yet."""
        if self._asked:
            return
        self._asked = True
        reader, writer = os.pipe()
        self._loop.on_readable(reader, lambda: self._hear(address, reader))
        try:
            threading.Thread(target=self._measure, args=(address, writer), daemon=True).start()
        except RuntimeError:  # no room for one more thread: training matters, this hint does not
            os.close(writer)

    def _measure(self, address: str, writer: int) -> None:
        began = time.monotonic()
        try:
            with contextlib.suppress(OSError):  # "no such name" is an answer; how long it took is the question
                self._look_up(address)
            os.write(writer, str(time.monotonic() - began).encode())
        finally:
            os.close(writer)

    def _hear(self, address: str, reader: int) -> None:
        seconds = float(os.read(reader, 100) or 0)  # nothing: it failed, and said so on standard error
        self._loop.on_readable(reader, None)
        os.close(reader)
        if seconds >= self._slow_seconds:
            self._say(
                f"the reverse DNS look-up of {address} took {seconds:.0f} s, and torch makes such look-ups at every start: let the "
                "cluster's DNS answer them for the pods' addresses (in-addr.arpa, ip6.arpa), if only with `no such name`"
            )
