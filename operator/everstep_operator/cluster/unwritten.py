"""Jobs whose status the API server refuses: nothing can be told on them, so readiness, a metric and the log say which right or field is missing."""

from __future__ import annotations

import re

from everstep_operator.api.status import cut
from everstep_operator.cluster.client import ApiError

_MOST_TOLD = 3
_LONGEST = 500  # bytes
_UNKNOWN_FIELD = re.compile(r'unknown field "([\w.\[\]]+)"')


class Unwritten:
    """By job UID, why its status is refused. What the whole operator lacks is refused for every job, in the same words."""

    def __init__(self) -> None:
        self._why: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._why)

    def note(self, job_uid: str, error: ApiError) -> str:
        """It was refused; in the words that are told."""
        self._why[job_uid] = _words(error)
        return self._why[job_uid]

    def forget(self, job_uid: str) -> None:
        """It was written, or the job is gone."""
        self._why.pop(job_uid, None)

    def reasons(self) -> list[str]:
        """Each once, a few at most."""
        return [f"status is not written: {why}" for why in dict.fromkeys(self._why.values())][:_MOST_TOLD]


def _words(error: ApiError) -> str:
    fields = _UNKNOWN_FIELD.findall(error.message)
    if fields:
        return (
            f"the CustomResourceDefinition that is installed does not know {', '.join(sorted(set(fields)))}: "
            "it is older than the operator; upgrade it (crds/, or the chart's value crds.install)"
        )
    return cut(error.message, _LONGEST)
