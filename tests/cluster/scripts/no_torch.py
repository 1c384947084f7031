"""A script without torch: it only shows who it is."""

import os
from pathlib import Path

Path(os.environ["RECORD_DIR"], f"no-torch-{os.environ['RANK']}").write_text(os.environ["WORLD_SIZE"])
