"""The operator, but it is killed at once after its n-th write: `python operator_that_dies.py N`. 0: it lives."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from everstep_operator import main
from everstep_operator.cluster.client import Client

_request = Client.request
_left = int(sys.argv.pop(1))


async def counted(self: Client, method: str, path: str, **options: Any) -> Any:
    global _left
    answer = await _request(self, method, path, **options)
    is_write = (
        method != "GET"
        and "/leases" not in path
        and "/events" not in path
        and "dryRun" not in (options.get("params") or {})
    )
    if is_write and _left > 0:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return answer


Client.request = counted  # type: ignore[method-assign]
main.main()
