"""A script without torch that takes more than its pod may: of its cache's disk, or of memory; then it waits for the end."""

import os
import time
from pathlib import Path

if os.environ["TAKES"] == "disk":
    Path("/cache/full").write_bytes(b"x" * (32 << 20))
else:
    hoard = bytearray(os.urandom(1 << 20)) * 1024
time.sleep(3600)
