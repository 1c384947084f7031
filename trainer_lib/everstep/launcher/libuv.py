"""Whether the torch of an interpreter has libuv. Run by that interpreter: `python -c <this file's text>`; prints yes, no or unknown.

A torch without it (Debian's) raises in init_process_group unless USE_LIBUV=0. Asked without importing torch, which takes
seconds: the store's class that uses libuv leaves its name in the library. Reading the library now also spares the trainers a cold start.
"""

import importlib.util
import mmap
import pathlib

MARK = b"LibUVStoreDaemon"


def ask() -> str:
    """yes, no, or unknown: no torch here, or not laid out as it always was."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin:
        return "unknown"
    library = pathlib.Path(spec.origin).parent / "lib" / "libtorch_cpu.so"
    try:
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return "yes" if content.find(MARK) >= 0 else "no"
    except (OSError, ValueError):
        return "unknown"


if __name__ == "__main__":
    print(ask())
