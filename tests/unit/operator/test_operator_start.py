"""The operator's process where its surroundings are bare."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from everstep_operator.cluster.metrics import Metrics
from everstep_operator.main import Operator, load_decide
from everstep_operator.settings import parse_settings
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

    async def test() -> None:
        stop = asyncio.Event()
        stop.set()
        async with talking_to(answer) as client:
            settings = parse_settings({"EVERSTEP_LEASE_ENABLED": "false"}, identity="me")
            hearing = asyncio.create_task(Operator(settings, b"k" * 32, client, Metrics(), load_decide())._hear(stop))
            await asyncio.wait({hearing}, timeout=0.5)
            hearing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await hearing

    run(test)
