"""A copy of the checkout in which one thing at a time is broken, and in which pytest runs."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import tomllib
from hang_limit import VARIABLE
from mutants.catalogue import Mutant

PLAIN = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # half of a short run's time is their import, and none is needed here
END_SECONDS = 10.0  # for fixtures to take down what they started


@dataclass(frozen=True)
class Ran:
    """A run of pytest. `code` None: it was ended because it hung."""

    code: int | None
    output: str

    def failed(self) -> tuple[str, ...]:
        """Node ids, as far as the short summary can be cut: an id with ` - ` in it loses its end."""
        return tuple(re.findall(r"^(?:FAILED|ERROR) (\S+?(?:\[.*?)?)(?: - .*)?$", self.output, re.MULTILINE))


class Copy:
    """A copy of the checkout in which one thing at a time is broken."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.folder = folder
        self._temporary = folder.with_name(f"t{folder.name}")
        self._seconds = itertools.count(1)
        _copy_checkout(source, folder)
        options = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
        paths = os.pathsep.join(str(folder / path) for path in options.get("pythonpath", []))
        self._environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "0", **PLAIN}

    @contextmanager
    def broken(self, mutant: Mutant) -> Iterator[None]:
        """With the entry's new text in place of its old one."""
        path = self.folder / mutant.file
        text = path.read_text()
        try:
            self._write(path, text.replace(mutant.old, mutant.new))
            yield
        finally:
            self._write(path, text)

    def _write(self, path: Path, text: str) -> None:
        """Each time with another date: Python knows a compiled file by its source's date in seconds, and its length."""
        path.write_text(text)
        seconds = next(self._seconds)
        os.utime(path, (seconds, seconds))

    async def pytest(
        self, tests: tuple[str, ...], *options: str, limit_seconds: float, hang_seconds: float | None = None
    ) -> Ran:
        """Run these tests; whatever they started and left behind is ended with them. `hang_seconds`: of their own waits."""
        argv = ["-m", "pytest", "-q", "-rfE", "--tb=short", "-p", "no:cacheprovider", f"--basetemp={self._temporary}"]
        environment = self._environment | ({VARIABLE: str(hang_seconds)} if hang_seconds else {})
        with tempfile.TemporaryFile() as output:
            async with _process([*argv, *options, *tests], self.folder, environment, output.fileno()) as process:
                try:
                    code = await asyncio.wait_for(process.wait(), limit_seconds)
                except asyncio.TimeoutError:
                    code = None
            output.seek(0)
            return Ran(code, output.read().decode(errors="replace"))


def _copy_checkout(source: Path, folder: Path) -> None:
    """All that git knows or would add; nothing that is ignored."""
    command = ["git", "-C", str(source), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for name in sorted(set(filter(None, listed.split("\0")))):
        if os.path.lexists(source / name):  # else removed, and git does not know yet
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, folder / name, follow_symlinks=False)


@asynccontextmanager
async def _process(
    arguments: list[str], folder: Path, environment: dict[str, str], output: int
) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)  # pytest takes its fixtures down
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(process.wait(), END_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
