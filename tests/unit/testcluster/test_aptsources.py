"""The mirror comes from the machine's own sources, in either of apt's two formats."""

from pathlib import Path

import pytest
from testcluster.aptsources import debian_mirror, parse_deb822, parse_one_line

DEB822 = """\
Types: deb
# a comment inside a stanza
URIs: http://mirror.example/debian/
Suites: bookworm bookworm-updates
Components: main

Types: deb
Enabled: no
URIs: http://off.example/debian
Suites: bookworm

Types: deb-src
URIs: http://source.example/debian
Suites: bookworm
"""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("deb http://m.example/debian bookworm main", [("http://m.example/debian", "bookworm")]),
        ("deb [arch=amd64 signed-by=/a/b.gpg] http://m.example/debian trixie main", [("http://m.example/debian", "trixie")]),
        ("deb [ arch=amd64 ] http://m.example/debian trixie main", [("http://m.example/debian", "trixie")]),
        ("# deb http://m.example/debian bookworm main", []),
        ("deb-src http://m.example/debian bookworm main", []),
        ("deb", []),
    ],
)  # fmt: skip
def test_one_line_format(line: str, expected: list[tuple[str, str]]) -> None:
    assert list(parse_one_line(line)) == expected


def test_deb822_format_skips_what_is_off_and_sources() -> None:
    assert list(parse_deb822(DEB822)) == [
        ("http://mirror.example/debian/", "bookworm"),
        ("http://mirror.example/debian/", "bookworm-updates"),
    ]


def test_deb822_values_go_on_over_lines() -> None:
    text = "Types: deb\nURIs:\n http://a.example/debian\n http://b.example/debian\nSuites: sid\n"
    assert [uri for uri, _ in parse_deb822(text)] == ["http://a.example/debian", "http://b.example/debian"]


def test_other_peoples_archives_are_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "sources.list.d"
    folder.mkdir()
    (folder / "a.list").write_text("deb http://vendor.example/apt stable main\n")
    (folder / "b.sources").write_text(
        "Types: deb\nURIs: http://m.example/debian-security\nSuites: bookworm-security\n\n" + DEB822
    )
    assert debian_mirror(tmp_path) == "http://mirror.example/debian"


def test_no_mirror_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match=r"sources\.list"):
        debian_mirror(tmp_path)
