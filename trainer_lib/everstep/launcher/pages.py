"""What the trainers of one attempt say of themselves in shared memory; read here only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from everstep_protocol import names, shared_memory


@dataclass(frozen=True)
class Pages:
    """The progress pages of one attempt's ranks on this pod."""

    memory: Path
    attempt: int
    ranks: tuple[int, int]  # first, one past the last

    @property
    def is_any_there(self) -> bool:
        """Whether a trainer uses the library."""
        return any(self._phase(rank) != "none" for rank in range(*self.ranks))

    def said_finished(self, rank: int) -> bool:
        """Whether this rank said `finished`: the state after its last step is whole on all ranks."""
        return self._phase(rank) == "finished"

    def all_said_finished(self) -> bool:
        """Whether every rank of this pod did."""
        return all(self.said_finished(rank) for rank in range(*self.ranks))

    def _phase(self, rank: int) -> str:
        """`none` where there is no whole page of this attempt."""
        page = shared_memory.Page(
            self.memory / f"{names.PROGRESS_PREFIX}{rank - self.ranks[0]}", shared_memory.Progress
        )
        try:
            page.open(create=False)
        except OSError:
            return "none"
        record = page.read()
        page.close()
        if record is None or record.attempt != self.attempt or not 0 <= record.phase < len(shared_memory.PHASES):
            return "none"
        return shared_memory.PHASES[record.phase]
