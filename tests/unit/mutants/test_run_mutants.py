"""The runner of the mutants, on a checkout of one function: what it calls killed, what it does not, and what it leaves behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mutants import catalogue, run
from mutants.catalogue import Mutant

OURS = Path(catalogue.__file__).parent
LIMIT_SECONDS = 60.0  # only says that it hangs

PROJECT = {
    "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["."]\n',
    "product.py": "def double(n):\n    return 2 * n\n\n\ndef half(n):\n    return n / 2\n",
    "tests/test_product.py": (
        "import pytest\n"
        "import product\n\n\n"
        "@pytest.mark.parametrize('n', [3, 5], ids=['three - of them', 'five'])\n"
        "def test_double(n):\n    assert product.double(n) == 2 * n\n\n\n"
        "def test_nothing():\n    assert product.double\n\n\n"
        "def test_fails():\n    raise AssertionError\n"
    ),
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    for name, text in PROJECT.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    return root


def mutant(old: str = "2 * n", new: str = "3 * n", test: str = "tests/test_product.py::test_double") -> Mutant:
    return Mutant("R1", f"{old} becomes {new}, seen by {test}", "product.py", old, new, (test,))


def judge(root: Path, *mutants: Mutant, jobs: int = 1) -> dict[str, run.Verdict]:
    verdicts = asyncio.run(run.judge_all(root, mutants, jobs=jobs))
    assert len(verdicts) == len(mutants)
    return {verdict.mutant.name: verdict for verdict in verdicts}


def test_each_entry_gets_the_word_that_it_deserves(checkout: Path) -> None:
    deserved = {
        mutant(): "killed",
        mutant(test="tests/test_product.py::test_nothing"): "SURVIVED",
        mutant(old="4 * n"): "DOES NOT APPLY",
        mutant(old="return"): "DOES NOT APPLY",
        mutant(new="2 *"): "DOES NOT APPLY",
        mutant(test="tests/test_product.py::test_gone"): "UNKNOWN TEST",
        mutant(test="tests/test_gone.py"): "UNKNOWN TEST",
        mutant(test="tests/test_product.py::test_fails"): "TESTS FAIL WITHOUT IT",
        mutant(old="def double(n):", new="n / 2\n\n\ndef double(n):"): "NOT RUN",
    }
    verdicts = judge(checkout, *deserved, jobs=2)
    assert {name: verdict.word for name, verdict in verdicts.items()} == {m.name: word for m, word in deserved.items()}
    assert verdicts[mutant().name].detail == "by tests/test_product.py::test_double[three"
    assert [verdict.mutant.name for verdict in verdicts.values() if verdict.is_good()] == [mutant().name]


def test_what_was_broken_is_whole_again_for_the_next_one_and_the_checkout_was_never_touched(checkout: Path) -> None:
    """Of the same length, so that only its date tells Python that a compiled file is of another text."""
    before = {path: (path.read_text(), path.stat().st_mtime_ns) for path in checkout.rglob("*.py")}
    words = [
        verdict.word
        for verdict in judge(
            checkout, mutant(), mutant("n / 2", "n / 3", "tests/test_product.py::test_double")
        ).values()
    ]
    assert words == ["killed", "SURVIVED"]
    assert {path: (path.read_text(), path.stat().st_mtime_ns) for path in checkout.rglob("*.py")} == before


def test_a_test_that_hangs_has_killed_nothing(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "HANG_SECONDS", 2.0)
    hanging = mutant(new="2 * n if __import__('time').sleep(1000) is None else 0")
    assert [verdict.word for verdict in judge(checkout, hanging).values()] == ["HANGS"]


def test_a_parameter_that_no_test_has_ends_the_run_with_pytests_own_words(checkout: Path) -> None:
    with pytest.raises(RuntimeError, match=r"not found: .*test_double"):
        judge(checkout, mutant(test="tests/test_product.py::test_double[seven]"))


def with_a_list(checkout: Path, *mutants: Mutant) -> list[str]:
    """The command that runs the list of this checkout."""
    folder = checkout / "tests" / "mutants"
    folder.mkdir()
    for path in OURS.glob("*.py"):
        shutil.copy(path, folder)
    shutil.copy(OURS.parent / "hang_limit.py", folder.parent)
    entries = (
        f"[[mutant]]\nrule = {m.rule!r}\nname = {m.name!r}\nfile = {m.file!r}\nold = '''{m.old}'''\nnew = '''{m.new}'''\ntests = {list(m.tests)}\n"
        for m in mutants
    )
    (folder / "list.toml").write_text("\n".join(entries))
    return [sys.executable, str(folder / "run.py"), "--jobs", "1"]


def environment(checkout: Path, scratch: Path) -> dict[str, str]:
    scratch.mkdir()
    return {**os.environ, "PYTHONPATH": str(checkout / "tests"), "TMPDIR": str(scratch)}


def test_the_exit_code_says_whether_all_were_killed(checkout: Path, tmp_path: Path) -> None:
    survivor = mutant(test="tests/test_product.py::test_nothing")
    command = with_a_list(checkout, mutant(), Mutant("R2", *list(vars(survivor).values())[1:]))
    variables = environment(checkout, tmp_path / "scratch")
    both = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert (both.returncode, both.stdout.count("SURVIVED")) == (1, 2), both
    one = subprocess.run([*command, "--only", "R1"], env=variables, capture_output=True, text=True)
    assert (one.returncode, "1 mutants, 0 not killed" in one.stdout) == (0, True), one
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing_behind(checkout: Path, tmp_path: Path, number: signal.Signals) -> None:
    mark = tmp_path / "pid"
    new = f"2 * n if open({str(mark)!r}, 'w').write(str(__import__('os').getpid())) and __import__('time').sleep(1000) else 0"
    command = with_a_list(checkout, mutant(new=new))
    process = subprocess.Popen(command, env=environment(checkout, tmp_path / "scratch"))
    try:
        wait_until(lambda: mark.exists() and mark.read_text() != "")
        process.send_signal(number)
        assert process.wait(LIMIT_SECONDS) == 130
    finally:
        process.kill()
    wait_until(lambda: not Path("/proc", mark.read_text()).exists())
    assert list((tmp_path / "scratch").iterdir()) == []


def wait_until(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it hangs"
        time.sleep(0.02)
