"""Worlds that are not the job's: found out at the first process group, before it hangs or each worker trains by itself.

A process that was about to join one ends with a sentence, which it leaves for the launcher, too.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs, urlparse

from everstep_protocol import codec, local, names

from everstep.launcher.environment import Placement
from everstep.launcher.settings import placement_file, refusal_file

EXIT_CODE = 78  # EX_CONFIG
_ENV_JOINED = "EVERSTEP_JOINED"  # of what a rank starts after it has joined: its worlds are its own business


@dataclass(frozen=True)
class World:
    """What a process is about to join, as `env://` says it."""

    rank: int
    size: int
    master: tuple[str, int]


def guard(rendezvous: ModuleType) -> None:
    """Of torch.distributed.rendezvous: look at every world that the environment describes. Others are named by the script itself."""
    handlers = rendezvous._rendezvous_handlers
    join = handlers["env"]

    @functools.wraps(join)
    def checked(url: str, *args: Any, **kwargs: Any) -> Any:
        check(url, os.environ)
        return join(url, *args, **kwargs)

    handlers["env"] = checked


def check(
    url: str, environment: Mapping[str, str], *, end: Callable[[str, World, Placement], Any] | None = None
) -> None:
    """Ends the process where this world is surely not the job's."""
    if environment.get(names.ENV_OWN_WORLDS) or environment.get(_ENV_JOINED):
        return
    placement, world = read_placement(environment), read_world(url, environment)
    if placement is None or world is None:
        return
    sentence = explain(world, placement)
    if sentence:
        (end or _end)(sentence, world, placement)
    else:
        os.environ[_ENV_JOINED] = "1"


def explain(world: World, placement: Placement) -> str:
    """Why this cannot be the job's world, and what to do, for people; empty: it can.

    A script may make more ranks than Everstep did, where they meet at the job's master: torch's ImageNet example does.
    """
    if placement.group_world == 1 or world.size == placement.world:
        return ""
    meets = world.master == (placement.master_addr, placement.master_port)
    if meets and world.size >= placement.group_world:
        return ""
    return (
        f"this process was about to join a world of {world.size} ({_count(world.size)} by itself in each worker), and the job's world "
        f"has {placement.world} ranks on {placement.group_world} workers: something went round Everstep's torchrun, or set WORLD_SIZE, "
        'RANK or MASTER_ADDR anew. Give command: [torchrun, train.py], or write "$EVERSTEP_TORCHRUN" for torchrun, accelerate launch or '
        f"deepspeed in a shell script; where such worlds are meant, set {names.ENV_OWN_WORLDS}=1"
    )


def _count(size: int) -> str:
    return "a rank" if size == 1 else "ranks"


def read_world(url: str, environment: Mapping[str, str]) -> World | None:
    """As torch's own handler reads it; None where it will raise by itself."""
    query = parse_qs(urlparse(url).query)
    try:
        rank = int(query["rank"][0] if "rank" in query else environment["RANK"])
        size = int(query["world_size"][0] if "world_size" in query else environment["WORLD_SIZE"])
        return World(rank, size, (environment["MASTER_ADDR"], int(environment["MASTER_PORT"])))
    except (KeyError, ValueError):
        return None


def read_placement(environment: Mapping[str, str]) -> Placement | None:
    """What the launcher wrote for the attempt that runs; None where there is no launcher."""
    memory = environment.get(names.ENV_MEMORY)
    try:
        return codec.loads(Placement, placement_file(Path(memory)).read_bytes()) if memory else None
    except (OSError, codec.InvalidDocument):
        return None


def _end(sentence: str, world: World, placement: Placement) -> None:
    rank = min(max(world.rank, placement.ranks[0]), placement.ranks[1] - 1)
    exited = local.ProcessExited(
        placement.attempt, rank, EXIT_CODE, None, False, False, f"everstep: {sentence}\n", refused=True
    )
    try:
        path = refusal_file(Path(os.environ[names.ENV_MEMORY]), placement.attempt)
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        temporary.write_bytes(local.encode(exited))
        temporary.replace(path)
    except OSError:  # a full volume: the sentence is on standard error all the same
        pass
    sys.stdout.flush()
    print(f"everstep: {sentence}", file=sys.stderr, flush=True)
    os._exit(EXIT_CODE)
