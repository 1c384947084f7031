"""How the sidecar's process ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LIMIT_SECONDS = 30.0
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
    told = {"EVERSTEP_JOB_UID": "j", "EVERSTEP_POD_UID": "p", "EVERSTEP_POD_IP": "127.0.0.1"}
    env = {**os.environ, **told, "EVERSTEP_MOUNT_TOKEN": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    script = SCRIPT.replace("{end}", end)
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, stderr=subprocess.PIPE, text=True, timeout=LIMIT_SECONDS, check=False
    )
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
