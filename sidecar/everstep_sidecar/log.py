"""JSON logs, one object a line on stderr: time, level, message, job, attempt, step."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable

_SECOND = "%Y-%m-%dT%H:%M:%S"


class JSONFormatter(logging.Formatter):
    """`attempt` is asked for at each line; `step` comes as an extra of the line."""

    def __init__(self, job: str, attempt: Callable[[], int]) -> None:
        super().__init__()
        self._job = job
        self._attempt = attempt

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime(_SECOND, time.gmtime(record.created))
        line = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            "job": self._job,
            "attempt": self._attempt(),
            "step": getattr(record, "step", None),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def configure(job: str, attempt: Callable[[], int]) -> None:
    """Send all logs of this process to stderr as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONFormatter(job, attempt))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("aiohttp").setLevel(logging.WARNING)
