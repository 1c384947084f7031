"""The sidecar's small parts, with real files and sockets."""

from __future__ import annotations

import asyncio
import errno
import subprocess
import sys

import pytest
from everstep_protocol.codec import InvalidDocument
from everstep_protocol.messages import Peer, StopAnswer, StopOrder
from everstep_protocol.shared_memory import PHASES, Page, Progress
from everstep_sidecar.agent import own_member
from everstep_sidecar.changes import Changes
from everstep_sidecar.inject import inject
from everstep_sidecar.metrics import Metrics
from everstep_sidecar.peers import Peers, is_silence
from everstep_sidecar.progress import TrainerPages
from everstep_sidecar.scratch import Remembered, Scratch
from everstep_sidecar.settings import parse_settings
from everstep_sidecar.state_reporter import state_name
from everstep_sidecar.stop_desk import StopDesk
from unit.sidecar.test_sidecar_core import PLAN


def test_settings_name_every_problem_at_once():
    with pytest.raises(ValueError, match=r"(?s)EVERSTEP_JOB_UID.*EVERSTEP_POD_IP.*EVERSTEP_API_PORT.*STORAGE_PATH"):
        parse_settings({"EVERSTEP_POD_UID": "u", "EVERSTEP_API_PORT": "x", "EVERSTEP_STORAGE_PATH": "../other"})


def test_r8_the_highest_attempt_survives_and_a_damaged_file_is_no_new_start(tmp_path):
    scratch = Scratch(tmp_path)
    assert scratch.load() == Remembered()
    remembered = Remembered(7, PLAN, started=True, nonces={"a": "1"})
    scratch.save(remembered)
    assert Scratch(tmp_path).load() == remembered
    (tmp_path / "highest.json").write_text("{")
    with pytest.raises(InvalidDocument):
        scratch.load()


def test_r22_membership_is_by_uid_at_this_ip():
    assert own_member(PLAN, "b", "10.0.0.2") == PLAN.members[1]
    assert own_member(PLAN, "b", "10.0.0.9") is None
    assert own_member(PLAN, "c", "10.0.0.2") is None


def test_a_poll_is_woken_by_a_change_and_not_by_what_is_inside():
    async def scenario() -> tuple[bool, bool]:
        changes = Changes()
        before = changes.version
        changes.stir()
        quiet = await changes.wait(lambda: changes.version != before, 0.01)
        asyncio.get_running_loop().call_soon(changes.bump)
        return quiet, await changes.wait(lambda: changes.version != before, 10.0)

    assert asyncio.run(scenario()) == (False, True)


@pytest.mark.parametrize(
    ("error", "silent"),
    [
        (TimeoutError(), True),
        (OSError(errno.ETIMEDOUT, ""), True),
        (OSError(errno.EHOSTUNREACH, ""), True),
        (ConnectionRefusedError(errno.ECONNREFUSED, ""), False),
        (ConnectionResetError(errno.ECONNRESET, ""), False),
    ],
)
def test_r25_a_refused_or_reset_connection_is_no_silence(error, silent):
    assert is_silence(error) is silent


def test_r25_a_peer_that_closes_and_refuses_is_never_lost():
    async def scenario() -> tuple[list[tuple[str, bool]], dict[str, float]]:
        told: list[tuple[str, bool]] = []
        accepted = asyncio.Event()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.transport.abort()
            accepted.set()

        server = await asyncio.start_server(accept, "127.0.0.2", 0)
        port = server.sockets[0].getsockname()[1]
        peers = Peers(
            source_ip="127.0.0.3",
            port=port,
            on_change=lambda uid, lost: told.append((uid, lost)),
            on_failure=lambda: told.append(("failed", True)),
        )
        peers.watch(frozenset({Peer("u", "127.0.0.2")}))
        async with asyncio.timeout(10):
            await accepted.wait()
            server.close()
            await asyncio.sleep(0.6)  # one more try, refused
        lost = peers.lost()
        await peers.close()
        return told, lost

    assert asyncio.run(scenario()) == ([], {})


def _report(memory, step: int) -> Page[Progress]:
    page = Page(memory / "progress-0", Progress)
    page.open(create=True)
    page.write(Progress(1, step, 1, 1, PHASES.index("training"), 0, 0))
    return page


def test_r19_a_rank_that_waits_at_an_agreed_step_is_not_past_it(tmp_path):
    pages = TrainerPages(tmp_path)
    desk = StopDesk(pages, 1, 1)
    _report(tmp_path, 5)
    propose = StopOrder(1, 7, "propose")
    assert desk.hear(propose) == StopAnswer("agreed", 5)
    assert (pages.control().stop_step, pages.control().confirmed) == (7, 0)
    _report(tmp_path, 7)
    assert desk.hear(propose).answer == "agreed"  # the answer was lost, it is asked again
    desk.hear(StopOrder(1, 7, "withdraw"))
    assert pages.control().stop_step == -1
    assert desk.hear(propose) == StopAnswer("past", 7)
    desk.hear(StopOrder(1, 9, "confirm"))
    assert (pages.control().stop_step, pages.control().confirmed) == (9, 1)


def test_r19_pages_of_an_older_attempt_are_no_library(tmp_path):
    _report(tmp_path, 5)
    desk = StopDesk(TrainerPages(tmp_path), 2, 1)
    assert desk.hear(StopOrder(2, 7, "propose")) == StopAnswer("no-library", -1)
    assert desk.had_no_library


def test_a_progress_file_that_was_made_anew_is_read_anew(tmp_path):
    pages = TrainerPages(tmp_path)
    assert pages.progress(1, 1) == ()
    _report(tmp_path, 5)
    assert pages.progress(1, 1)[0].step == 5
    (tmp_path / "progress-0").unlink()
    _report(tmp_path, 9)
    assert pages.progress(1, 1)[0].step == 9


@pytest.mark.parametrize(
    ("stage", "phase", "expected"),
    [
        ("waiting", "none", "waiting"),
        ("started", "starting", "starting"),
        ("started", "training", "running"),
        ("started", "saving", "saving"),
        ("started", "stopped", "stopped"),
        ("started", "finished", "running"),
        ("ended", "training", "waiting"),
        ("finished", "finished", "finished"),
    ],
)
def test_a_members_state_by_stage_and_phase(stage, phase, expected):
    assert state_name(stage, phase) == expected


def test_metrics_exist_from_the_start_and_reasons_are_a_closed_list():
    metrics = Metrics()
    assert 'everstep_save_failures_total{reason="EIO"} 0.0' in metrics.text().decode()
    metrics.failed("EWHATEVER")
    assert 'everstep_save_failures_total{reason="other"} 1.0' in metrics.text().decode()
    assert "EWHATEVER" not in metrics.text().decode()


def test_the_injected_launcher_runs_without_the_image_it_came_from(tmp_path):
    for _ in range(2):  # an init container may run again
        inject(tmp_path)
    script = tmp_path / "everstep"
    assert script.stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "lib" / "everstep_protocol" / "names.py").exists()
    assert (tmp_path / "lib" / "everstep" / "start" / "path" / "sitecustomize.py").exists()
    assert not list(tmp_path.rglob("__pycache__"))
    done = subprocess.run(
        [sys.executable, "-I", str(script), "nonsense"], capture_output=True, text=True, env={"PATH": "/usr/bin"}
    )
    assert "usage: everstep launch" in done.stderr
