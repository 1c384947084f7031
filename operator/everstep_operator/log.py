"""Logs as JSON lines: time, level, message, job, attempt, and whatever a call adds."""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from datetime import datetime, timezone

job_of_task: ContextVar[str] = ContextVar("job", default="")
attempt_of_task: ContextVar[int] = ContextVar("attempt", default=0)


class JsonFormatter(logging.Formatter):
    """One line a record."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, tz=timezone.utc).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if job := job_of_task.get():
            line["job"] = job
        if attempt := attempt_of_task.get():
            line["attempt"] = attempt
        if reason := getattr(record, "reason", None):
            line["reason"] = reason
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure_logs(level: str) -> None:
    """To stderr. kopf says a line for each event, aiohttp one for each probe: both only from WARNING up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in ("kopf", "aiohttp.access", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
