"""What is done at the start of a process, and what after which import. A new hook is a line here."""

from __future__ import annotations

from everstep.start import after_import, hand_over

# Module -> where its hook is: `module:function`, imported when that module was. A hook gets the module.
AFTER_IMPORT = {"torch.distributed.rendezvous": "everstep.start.worlds:guard"}


def begin() -> None:
    """Everything. Returns, unless this process is a torchrun: then Everstep's takes its place."""
    hand_over.hand_over_torchrun()
    after_import.install(AFTER_IMPORT)
