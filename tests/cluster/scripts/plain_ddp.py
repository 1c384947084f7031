"""An ordinary torchrun script: DDP over gloo, no checkpoint, no everstep."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(20):
        loss = model(torch.randn(8, 16, generator=generator)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    total = sum(parameter.sum().item() for parameter in model.parameters())
    path = Path(os.environ["RECORD_DIR"]) / f"plain-{dist.get_rank()}"
    path.write_text(f"rank {dist.get_rank()} of {dist.get_world_size()} sum {total:.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
