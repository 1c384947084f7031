"""R19 on one member: proposed, confirmed and withdrawn stop steps, through the trainers' Control page."""

from __future__ import annotations

from everstep_protocol.messages import StopAnswer, StopOrder
from everstep_protocol.shared_memory import Control

from everstep_sidecar.progress import TrainerPages

NONE = -1


class StopDesk:
    """One attempt's orders. `had_no_library`: it was asked to stop although its trainers report nothing."""

    def __init__(self, pages: TrainerPages, attempt: int, processes: int) -> None:
        self._pages = pages
        self._attempt = attempt
        self._processes = processes
        self._agreed = NONE
        self.had_no_library = False

    def reset(self) -> None:
        """Before the trainers start: no step is agreed."""
        self._write(NONE, 0)

    def hear(self, order: StopOrder) -> StopAnswer:
        """Obey one order. Repeating it is fine."""
        if order.order == "confirm":
            self._write(order.step, 1)
            return StopAnswer("agreed", order.step)
        if order.order == "withdraw":
            self._agreed = NONE
            self._write(NONE, 0)
            return StopAnswer("agreed", order.step)
        return self._propose(order.step)

    def _propose(self, step: int) -> StopAnswer:
        """R19: the Control page is written before progress is read, so a rank that did not see it is seen here."""
        if self._agreed == step:  # its ranks may wait at that step by now
            return StopAnswer("agreed", step)
        self._write(step, 0)
        pages = self._pages.progress(self._attempt, self._processes)
        if not pages:
            self.had_no_library = True
            self._write(NONE, 0)
            return StopAnswer("no-library", NONE)
        newest = max(page.step for page in pages)
        if newest >= step:
            return StopAnswer("past", newest)
        self._agreed = step
        return StopAnswer("agreed", newest)

    def _write(self, step: int, confirmed: int) -> None:
        self._pages.write_control(Control(self._attempt, step, confirmed))
