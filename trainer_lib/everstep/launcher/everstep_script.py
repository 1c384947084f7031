#!/usr/bin/env python3
"""The script `everstep` in names.MOUNT_BIN: what the operator puts in front of the user's command."""

import os
import sys

if sys.version_info < (3, 10):  # noqa: UP036 - the image chooses the interpreter
    _SENTENCE = "python3 in this image is older than 3.10: use an image with a newer one"
    try:
        with open(os.environ.get("TERMINATION_LOG", "/dev/termination-log"), "w") as file:  # noqa: PTH123
            file.write('{"attempt": 0, "result": "refused", "exitCode": 2, "lastLines": "' + _SENTENCE + '"}')
    except OSError:
        pass
    sys.stderr.write("everstep: " + _SENTENCE + "\n")
    sys.exit(2)

# What the image puts on PYTHONPATH is for the user's code: a `types.py` in it must not come before the standard library's.
_foreign = os.environ.get("PYTHONPATH", "").split(os.pathsep)
sys.path.sort(key=lambda entry: entry in _foreign)
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))  # noqa: PTH100, PTH118, PTH120 - nothing is imported yet

from everstep.launcher.main import main  # noqa: E402 - the path comes first

sys.exit(main(sys.argv[1:]))
