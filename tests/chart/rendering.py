"""What helm makes of the chart, as values for tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHART = Path(__file__).resolve().parents[2] / "charts" / "everstep"

Document = dict[str, Any]


class Refused(Exception):
    """helm refused; its text is what helm said."""


@dataclass(frozen=True)
class Rendered:
    """All documents of a release."""

    documents: tuple[Document, ...]

    def of(self, kind: str) -> list[Document]:
        return [document for document in self.documents if document["kind"] == kind]

    def one(self, kind: str) -> Document:
        (document,) = self.of(kind)
        return document
