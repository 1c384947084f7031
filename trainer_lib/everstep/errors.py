"""What can go wrong in a training script because of us, in sentences for its author."""

from __future__ import annotations


class EverstepError(RuntimeError):
    """Says what is wrong, where, and what to do."""


class StateError(EverstepError):
    """Something given to the Checkpointer cannot be saved or restored."""


class LoadError(EverstepError):
    """A checkpoint could not be loaded. Tensors may be torn: the process must not train on."""


class SaveError(EverstepError):
    """A save failed. Within training it is counted and logged; only at the end does it reach the script."""
