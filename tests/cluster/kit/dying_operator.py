"""The operator, which ends itself by SIGKILL right after one call to the API: `dying_operator.py POINT`.

POINT: `status:Preparing`, `status:Planned`: after a status write that put the attempt into this state; `plan-patch`: after the first
patch of a plan into a pod. Nothing else is changed: the kill comes where a power cut could.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from everstep_operator import main
from everstep_operator.cluster.client import Client
from everstep_protocol import names


def is_reached(point: str, method: str, path: str, body: Any) -> bool:
    """Whether this call is the one after which the operator dies."""
    text = body if isinstance(body, str) else json.dumps(body)
    if method != "PATCH":
        return False
    if point.startswith("status:"):
        state = json.dumps({"state": point.removeprefix("status:")})[1:-1]
        return path.split("?")[0].endswith("/status") and state in text
    return "/pods/" in path and names.ANNOTATION_PLAN.replace("/", "~1") in text


def die_after(point: str) -> None:
    """Wrap `Client.request`, the one door to the API."""
    request = Client.request

    async def request_then_die(self: Client, method: str, path: str, **options: Any) -> Any:
        answer = await request(self, method, path, **options)
        if is_reached(point, method, path, options.get("body")):
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    Client.request = request_then_die  # type: ignore[method-assign]


if __name__ == "__main__":
    die_after(sys.argv.pop())
    main.main()
