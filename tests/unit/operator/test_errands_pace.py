"""Each errand that fails is tried ever more slowly, on its own."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from everstep_operator.core import model
from everstep_sidecar.server import Rejected
from loopback import address, free_port
from unit.operator.small_sidecars import FastClock, Pod, client, errands_of, run, status
from unit.operator.test_errands import prepare


@pytest.mark.parametrize("way", ["refused", "rejected", "raises"])
def test_st3_each_errand_that_fails_is_tried_ever_more_slowly_and_slows_no_other_down(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        clock, port, tried = FastClock(), free_port(), []
        pod = Pod(address(1), port, "pod-a", status("pod-a"), answer=reject)
        if way != "refused":
            await pod.start()
        async with client(port) as asker:
            call = asker.call

            async def counted(*args: Any) -> Any:
                tried.append((args[2], clock.now()))
                if way == "raises":
                    raise KeyError("a fault of our own")
                return await call(*args)

            monkeypatch.setattr(asker, "call", counted)
            errands, begin = errands_of(asker, clock=clock), clock.now()
            while clock.now() < begin + 20.0:
                prepare(errands, pod)
                errands.leave(model.AskLeave("pod-a", pod.ip, 4, 5.0, "change"))
                errands.announce(model.Announce("pod-a", pod.ip, 4, None))
                errands.ask_sight(model.AskSight("pod-a", pod.ip, 4, "intent"))
                await asyncio.sleep(0.005)
        for path in ("prepare", "leave", "announce", "sight"):
            times = [at for where, at in tried if where == f"/v1/{path}"]
            gaps = [after - before for before, after in itertools.pairwise(times)]
            assert 3 <= len(times) <= 5, f"{path}: at 0, 1, 3, 7 and 15 s"
            assert all(gap >= 2.0**number for number, gap in enumerate(gaps)), (path, gaps)
        if way != "refused":
            await pod.stop()

    run(test)


def reject(request: Any) -> Any:
    raise Rejected(409, "no")
