"""Wheels unpacked by the standard library alone."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import unpack_wheels


def wheel(folder: Path, name: str, **files: str) -> None:
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path.replace("__in__", "/").replace("__dot__", "."), text)


def test_modules_are_importable_and_compiled(tmp_path: Path) -> None:
    wheel(tmp_path, "one", one__dot__py="x = 1")
    wheel(tmp_path, "two", two__in____init____dot__py="import one; y = one.x + 1")
    target = tmp_path / "site"
    unpack_wheels.unpack(tmp_path, target)
    code = f"import sys; sys.path.insert(0, {str(target)!r}); import two; print(two.y)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "2\n"
    assert list(target.glob("__pycache__/one.*.pyc"))


def test_a_wheel_that_needs_an_installer_is_refused(tmp_path: Path) -> None:
    wheel(tmp_path, "odd", **{"odd-1__dot__0__dot__data__in__purelib__in__odd__dot__py": ""})
    with pytest.raises(ValueError, match="needs a real installer"):
        unpack_wheels.unpack(tmp_path, tmp_path / "site")


def test_a_file_that_does_not_compile_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheel(tmp_path, "broken", broken__dot__py="def f(:")
    with pytest.raises(ValueError, match="not all files compile"):
        unpack_wheels.unpack(tmp_path, tmp_path / "site")
    assert "broken.py" in capsys.readouterr().err


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="make wheels"):
        unpack_wheels.unpack(tmp_path, tmp_path / "site")
