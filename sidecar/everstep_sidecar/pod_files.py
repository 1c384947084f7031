"""The plan as the kubelet brings it: files of the downward API, replaced as a whole by swinging the link `..data`."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from everstep_protocol.codec import InvalidDocument
from everstep_protocol.plan import Plan, parse_plan

from everstep_sidecar.backoff import Backoff

POLL_SECONDS = 0.02
_log = logging.getLogger(__name__)


class PodFiles:
    """Looks at the folder every 20 ms (one system call), reads it when it changed, and hands on what is new."""

    def __init__(
        self,
        folder: Path,
        *,
        on_plan: Callable[[Plan], Awaitable[None]],
        on_attempt: Callable[[int], Awaitable[None]],
    ) -> None:
        self._folder = folder
        self._on_plan = on_plan
        self._on_attempt = on_attempt
        self._seen: object = None

    async def run(self) -> None:
        """Until cancelled."""
        backoff = Backoff()
        while True:
            mark = self._mark()
            if mark != self._seen:
                try:
                    await self._read()
                    self._seen = mark
                    backoff.reset()
                except OSError as error:  # the scratch disk: nothing is obeyed that is not on it (R8)
                    _log.warning("the plan cannot be obeyed, trying again: %s", error)
                    await backoff.pause()
            await asyncio.sleep(POLL_SECONDS)

    def _mark(self) -> object:
        try:
            return os.readlink(self._folder / "..data")  # noqa: PTH115 - cheaper, and the text is the mark
        except OSError:
            return self._mark_of_plain_file()

    def _mark_of_plain_file(self) -> object:
        try:
            stat = os.stat(self._folder / "plan")  # noqa: PTH116
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns, stat.st_size

    async def _read(self) -> None:
        text = self._text("plan")
        if text:
            try:
                await self._on_plan(parse_plan(text))
            except InvalidDocument as error:
                _log.error("the plan in this pod's annotation cannot be read: %s", error)
        number = self._text("attempt")
        if number.isdecimal():
            await self._on_attempt(int(number))

    def _text(self, name: str) -> str:
        """Through the link, for the kubelet makes the visible names only after it swung the link for the first time."""
        for path in (self._folder / "..data" / name, self._folder / name):
            try:
                return path.read_text().strip()
            except OSError:
                continue
        return ""
