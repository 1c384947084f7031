"""Real sidecar processes on loopback addresses, and a launcher that the test plays itself over the pod's unix socket."""

from __future__ import annotations

import http.client
import json
import os
import pickle
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from everstep_protocol import auth, codec, local, names, plan, storage
from everstep_protocol.messages import (
    Announce,
    LeaveRequest,
    PollRequest,
    PrepareAnswer,
    PrepareRequest,
    SidecarStatus,
)
from everstep_protocol.plan import Coordinator, Member, Plan, Resume, SaveInterval
from everstep_protocol.records import Ready
from everstep_protocol.shared_memory import PHASES, Control, Page, Progress
from hang_limit import hang_seconds
from loopback import address, free_port

HANG_SECONDS = hang_seconds(120.0)  # a limit on hangs, never an expectation
JOB_UID = "job-1"
T = TypeVar("T")
REPOSITORY = Path(__file__).resolve().parents[3]


def until(condition: Callable[[], T], what: str, seconds: float = HANG_SECONDS) -> T:
    """Look until it is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.01)
    raise AssertionError(f"still not so after {seconds} s: {what}")


class Trainer:
    """One rank's side of shared memory and snapshots."""

    def __init__(self, memory: Path, rank: int, local_rank: int, plan: Plan) -> None:
        self.memory = memory
        self.rank = rank
        self.plan = plan
        self.page: Page[Progress] = Page(memory / f"{names.PROGRESS_PREFIX}{local_rank}", Progress)
        self.page.open(create=True)

    def report(self, step: int, phase: str = "training") -> None:
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        self.page.write(Progress(self.plan.attempt, step, now, 10_000_000, PHASES.index(phase), 64 * (step + 1), 0))

    def control(self) -> Control | None:
        page: Page[Control] = Page(self.memory / names.CONTROL_NAME, Control)
        page.open(create=True)
        record = page.read()
        page.close()
        return record

    def snapshot(self, step: int, *, content: bytes = b"weights") -> Path:
        """What a rank leaves when its part of a save is whole in memory."""
        folder = self.memory / names.SNAPSHOTS_NAME / storage.snapshot_name(self.plan.attempt) / storage.step_name(step)
        folder.mkdir(parents=True, exist_ok=True)
        files = {f"__{self.rank}_0.distcp": content + str((self.rank, step)).encode()}
        if self.rank == 0:
            files[storage.METADATA] = pickle.dumps({"step": step})
        for name, data in files.items():
            (folder / name).write_bytes(data)
        ready = Ready(
            self.plan.attempt,
            self.plan.plan_id,
            step,
            self.rank,
            {name: len(data) for name, data in files.items()},
            64 * step,
            "2.6.0",
        )
        staged = folder / f".ready-{self.rank}"
        staged.write_text(codec.dumps(ready))
        staged.rename(folder / storage.ready_name(self.rank))
        return folder


class FakeLauncher:
    """Speaks `local` as the launcher does; never starts anything."""

    def __init__(self, path: Path, *, nonce: str | None = None, running: int = 0, processes: int = 1) -> None:
        self.path = path
        self.nonce = nonce or secrets.token_hex(8)
        self.running = running
        self.processes = processes
        self.socket: socket.socket | None = None
        self.buffer = b""
        self.heard: list[local.Message] = []
        self.ignored: tuple[type[local.Message], ...] = ()

    def connect(self) -> None:
        def try_once() -> socket.socket | None:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(str(self.path))
            except OSError:
                connection.close()
                return None
            return connection

        self.socket = until(try_once, f"{self.path} accepts")
        self.buffer = b""
        self.say(local.LauncherHello(self.nonce, self.processes, self.running))

    def say(self, message: local.Message) -> None:
        assert self.socket is not None
        self.socket.sendall(local.encode(message))

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def pump(self, seconds: float = 0.0) -> None:
        """Read what is there, answer what a launcher answers by itself."""
        assert self.socket is not None
        self.socket.settimeout(seconds or 0.001)
        try:
            self.buffer += self.socket.recv(1 << 20)
        except TimeoutError:
            return
        *lines, self.buffer = self.buffer.split(b"\n")
        for line in lines:
            message = local.decode(line)
            assert message is not None
            self.heard.append(message)
            if isinstance(message, self.ignored):
                continue
            if isinstance(message, local.Stop):
                self.running = 0 if self.running <= message.attempt else self.running
                self.say(local.Stopped(message.attempt))
            elif isinstance(message, local.ChoosePort):
                self.say(local.PortChosen(message.attempt, 20000 + message.attempt))
            elif isinstance(message, local.Start):
                self.running = message.attempt

    def find(self, kind: type[T], attempt: int | None = None) -> T | None:
        return next(
            (m for m in self.heard if isinstance(m, kind) and attempt in (None, getattr(m, "attempt", None))), None
        )

    def count(self, kind: type[Any]) -> int:
        return sum(isinstance(message, kind) for message in self.heard)


@dataclass
class Pod:
    """One sidecar process with folders of its own, a shared storage, and its launcher."""

    index: int
    base: Path
    storage_mount: Path
    token: str
    port: int
    metrics_port: int
    process: subprocess.Popen[bytes] | None = None
    launcher: FakeLauncher | None = None
    extra_env: dict[str, str] = field(default_factory=dict)
    boot: str = ""
    module: str = "everstep_sidecar.main"

    @property
    def uid(self) -> str:
        return f"uid-{self.index}"

    @property
    def ip(self) -> str:
        return address(10 + self.index)

    @property
    def memory(self) -> Path:
        return self.base / "memory"

    @property
    def log(self) -> Path:
        return self.base / "log"

    def start(self) -> None:
        for name in ("memory", "scratch", "pod", "token"):
            (self.base / name).mkdir(parents=True, exist_ok=True)
        (self.base / "token" / "token").write_text(self.token + "\n")
        environment = {
            **os.environ,
            "PYTHONPATH": f"{REPOSITORY / 'sidecar'}:{REPOSITORY / 'trainer_lib'}",
            names.ENV_JOB_UID: JOB_UID,
            names.ENV_JOB_NAME: "gpt",
            names.ENV_JOB_NAMESPACE: "default",
            names.ENV_CLUSTER_UID: "cluster",
            names.ENV_POD_UID: self.uid,
            names.ENV_POD_NAME: f"gpt-w{self.index}",
            names.ENV_POD_IP: self.ip,
            names.ENV_NODE: f"node-{self.index}",
            names.ENV_STORAGE_PATH: "gpt",
            names.ENV_API_PORT: str(self.port),
            names.ENV_METRICS_PORT: str(self.metrics_port),
            **{f"EVERSTEP_MOUNT_{n.upper()}": str(self.base / n) for n in ("memory", "scratch", "pod", "token")},
            "EVERSTEP_MOUNT_STORAGE": str(self.storage_mount),
            **self.extra_env,
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", self.module], env=environment, stderr=log, stdout=log
            )

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait(HANG_SECONDS)
            self.process = None

    def terminate(self) -> int:
        assert self.process is not None
        self.process.terminate()
        code = self.process.wait(HANG_SECONDS)
        self.process = None
        return code

    def connect_launcher(self, **options: Any) -> FakeLauncher:
        self.launcher = FakeLauncher(self.memory / names.SOCKET_NAME, **options)
        self.launcher.connect()
        return self.launcher

    def publish(self, one: Plan) -> None:
        """As the kubelet does it: a new folder, then the link `..data` swings."""
        pod = self.base / "pod"
        version = pod / f"..{secrets.token_hex(4)}"
        version.mkdir()
        (version / "plan").write_text(codec.dumps(one))
        (version / "attempt").write_text(str(one.attempt))
        staged = pod / "..data_tmp"
        staged.symlink_to(version.name)
        staged.rename(pod / "..data")
        for name in ("plan", "attempt"):
            if not (pod / name).is_symlink():
                (pod / name).symlink_to(f"..data/{name}")

    def ask(
        self,
        path: str,
        message: Any,
        *,
        sender: str = auth.OPERATOR,
        token: str | None = None,
        recipient: str | None = None,
        nonce: str | None = None,
        seconds: float = HANG_SECONDS,
    ) -> tuple[int, Any]:
        """One signed request, repeated once with the boot id that it is told: (status, JSON). Checks the answer's signature."""
        body = codec.dumps(message).encode()

        def ask_once() -> tuple[int, Any]:
            head = self.head(path, body, sender=sender, recipient=recipient, nonce=nonce)
            return self.exchange(head, body, token=token, seconds=seconds)

        status, document = ask_once()
        if status == auth.OTHER_BOOT:
            self.boot = document["boot"]
            status, document = ask_once()
        return status, document

    def head(
        self,
        path: str,
        body: bytes,
        *,
        sender: str = auth.OPERATOR,
        recipient: str | None = None,
        nonce: str | None = None,
    ) -> auth.RequestHead:
        """Of a request that was never sent, with the boot id that this pod said last."""
        head = auth.new_post(path, body, job=JOB_UID, sender=sender, recipient=recipient or self.uid, boot=self.boot)
        return replace(head, nonce=nonce or head.nonce)

    def exchange(
        self, head: auth.RequestHead, body: bytes, *, token: str | None = None, seconds: float = HANG_SECONDS
    ) -> tuple[int, Any]:
        """Send exactly this: (status, JSON). Checks the answer's signature."""
        connection = http.client.HTTPConnection(self.ip, self.port, timeout=seconds)
        try:
            connection.request(head.method, head.path, body, head.headers(token or self.token))
            answer = connection.getresponse()
            raw = answer.read()
        finally:
            connection.close()
        self.check_signature(head, answer.status, raw, answer.headers.get(auth.HEADER_SIGNATURE))
        return answer.status, json.loads(raw)

    def check_signature(self, head: auth.RequestHead, status: int, raw: bytes, given: str | None) -> None:
        """Every answer but a 401 is signed."""
        if status != 401:
            expected = auth.sign_answer(self.token, nonce=head.nonce, status=status, responder=self.uid, body=raw)
            assert auth.verify(expected, given), "answer not signed"

    def ask_ok(self, path: str, message: Any, kind: type[T], **options: Any) -> T:
        status, document = self.ask(path, message, **options)
        assert status == 200, (status, document)
        return codec.from_json(kind, document)

    def get(self, path: str, *, metrics: bool = False) -> bytes:
        connection = http.client.HTTPConnection(self.ip, self.metrics_port if metrics else self.port, timeout=5)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            assert answer.status == 200
            return answer.read()
        finally:
            connection.close()

    def is_up(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"the sidecar has ended:\n{self.log.read_text()}"
        try:
            return bool(self.get("/healthz", metrics=True))
        except OSError:
            return False

    def status(self) -> SidecarStatus:
        """As the operator is told; people are told less."""
        return self.poll(None, 0, wait=0.0)

    def poll(self, version: str | None, attempt: int, *, wait: float = 20.0, **more: Any) -> SidecarStatus:
        return self.ask_ok("/v1/poll", PollRequest(version, wait, attempt, **more), SidecarStatus)

    def leave(self, attempt: int, deadline_seconds: float = 20.0) -> None:
        status, document = self.ask("/v1/leave", LeaveRequest(attempt, deadline_seconds))
        assert status == 200, document

    def announce(self, one: Plan) -> None:
        status, document = self.ask("/v1/announce", Announce(one.attempt, one))
        assert status == 200, document


class World:
    """A job's pods, and the operator's part."""

    def __init__(self, base: Path, num_pods: int, *, storage_mount: Path | None = None) -> None:
        self.storage_mount = storage_mount or base / "storage"
        self.storage_mount.mkdir(exist_ok=True)
        token = secrets.token_hex(16)
        port, metrics_port = free_port(), free_port()
        self.pods = [Pod(i, base / f"pod{i}", self.storage_mount, token, port, metrics_port) for i in range(num_pods)]
        self.lineage: tuple[tuple[int, int], ...] = ()

    @property
    def root(self) -> Path:
        return self.storage_mount / "gpt"

    def start(self) -> None:
        for pod in self.pods:
            pod.start()
        for pod in self.pods:
            until(pod.is_up, f"sidecar {pod.index} is up: {pod.log.read_text()}")

    def close(self) -> None:
        for pod in self.pods:
            if pod.launcher is not None:
                pod.launcher.close()
            pod.kill()

    def logs(self) -> str:
        return "\n".join(f"--- {pod.index}\n{pod.log.read_text()}" for pod in self.pods if pod.log.exists())

    def plan(self, attempt: int, members: list[Pod], resume: Resume | None = None, *, ranks_a_pod: int = 1) -> Plan:
        return plan.sealed(
            Plan(
                format=plan.FORMAT,
                job_uid=JOB_UID,
                attempt=attempt,
                plan_id="",
                intent_generation=1,
                template_hash="t",
                world=len(members) * ranks_a_pod,
                coordinator=Coordinator(members[0].index, members[0].uid, members[0].ip, members[0].port),
                members=tuple(
                    Member(pod.index, pod.uid, pod.ip, f"node-{pod.index}", (i * ranks_a_pod, (i + 1) * ranks_a_pod))
                    for i, pod in enumerate(members)
                ),
                resume=resume or Resume("none"),
                lineage=self.lineage,
                cause="start" if attempt == 1 else "node-lost",
                interval=SaveInterval(steps=10),
            )
        )

    def request(
        self, attempt: int, *, intent: str = "", peers: bool = True, expected: Sequence[Pod] = ()
    ) -> PrepareRequest:
        return PrepareRequest(
            attempt=attempt,
            intent_id=intent or f"intent-{attempt}",
            lineage=self.lineage,
            last_attempt=attempt - 1,
            condemned=(),
            bad=(),
            ever=False,
            storage_known=attempt > 1,
            resume_from=None,
            peers=tuple(_peer(pod) for pod in self.pods) if peers else (),
            expected=tuple(pod.uid for pod in expected),
        )

    def prepare(self, coordinator: Pod, attempt: int, **options: Any) -> PrepareAnswer:
        return coordinator.ask_ok("/v1/prepare", self.request(attempt, **options), PrepareAnswer)

    def begin(self, attempt: int, members: list[Pod], **options: Any) -> Plan:
        """Prepare, plan, publish; launchers must be connected. Returns when every launcher was told to start."""
        answer = self.prepare(members[0], attempt)
        assert answer.outcome == "ready", answer
        self.lineage = answer.lineage
        one = self.plan(attempt, members, answer.resume, **options)
        for pod in members:
            pod.publish(one)
        self.pump_until(lambda: all(_launcher(pod).find(local.Start, attempt) for pod in members), "all start")
        return one

    def pump(self) -> None:
        for pod in self.pods:
            if pod.launcher is not None and pod.launcher.socket is not None:
                pod.launcher.pump()

    def pump_until(self, condition: Callable[[], T], what: str) -> T:
        def look() -> T:
            self.pump()
            return condition()

        try:
            return until(look, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None


def _peer(pod: Pod) -> Any:
    from everstep_protocol.messages import Peer

    return Peer(pod.uid, pod.ip)


def _launcher(pod: Pod) -> FakeLauncher:
    assert pod.launcher is not None
    return pod.launcher
