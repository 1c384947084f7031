"""A real kube-apiserver on 127.0.0.1 with an etcd of its own: schemas, CEL, preconditions and watches as they are, without nodes."""

from __future__ import annotations

import json
import secrets
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testcluster.builder import Builder
from testcluster.layout import Layout
from testcluster.shell import Progress

_START_LIMIT_SECONDS = 60.0


def free_port() -> int:
    """A port that is free on 127.0.0.1 now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass
class ApiServer:
    """`start` waits until it is ready; `restart` keeps the data; `stop` ends both processes."""

    folder: Path
    etcd_program: Path
    api_program: Path
    port: int = field(default_factory=free_port)
    etcd_port: int = field(default_factory=free_port)
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    operator_token: str = field(
        default_factory=lambda: secrets.token_hex(16)
    )  # user `everstep`, without any right of its own
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        users = f'{self.token},admin,admin,"system:masters"\n{self.operator_token},everstep,everstep\n'
        (self.folder / "tokens.csv").write_text(users)
        key = self.folder / "sa.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        self._run("etcd", self._etcd())
        self._start_api()

    def restart(self) -> None:
        """End the API server hard and start it again on the same port and data."""
        self._end("kube-apiserver", signal.SIGKILL)
        self._start_api()

    def stop(self) -> None:
        for name in ("kube-apiserver", "etcd"):
            self._end(name, signal.SIGKILL)

    def pause(self) -> None:
        """Connections stay open and nothing answers."""
        self._processes["kube-apiserver"].send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._processes["kube-apiserver"].send_signal(signal.SIGCONT)

    def compact(self) -> None:
        """Forget all history of etcd: a watch from an old resourceVersion gets 410."""
        etcd = f"http://127.0.0.1:{self.etcd_port}/v3"
        status = _post(f"{etcd}/maintenance/status", {})
        _post(f"{etcd}/kv/compaction", {"revision": status["header"]["revision"], "physical": True})

    def table(self, path: str) -> Any:
        """What `kubectl get` shows."""
        return self.call("GET", path, accept="application/json;as=Table;v=v1;g=meta.k8s.io")[1]

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> tuple[int, Any]:
        """(status, JSON): a plain client of its own, so that ours is not tested by itself."""
        request = urllib.request.Request(self.url + path, method=method)
        request.add_header("Authorization", f"Bearer {self.token}")
        request.add_header("Content-Type", content_type)
        request.add_header("Accept", accept)
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(request, data, timeout=30, context=_no_verification()) as answer:
                return answer.status, _parse(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, _parse(error.read())

    def _start_api(self) -> None:
        self._run("kube-apiserver", self._api())
        deadline = time.monotonic() + _START_LIMIT_SECONDS
        while not self._is_ready():
            if time.monotonic() > deadline or self._processes["kube-apiserver"].poll() is not None:
                raise RuntimeError(f"kube-apiserver is not ready: see {self.folder / 'kube-apiserver.log'}")
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        try:
            return self.call("GET", "/readyz")[0] == 200
        except OSError:
            return False

    def _run(self, name: str, argv: list[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(argv, stdout=log, stderr=log, cwd=self.folder)

    def _end(self, name: str, how: signal.Signals) -> None:
        process = self._processes.pop(name, None)
        if process is not None:
            process.send_signal(how)
            process.wait()

    def _etcd(self) -> list[str]:
        client, peer = f"http://127.0.0.1:{self.etcd_port}", f"http://127.0.0.1:{free_port()}"
        return [
            str(self.etcd_program),
            f"--data-dir={self.folder / 'etcd'}",
            "--unsafe-no-fsync",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        ]

    def _api(self) -> list[str]:
        return [
            str(self.api_program),
            f"--etcd-servers=http://127.0.0.1:{self.etcd_port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--cert-dir={self.folder / 'certificates'}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.96.0.0/16",
            f"--service-account-key-file={self.folder / 'sa.key'}",
            f"--service-account-signing-key-file={self.folder / 'sa.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--disable-admission-plugins=ServiceAccount",
            "--etcd-compaction-interval=0",
            "--watch-cache=true",
        ]


def find_programs() -> tuple[Path, Path]:
    """(etcd, kube-apiserver) of the test cluster, built first where they are not there yet, which takes minutes."""
    found = Builder(Layout.from_environment(), Progress(quiet=True)).programs()
    return found["etcd"], found["kube-apiserver"]


def _no_verification() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _parse(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode(errors="replace")


def _post(url: str, body: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())
