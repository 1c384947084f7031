"""A trainer that writes down what it did: one JSON line a step and rank in $RECORD_DIR. Deterministic at any world size.

Environment: STEPS (200), GLOBAL_BATCH (24), DATASET (960 samples), SEED (0), STEP_SECONDS (0: how long a step takes at least; while
$RECORD_DIR/hurry exists it is ignored, and the number in it is how many steps are to be done), DIES_AT_EXIT (set: after the last step rank
0 leaves `died-at-exit-<attempt>` and kills itself).
"""

import json
import os
import signal
import socket
import time
from pathlib import Path

import everstep
import torch
import torch.distributed as dist
from torch import nn

STEPS = int(os.environ.get("STEPS", "200"))
GLOBAL_BATCH = int(os.environ.get("GLOBAL_BATCH", "24"))
DATASET = int(os.environ.get("DATASET", "960"))
SEED = int(os.environ.get("SEED", "0"))
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0"))


class Numbers:
    """Sample i is a fixed input and its target."""

    def __len__(self) -> int:
        return DATASET

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(SEED * 1_000_003 + index)
        inputs = torch.randn(7, generator=generator)
        return {"id": torch.tensor(index), "inputs": inputs, "target": torch.sin(inputs.sum()).reshape(1)}


def build_model() -> nn.Module:
    """Small, with sizes that no world size divides. Sharded where this torch can train so on the CPU."""
    torch.manual_seed(SEED)
    model = nn.Sequential(nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, 1))
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.fsdp import fully_shard

    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


def read_attempt() -> int:
    """The attempt that the plan names; 0 outside a cluster."""
    plan = os.environ.get("EVERSTEP_PLAN_FILE")
    return json.loads(Path(plan).read_text())["attempt"] if plan else 0


def read_hurry(records: Path) -> int | None:
    """How many steps are to be done, as fast as they can be; None: there is time."""
    try:
        return int((records / "hurry").read_text())
    except FileNotFoundError:
        return None


def die(records: Path, attempt: int) -> None:
    """As a library that crashes in its clean-up."""
    (records / f"died-at-exit-{attempt}").touch()
    os.kill(os.getpid(), signal.SIGSEGV)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world, attempt = dist.get_rank(), dist.get_world_size(), read_attempt()
    records = Path(os.environ["RECORD_DIR"])
    node = os.environ.get("NODE_NAME") or socket.gethostname()
    dataset, model = Numbers(), build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    sampler = everstep.data.ElasticSampler(len(dataset), global_batch=GLOBAL_BATCH, seed=SEED)
    checkpointer = everstep.Checkpointer({"model": model, "optimizer": optimizer, "sampler": sampler}, every=10)
    with (records / f"attempt-{attempt:04d}-rank-{rank}.jsonl").open("a", buffering=1) as file:
        for step in checkpointer.steps(until=STEPS):
            began = time.monotonic()
            samples: list[int] = []
            total = torch.zeros(())
            for batch, weight in sampler.micro_batches(step, dataset):
                loss = (model(batch["inputs"]) - batch["target"]).square().mean()
                (loss * weight).backward()
                total += loss.detach() * weight / world
                samples += batch["id"].tolist() if weight > 0 else []
            optimizer.step()
            optimizer.zero_grad()
            dist.all_reduce(total)
            line = {
                "attempt": attempt,
                "rank": rank,
                "world": world,
                "step": step,
                "samples": samples,
                "loss": total.item(),
            }
            file.write(json.dumps({**line, "node": node, "at": time.time()}) + "\n")
            last = read_hurry(records)
            if last is None:
                time.sleep(max(0.0, began + STEP_SECONDS - time.monotonic()))
            elif step + 1 == last:
                checkpointer.finish_early()
    if "DIES_AT_EXIT" in os.environ:
        dist.barrier()  # all have said that they finished
        if rank == 0:
            die(records, attempt)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
