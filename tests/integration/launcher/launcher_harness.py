"""A launcher as the pod runs it, and the sidecar's end of its socket, for tests: real processes, a real unix socket."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from everstep_protocol import local, names
from everstep_protocol.plan import Coordinator, Member, Plan, Resume, SaveInterval, sealed
from hang_limit import hang_seconds

HANG_SECONDS = hang_seconds(60.0)
LIBRARY = Path(__file__).resolve().parents[3] / "trainer_lib"

M = TypeVar("M", bound=local.Message)


def make_plan(attempt: int, sizes: Sequence[int] = (1,)) -> Plan:
    """A plan with members of so many ranks each."""
    firsts = [sum(sizes[:i]) for i in range(len(sizes))]
    members = tuple(
        Member(i, f"uid-{i}", "127.0.0.1", f"node-{i}", (first, first + size))
        for i, (first, size) in enumerate(zip(firsts, sizes, strict=True))
    )
    return sealed(
        Plan(
            format=1,
            job_uid="job-uid",
            attempt=attempt,
            plan_id="",
            intent_generation=1,
            template_hash="h",
            world=sum(sizes),
            coordinator=Coordinator(0, "uid-0", "127.0.0.1", names.PORT_API),
            members=members,
            resume=Resume("none"),
            lineage=(),
            cause="start",
            interval=SaveInterval(),
        )
    )


class FakeSidecar:
    """Listens where the sidecar does; one launcher at a time."""

    def __init__(self, memory: Path) -> None:
        self._path = memory / names.SOCKET_NAME
        self._listener: socket.socket | None = None
        self._connection: socket.socket | None = None
        self._received = b""

    def listen(self) -> None:
        """As a sidecar that has just started: an old socket file is in the way."""
        self._path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._path))
        self._listener.listen(8)
        self._listener.settimeout(HANG_SECONDS)

    def accept(self) -> local.LauncherHello:
        """The launcher's next connection, and its hello."""
        assert self._listener is not None
        self._connection, _ = self._listener.accept()
        self._connection.settimeout(HANG_SECONDS)
        self._received = b""
        return self.expect(local.LauncherHello)

    def send(self, message: local.Message) -> None:
        assert self._connection is not None
        self._connection.sendall(local.encode(message))

    def receive(self) -> local.Message | None:
        """The next message; None: the launcher is gone."""
        assert self._connection is not None
        while b"\n" not in self._received:
            try:
                data = self._connection.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                return None
            self._received += data
        line, self._received = self._received.split(b"\n", 1)
        return local.decode(line)

    def expect(self, kind: type[M]) -> M:
        """The next message, which must be of this kind."""
        message = self.receive()
        assert isinstance(message, kind), message
        return message

    def is_silent(self, seconds: float) -> bool:
        """Whether nothing comes for so long."""
        assert self._connection is not None
        return not self._received and not select.select([self._connection], [], [], seconds)[0]

    def close(self) -> None:
        for end in (self._connection, self._listener):
            if end is not None:
                end.close()
        self._connection = self._listener = None


class Pod:
    """One trainer container: its folders, its launcher, its sidecar."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.memory = folder / "memory"
        self.bin = folder / "bin"
        self.log = folder / "termination-log"
        self.stdout = folder / "stdout"
        self.stderr = folder / "stderr"
        self.memory.mkdir()
        self.bin.mkdir()
        self.log.touch()
        shutil.copy(LIBRARY / "everstep" / "launcher" / "everstep_script.py", self.bin / "everstep")
        (self.bin / "lib").symlink_to(LIBRARY)
        self.sidecar = FakeSidecar(self.memory)
        self.launcher: subprocess.Popen[bytes] | None = None

    def script(self, name: str, text: str, *, shebang: str | None = None) -> Path:
        """A user's script; with `shebang`, one that runs by itself."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!{shebang}\n{text}" if shebang else text)
        if shebang:
            path.chmod(0o755)
        return path

    def launch(
        self, *command: str | Path, processes: int = 1, grace: float = 30, output: int = -1, **variables: str
    ) -> None:
        """Start the launcher, not waiting for anything; with `output`, both streams go there and not to files."""
        inherited = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        environment = inherited | {
            "PATH": path,
            names.ENV_MEMORY: str(self.memory),
            names.ENV_PROCESSES: str(processes),
            names.ENV_GRACE_SECONDS: str(grace),
            "TERMINATION_LOG": str(self.log),
            "USE_LIBUV": "1",
        }
        environment |= variables
        with self.stdout.open("wb") as stdout, self.stderr.open("wb") as stderr:
            self.launcher = subprocess.Popen(
                [sys.executable, str(self.bin / "everstep"), "launch", "--", *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=stdout if output < 0 else output,
                stderr=stderr if output < 0 else output,
                env={name: value for name, value in environment.items() if value != ""},
                cwd=self.folder,
            )

    def start(self, attempt: int, sizes: Sequence[int] = (1,), index: int = 0, resume_dir: str = "") -> None:
        """Say go for this attempt, this pod being member `index`."""
        plan = make_plan(attempt, sizes)
        self.sidecar.send(
            local.Start(
                attempt=attempt,
                plan=local.codec.dumps(plan),
                ranks=plan.members[index].ranks,
                world=plan.world,
                master_addr="127.0.0.1",
                master_port=29500,
                resume_dir=resume_dir,
            )
        )

    def run(self, *command: str | Path, sizes: Sequence[int] = (1,), index: int = 0, **settings: object) -> None:
        """Launcher, hello, go for attempt 1."""
        self.sidecar.listen()
        self.launch(*command, processes=sizes[index], **settings)  # type: ignore[arg-type]
        self.sidecar.accept()
        self.start(1, sizes, index)

    @property
    def pid(self) -> int:
        assert self.launcher is not None
        return self.launcher.pid

    def wait(self) -> int:
        """The launcher's exit code."""
        assert self.launcher is not None
        return self.launcher.wait(HANG_SECONDS)

    def end(self) -> None:
        """Whatever is left after a test."""
        left = below(self.pid) if self.launcher is not None and self.launcher.poll() is None else []
        if self.launcher is not None:
            self.launcher.kill()
            self.launcher.wait()
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.sidecar.close()

    def own_lines(self) -> list[str]:
        """What the launcher itself said."""
        return [line for line in self.stderr.read_text(errors="replace").splitlines() if line.startswith("everstep: ")]


def below(pid: int) -> list[int]:
    """Every process below this one, zombies included."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text(errors="replace")
            except OSError:
                continue
            parents[int(entry.name)] = int(text[text.rindex(")") + 2 :].split()[1])
    found = [child for child, parent in parents.items() if parent == pid]
    return found + [grandchild for child in found for grandchild in below(child)]


def is_alive(pid: int) -> bool:
    """Whether the process exists, as a zombie or not."""
    return Path(f"/proc/{pid}").exists()


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Poll, with a generous limit."""
    deadline = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.01)


def read_when_there(path: Path) -> str:
    """The text of a file that somebody is about to write (by rename, or a whole line)."""
    wait_until(lambda: path.exists() and path.read_text().endswith("\n"), str(path))
    return path.read_text()
