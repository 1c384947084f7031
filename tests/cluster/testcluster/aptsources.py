"""Reads this machine's own apt sources, so that no mirror's name is ever written down in the repository."""

from collections.abc import Iterator
from pathlib import Path

APT = Path("/etc/apt")


def debian_mirror(apt: Path = APT) -> str:
    """The first mirror that offers Debian's main archive; `LookupError` says where it was looked for."""
    files = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]
    for file in files:
        if not file.is_file() or file.suffix not in (".list", ".sources"):
            continue
        parse = parse_deb822 if file.suffix == ".sources" else parse_one_line
        for uri, suite in parse(file.read_text()):
            if _is_main_archive(uri, suite):
                return uri.rstrip("/")
    raise LookupError(f"no Debian mirror in {apt}/sources.list or {apt}/sources.list.d")


def _is_main_archive(uri: str, suite: str) -> bool:
    return uri.rstrip("/").endswith("/debian") and "-" not in suite and "/" not in suite


def parse_one_line(text: str) -> Iterator[tuple[str, str]]:
    """(URI, suite) of each `deb [options] URI SUITE COMPONENT...` line."""
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if not words or words[0] != "deb":
            continue
        words = words[1:]
        if words and words[0].startswith("["):
            end = next((i for i, word in enumerate(words) if word.endswith("]")), len(words))
            words = words[end + 1 :]
        if len(words) >= 2:
            yield words[0], words[1]


def parse_deb822(text: str) -> Iterator[tuple[str, str]]:
    """(URI, suite) of each combination in each enabled stanza of a `*.sources` file."""
    for stanza in _stanzas(text):
        if "deb" not in stanza.get("types", "").split() or stanza.get("enabled", "yes").lower() == "no":
            continue
        for uri in stanza.get("uris", "").split():
            for suite in stanza.get("suites", "").split():
                yield uri, suite


def _stanzas(text: str) -> Iterator[dict[str, str]]:
    stanza: dict[str, str] = {}
    key = ""
    for line in [*text.splitlines(), ""]:
        if line.startswith("#"):
            continue
        if not line.strip():
            if stanza:
                yield stanza
            stanza, key = {}, ""
        elif line[0].isspace():
            stanza[key] = f"{stanza.get(key, '')} {line.strip()}".strip()
        else:
            name, _, value = line.partition(":")
            key = name.strip().lower()
            stanza[key] = value.strip()
