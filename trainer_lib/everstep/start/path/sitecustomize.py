"""Python imports this at its start, in every process below the launcher (`everstep.start`); then the image's own, as if this one were not there."""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - any Python may read this, and pathlib is not imported yet


# No annotations: any Python may read this.
def _begin():  # type: ignore[no-untyped-def]
    if sys.version_info < (3, 10) or "EVERSTEP_MEMORY" not in os.environ:
        return
    try:
        from everstep.start import hooks

        hooks.begin()
    except Exception:
        if sys.flags.verbose:
            raise


def _go_on_with_the_next():  # type: ignore[no-untyped-def]
    """What this file stands in front of; errors there are its own."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]  # noqa: PTH100
    this = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if getattr(error, "name", "") != "sitecustomize":
            raise
        if this is not None:
            sys.modules["sitecustomize"] = this


_begin()  # type: ignore[no-untyped-call]
_go_on_with_the_next()  # type: ignore[no-untyped-call]
