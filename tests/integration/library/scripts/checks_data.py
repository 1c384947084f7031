"""The sampler and the gradients that it promises."""

from pathlib import Path
from typing import Any

import everstep
import torch
from models import NEW_TORCH
from ranks import run_ranks
from torch import nn

SAMPLES = torch.randn(101, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def gradients(global_batch: int, micro_batch: int | None, kind: str, steps: int) -> tuple[list[Any], list[int]]:
    """The gradients of some steps, and how many backward passes each took."""
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    if torch.distributed.is_initialized() and kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    elif torch.distributed.is_initialized():
        from torch.distributed.fsdp import fully_shard

        model = fully_shard(model)
    sampler = everstep.data.ElasticSampler(len(SAMPLES), global_batch=global_batch, micro_batch=micro_batch)
    found, passes = [], []
    for step in range(steps):
        passes.append(0)
        for batch, weight in sampler.micro_batches(step, SAMPLES):
            (model(batch).square().mean() * weight).backward()
            passes[-1] += 1
        grads = [p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for p in model.parameters()]
        found.append(torch.cat([grad.flatten() for grad in grads]).clone())
        model.zero_grad()
    return found, passes


def check_gradients_are_the_global_batch_mean_at_any_world(folder: Path) -> None:
    """Also where ranks run out of samples, where batches span epochs, and with fewer samples than ranks."""
    kinds = ["ddp", "fsdp2"] if NEW_TORCH else ["ddp"]
    cases = ((16, None), (16, 3), (10, 2), (3, None))
    (expected,) = run_ranks(1, lambda: [gradients(batch, None, "ddp", 8)[0] for batch, _ in cases])
    for world in (1, 2, 3, 4):
        for kind in kinds:
            by_rank = run_ranks(world, lambda kind=kind: [gradients(*case, kind, 8) for case in cases])
            for ranks in zip(*by_rank, strict=True):
                assert len({tuple(passes) for _, passes in ranks}) == 1, "ranks differ in backward passes"
            for case, (found, _) in enumerate(by_rank[-1]):
                for step, grad in enumerate(found):
                    torch.testing.assert_close(grad, expected[case][step], rtol=1e-12, atol=1e-12)


def check_the_reference_gradient_is_the_plain_mean(folder: Path) -> None:
    def by_hand() -> tuple[Any, Any]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)).double()
        sampler = everstep.data.ElasticSampler(len(SAMPLES), global_batch=16)
        ((indices, _),) = sampler.micro_batch_indices(0)
        model(SAMPLES[indices]).square().mean().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters()]), gradients(16, 5, "ddp", 1)[0][0]

    ((plain, ours),) = run_ranks(1, by_hand)
    torch.testing.assert_close(plain, ours, rtol=1e-12, atol=1e-12)
