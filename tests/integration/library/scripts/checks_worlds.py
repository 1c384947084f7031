"""Below a launcher, with the real torch: its torchrun hands over to Everstep's, its process groups are only the job's."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import everstep
from everstep.launcher.environment import START_PATH, Placement
from everstep.launcher.settings import placement_file, refusal_file
from everstep_protocol import codec, local, names

LIBRARY = Path(everstep.__file__).parents[1]
JOIN = "import torch.distributed as d; d.init_process_group('gloo'); print(d.get_world_size(), flush=True); d.barrier()"


def start(command: Sequence[str], memory: Path, **variables: str) -> subprocess.Popen[str]:
    path = f"{LIBRARY / START_PATH}:{LIBRARY}"
    environment = {**os.environ, "PYTHONPATH": path, names.ENV_MEMORY: str(memory), "USE_LIBUV": "0", **variables}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def start_rank(memory: Path, rank: int, world: int, port: int) -> subprocess.Popen[str]:
    variables = {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return start([sys.executable, "-c", JOIN], memory, **variables)


def place(memory: Path, rank: int, port: int) -> Path:
    """The memory volume of a worker of one rank, of two."""
    file = placement_file(memory)
    file.parent.mkdir(parents=True)
    file.write_text(codec.dumps(Placement(3, (rank, rank + 1), 2, rank, 2, "127.0.0.1", port, "job")))
    return memory


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def check_torchs_own_torchrun_hands_over_however_it_is_called(folder: Path) -> None:
    ours = folder / "ours"
    ours.write_text('#!/bin/sh\necho "$EVERSTEP_HANDED_OVER" "$@"\n')
    ours.chmod(0o755)
    torchrun = shutil.which("torchrun")
    assert torchrun is not None
    for way in ([torchrun], [sys.executable, "-u", "-m", "torch.distributed.run"]):
        ran = start([*way, "--nnodes=2", "train.py"], folder, **{names.ENV_TORCHRUN: str(ours)})
        told, errors = ran.communicate()
        one, interpreter, *words = told.split()
        assert (one, words[-2:], errors) == ("1", ["--nnodes=2", "train.py"], ""), told
        assert Path(interpreter).samefile(sys.executable)


def check_only_the_jobs_world_is_joined(folder: Path) -> None:
    port = free_port()
    memories = [place(folder / str(rank), rank, port) for rank in range(2)]
    ranks = [start_rank(memory, rank, 2, port) for rank, memory in enumerate(memories)]
    alone = start_rank(memories[1], 0, 1, free_port())
    told, errors = alone.communicate()
    assert (alone.returncode, told) == (78, ""), errors
    assert "was about to join a world of 1 " in errors
    refusal = local.decode(refusal_file(memories[1], 3).read_bytes())
    assert isinstance(refusal, local.ProcessExited)
    assert (refusal.refused, refusal.rank, refusal.attempt) == (True, 1, 3)
    for rank in ranks:
        told, errors = rank.communicate()
        assert (rank.returncode, told) == (0, "2\n"), errors
