"""The list of mutants is true to the code: each entry still applies, and no rule and no timer is without one."""

from __future__ import annotations

from pathlib import Path

import pytest
from mutants import catalogue, timers
from mutants.catalogue import Exempt, InvalidList, Mutant

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "tests" / "mutants"


def test_each_entry_still_applies_and_its_tests_are_there() -> None:
    """Where the code changed, the entry's text must follow, or the entry must go: an old one breaks nothing."""
    assert catalogue.problems(ROOT, catalogue.load(FOLDER)) == []


def test_every_rule_and_every_timer_has_an_entry_or_a_reason() -> None:
    """A new timer needs a test that fails without it, and the entry that shows so."""
    assert catalogue.gaps(catalogue.load(FOLDER), catalogue.load_exempt(FOLDER), timers.find(ROOT)) == []


def test_every_timer_of_the_product_is_found() -> None:
    """One of each kind, so that the search is known to see them."""
    found = timers.find(ROOT)
    assert {"Settings.hello_deadline", "sidecar/saver.LOOK_SECONDS", "launcher/cause.WINDOW_SECONDS"} <= found
    assert {"operator/cluster/leases.POLL_SECONDS", "operator/main._STOP_SECONDS"} <= found
    assert not {name for name in found if name in ("Settings.history", "Settings.api_port")}


def test_a_rule_or_a_timer_without_an_entry_is_told_and_so_is_an_exemption_that_is_not_needed() -> None:
    entry = Mutant("R1", "a name", "a file", "old", "new", ("a test",), timer="Settings.one")
    rules = {rule: "not built" for rule in catalogue.RULES if rule not in ("R1", "R2")} | {"R3": " "}
    exempt = Exempt(rules | {"R1": "not built"}, {"Settings.gone": "no test can see it"})
    assert catalogue.gaps((entry,), exempt, frozenset({"Settings.one", "Settings.two"})) == [
        "rule R2: no mutant takes it out, and exempt.toml gives no reason",
        "rule R1: has an entry, and is in exempt.toml too: take it out there",
        "rule R3: is in exempt.toml without a reason",
        "timer Settings.two: no mutant takes it out, and exempt.toml gives no reason",
        "timer Settings.gone: is named in the list, and there is none of this name",
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[mutant]]\nname = 'one'\n", "area.toml: entry 1 (one): 'tests'"),
        ("[[mutant]]\nname = 'one'\ntests = []\nfiel = ''\n", "unexpected keyword argument 'fiel'"),
        ("[[mutant]\n", "area.toml: "),
    ],
)
def test_a_file_that_is_no_list_is_named(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "area.toml").write_text(text)
    with pytest.raises(InvalidList) as raised:
        catalogue.load(tmp_path)
    assert told in str(raised.value)


def test_a_name_that_is_given_twice_and_a_rule_that_there_is_not_are_told() -> None:
    one = Mutant("R35", "a name", "pyproject.toml", "[build-system]", "", ("tests/conftest.py",))
    assert catalogue.problems(ROOT, (one, one)) == [
        "a name: two entries have this name",
        *["a name: rule R35 is none of R1 to R34, " + ", ".join(catalogue.CLASSES)] * 2,
    ]
