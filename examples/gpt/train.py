"""A small GPT learns to write Python from the standard library's own sources. Runs as

    python train.py                             on a laptop
    torchrun --nproc-per-node=4 train.py        on several cores or GPUs
    kubectl apply -f trainingjob.yaml           on a cluster that loses nodes

and each of them resumes where the run before it ended. The three lines that make it so are marked.
"""

import argparse
import os
import sysconfig
from pathlib import Path

import everstep
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

CONTEXT = 64  # bytes that the model sees
WIDTH = 96
HEADS = 4
LAYERS = 3


class Text:
    """The standard library's sources as bytes; sample i is a stretch of CONTEXT + 1 of them."""

    def __init__(self, limit: int = 4_000_000) -> None:
        folder = Path(sysconfig.get_paths()["stdlib"])
        sources = [path.read_bytes() for path in sorted(folder.glob("*.py"))]
        self.data = torch.frombuffer(bytearray(b"\n".join(sources)[:limit]), dtype=torch.uint8)

    def __len__(self) -> int:
        return (len(self.data) - 1) // CONTEXT

    def __getitem__(self, index: int) -> Tensor:
        return self.data[index * CONTEXT : (index + 1) * CONTEXT + 1].long()


class Block(nn.Module):
    """Attention over what came before, then a two-layer perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Bytes in, for each place of each sample (in one row of them) the logits of the next byte out."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)

    def forward(self, text: Tensor) -> Tensor:
        x = self.bytes(text) + self.places.weight[: text.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).flatten(0, 1))


def distribute(model: GPT, device: torch.device) -> nn.Module:
    """Shard the model over all ranks (FSDP2); replicate it (DDP) where this torch cannot train sharded on the CPU."""
    model = model.to(device)
    if not dist.is_initialized():
        return model
    if device.type == "cpu" and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--global-batch", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    device = (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if torch.cuda.is_available()
        else torch.device("cpu")
    )
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)

    torch.manual_seed(options.seed)
    dataset = Text()
    model = distribute(GPT(), device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    sampler = everstep.data.ElasticSampler(len(dataset), global_batch=options.global_batch, seed=options.seed)  # 1
    checkpointer = everstep.Checkpointer({"model": model, "optimizer": optimizer, "sampler": sampler})  # 2
    for step in checkpointer.steps(until=options.steps):  # 3
        mean_loss = torch.zeros((), device=device)
        for text, weight in sampler.micro_batches(step, dataset):
            known, wanted = text[:, :-1].to(device), text[:, 1:].to(device)
            loss = F.cross_entropy(model(known), wanted.flatten())
            (loss * weight).backward()  # weights make the gradient the global batch's mean, whatever the world size
            mean_loss += loss.detach() * weight / world
        optimizer.step()
        optimizer.zero_grad()
        if world > 1:
            dist.all_reduce(mean_loss)
        if rank == 0:
            print(f"step {step} loss {mean_loss.item():.4f} world {world}", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
