"""How the sidecar's process ends."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from everstep_sidecar import main
from everstep_sidecar.settings import parse_settings
from hang_limit import hang_seconds

TOLD = {"EVERSTEP_JOB_UID": "j", "EVERSTEP_POD_UID": "p", "EVERSTEP_POD_IP": "127.0.0.1"}
LIMIT_SECONDS = hang_seconds(30.0)
SCRIPT = """
import asyncio, threading
from pathlib import Path
from everstep_sidecar import main
from everstep_sidecar.storage_calls import StorageCalls

async def serve(settings, token):
    calls = StorageCalls(Path("/"), "gpt-w1 on node-1")
    arrived = threading.Event()
    def hang(root):
        arrived.set()
        threading.Event().wait()
    hanging = asyncio.create_task(calls.call(hang))
    await asyncio.to_thread(arrived.wait)
    {end}

main.serve = serve
main.main()
"""


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("return True", 0, ""),
        ("return False", 1, ""),
        ("raise OSError('no room')", 1, "everstep-sidecar: no room"),
        ("raise KeyError('nobody foresaw this')", 1, "KeyError: 'nobody foresaw this'"),
    ],
)
def test_st9_a_storage_that_hangs_keeps_no_process_from_its_end(tmp_path: Path, end: str, code: int, said: str) -> None:
    (tmp_path / "token").write_text("t")
    env = {**os.environ, **TOLD, "EVERSTEP_MOUNT_TOKEN": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    script = SCRIPT.replace("{end}", end)
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, stderr=subprocess.PIPE, text=True, timeout=LIMIT_SECONDS, check=False
    )
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr


def test_a_commit_that_does_not_end_keeps_no_process_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        folders = {name: str(tmp_path) for name in ("EVERSTEP_MOUNT_MEMORY", "EVERSTEP_MOUNT_SCRATCH")}
        sidecar = main.Sidecar(parse_settings({**TOLD, **folders}), "token")
        monkeypatch.setattr(sidecar._agent, "is_drained", lambda: False)
        await asyncio.wait_for(sidecar._finish_commits(), LIMIT_SECONDS)

    monkeypatch.setattr(main, "LAST_COMMIT_SECONDS", 0.05)
    asyncio.run(scenario())
