"""One look-up, told only when it was slow; a refused name is an answer."""

from __future__ import annotations

import os

import pytest
from everstep.launcher.loop import Loop
from everstep.launcher.reverse_dns import ReverseLookup


@pytest.mark.parametrize(("slow_seconds", "is_told"), [(0.0, True), (60.0, False)])
def test_a_slow_look_up_is_told_once_with_what_to_do(slow_seconds: float, is_told: bool) -> None:
    loop, told, asked = Loop(), [], []
    done, signal = os.pipe()

    def look_up(address: str) -> None:
        asked.append(address)
        raise OSError("no such name")

    def say(text: str) -> None:
        told.append(text)

    lookup = ReverseLookup(loop, say, look_up=look_up, slow_seconds=slow_seconds)
    lookup.start("10.0.0.7")
    lookup.start("10.0.0.8")
    loop.on_readable(done, lambda: loop.stop(0))
    loop.call_later(0.3, lambda: os.write(signal, b"x"))
    loop.run()
    assert asked == ["10.0.0.7"]
    assert [("10.0.0.7" in text, "in-addr.arpa" in text) for text in told] == [(True, True)] * is_told
