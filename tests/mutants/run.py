"""Breaks the product on purpose, one entry of the list after the other, and sees whether the tests that it names notice: `make mutants`.

Usage: PYTHONPATH=tests python tests/mutants/run.py [--only WORD ...] [--jobs 2]

Each entry is applied in a copy of the checkout; yours is not touched. First all named tests run there without any of them: they must pass.
A test that hangs has noticed nothing: in CI it is a run that somebody stops hours later, and no word of why. So a hang is an error
here, not a kill: the test must have a limit of its own. The same for a module that cannot be imported any more.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from mutants import catalogue
from mutants.catalogue import Mutant
from mutants.copies import Copy

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
HANG_SECONDS = 180.0  # for the tests of one entry: more than any limit that a test gives itself
PATIENCE_SECONDS = 6.0  # for a wait within a test, where something is broken: most of them are in vain
ALL_SECONDS = 1800.0  # for all of them without a mutant


@dataclass(frozen=True)
class Verdict:
    """What became of one entry; only `killed` is good."""

    mutant: Mutant
    word: str  # killed | SURVIVED | HANGS | DOES NOT APPLY | UNKNOWN TEST | TESTS FAIL WITHOUT IT | ...
    detail: str = ""
    seconds: float = 0.0

    def is_good(self) -> bool:
        return self.word == "killed"


async def judge(copy: Copy, mutant: Mutant) -> Verdict:
    """Apply one entry and run its tests, up to the first that fails."""
    began = time.monotonic()
    with copy.broken(mutant):
        ran = await copy.pytest(mutant.tests, "-x", limit_seconds=HANG_SECONDS, hang_seconds=PATIENCE_SECONDS)
    seconds = time.monotonic() - began
    if ran.code is None:
        return Verdict(mutant, "HANGS", f"no end after {HANG_SECONDS:g} s: give the test a limit of its own", seconds)
    if ran.code == 1:
        return Verdict(
            mutant, "killed", "by " + (ran.failed() or ("a failure that is not in the summary",))[0], seconds
        )
    if ran.code == 0:
        return Verdict(mutant, "SURVIVED", f"{', '.join(mutant.tests)} pass all the same", seconds)
    return Verdict(mutant, "NOT RUN", f"pytest ended with {ran.code}: {_end_of(ran.output)}", seconds)


async def failing_without(copies: list[Copy], tests: list[str]) -> frozenset[str]:
    """Those of the tests that fail, or hang, with nothing broken. Raises RuntimeError where pytest cannot run them."""
    files: dict[str, list[str]] = {}
    for test in tests:
        files.setdefault(test.partition("::")[0], []).append(test)
    shares = [tuple(itertools.chain(*list(files.values())[i :: len(copies)])) for i in range(len(copies))]
    work = (copy.pytest(share, limit_seconds=ALL_SECONDS) for copy, share in zip(copies, shares, strict=True) if share)
    failed: set[str] = set()
    for ran in await asyncio.gather(*work):
        if ran.code not in (0, 1):
            raise RuntimeError(
                f"the tests cannot be run without any mutant: pytest ended with {ran.code}:\n{ran.output[-3000:]}"
            )
        failed |= {test for test in tests if any(_is_of(one, test) for one in ran.failed())}
        if ran.code == 1:
            print(ran.output[-3000:], flush=True)
    return frozenset(failed)


def _is_of(failed: str, test: str) -> bool:
    return failed == test or test.startswith(f"{failed} - ") or failed.startswith((f"{test}::", f"{test}[", f"{test}/"))


async def judge_all(root: Path, mutants: tuple[Mutant, ...], *, jobs: int) -> list[Verdict]:
    """Judge every entry, `jobs` at a time, and say so as it goes."""
    verdicts = [_cannot_run(root, mutant) for mutant in mutants]
    runnable = [mutant for mutant, verdict in zip(mutants, verdicts, strict=True) if verdict is None]
    told = [verdict for verdict in verdicts if verdict]
    for verdict in told:
        _say(verdict)
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        copies = [Copy(root, Path(scratch, str(number))) for number in range(min(jobs, len(runnable)))]
        tests = sorted({test for mutant in runnable for test in mutant.tests})
        print(f"==> {len(tests)} tests and files without any mutant", flush=True)
        failing = await failing_without(copies, tests)
        queue = iter(runnable)

        async def work(copy: Copy) -> None:
            for mutant in queue:
                broken = sorted(failing & set(mutant.tests))
                verdict = (
                    Verdict(mutant, "TESTS FAIL WITHOUT IT", ", ".join(broken)) if broken else await judge(copy, mutant)
                )
                told.append(verdict)
                _say(verdict, f"[{len(told)}/{len(mutants)}] ")

        async with asyncio.TaskGroup() as group:
            for copy in copies:
                group.create_task(work(copy))
    return told


def _cannot_run(root: Path, mutant: Mutant) -> Verdict | None:
    why = catalogue.problem(root, mutant)
    word, colon, detail = why.partition(": ")
    return Verdict(mutant, word if colon else "INVALID", detail if colon else why) if why else None


def _say(verdict: Verdict, progress: str = "") -> None:
    mutant = verdict.mutant
    took = f" ({verdict.seconds:.0f} s)" if verdict.seconds else ""
    print(f"{progress}{mutant.rule} {mutant.name}: {verdict.word} {verdict.detail}{took}", flush=True)


def _end_of(output: str) -> str:
    return " | ".join(line for line in output.splitlines()[-6:] if line.strip())


def _choose(mutants: tuple[Mutant, ...], words: list[str]) -> tuple[Mutant, ...]:
    """Those of a rule, or with a word in their name, file or timer; all where no word is given."""
    return tuple(
        mutant
        for mutant in mutants
        if not words
        or mutant.rule in words
        or any(
            word in text for word in words for text in (mutant.name, mutant.file, mutant.timer) if not _is_rule(word)
        )
    )


def _is_rule(word: str) -> bool:
    return word in catalogue.RULES


async def _main(options: argparse.Namespace) -> int:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    began = time.monotonic()
    mutants = _choose(catalogue.load(FOLDER), options.only)
    if not mutants:
        print(f"no entry for {' '.join(options.only)}")
        return 1
    verdicts = await judge_all(ROOT, mutants, jobs=options.jobs)
    bad = [verdict for verdict in verdicts if not verdict.is_good()]
    print(f"<== {len(mutants)} mutants, {len(bad)} not killed, {time.monotonic() - began:.0f} s")
    for verdict in bad:
        _say(verdict)
    return 1 if bad else 0


def main(arguments: list[str]) -> int:
    """Exit code 0: every entry was killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="WORD", help="a rule (R7), or a part of a name, file or timer"
    )
    parser.add_argument("--jobs", type=int, default=max(1, min(4, os.cpu_count() or 1)))
    try:
        return asyncio.run(_main(parser.parse_args(arguments)))
    except (asyncio.CancelledError, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        return 130
    except (catalogue.InvalidList, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
