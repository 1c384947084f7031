"""The operator's process where its surroundings are bare."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from everstep_operator.handlers.ears import KopfThread
from unit.operator.small_api import refusal, run, talking_to


def nobody() -> str:
    raise KeyError("getpwuid(): uid not found: 65532")


def test_a_uid_without_a_name_is_no_hindrance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setattr(getpass, "getuser", nobody)

    async def answer(request: web.Request) -> web.StreamResponse:
        return refusal(503, "ServiceUnavailable", "starting")

    async def hear(body: object, *, deleted: bool) -> None:
        raise AssertionError("nobody says anything")

    async def test() -> None:
        async with talking_to(answer):
            thread = KopfThread("", hear, "me")  # type: ignore[arg-type]
            thread.start()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(thread.ended.wait(), 0.5)
            assert not thread.ended.is_set(), "it waits for the API server"
            thread.stop()
            await thread.ended.wait()

    run(test)
