"""PyTorch's own training of the model that gpu_bench trains: a plain loop on one GPU, and torch.distributed.pipelining on two.

Usage: torch_peers.py [--device cuda] [--blocks 24] [--width 1024] [--rows 32] ...      --device cpu tries it where there is no GPU
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import torch
import torch.multiprocessing as processes
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        parts = self.query_key_value(self.first(x)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.contract(F.gelu(self.expand(self.second(x))))


class Embedding(nn.Module):
    def __init__(self, vocabulary: int, width: int, sequence: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(sequence, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.token(tokens) + self.position.weight[: tokens.size(1)]


class Head(nn.Module):
    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(x))


def layers_of(options: argparse.Namespace) -> list[nn.Module]:
    torch.manual_seed(7)
    blocks = [Block(options.width, options.heads) for _ in range(options.blocks)]
    return [Embedding(options.vocab, options.width, options.sequence), *blocks, Head(options.width, options.vocab)]


def cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output.flatten(0, 1).float(), target.flatten())


def batch_of(options: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor]:
    text = torch.randint(options.vocab, (options.rows, options.sequence + 1), generator=torch.Generator().manual_seed(1))
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def measured(of: str, options: argparse.Namespace, step: Callable[[], object]) -> str:
    """Answers a line for people, and prints one for the runner, which collects them, unless `of` is empty."""
    took = []
    for round in range(-2, options.rounds):
        begin = time.perf_counter()
        step()
        if options.device == "cuda":
            torch.cuda.synchronize()
        if round >= 0:
            took.append(1e3 * (time.perf_counter() - begin))
    seconds = [one / 1e3 for one in took]
    figures = {"of": of, "median": statistics.median(seconds), "least": min(seconds), "most": max(seconds)}
    if of:
        print("figures " + json.dumps(figures), flush=True)
    return f"{statistics.median(took):.2f} ms ({min(took):.2f} .. {max(took):.2f})"


def trainer(options: argparse.Namespace, module: nn.Module, backward: Callable[[], object]) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(options.device, torch.bfloat16):
            backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)  # of a stage alone, where there are two: less than gpu_bench does
        optimizer.step()

    return step


def plain(options: argparse.Namespace) -> None:
    module = nn.Sequential(*layers_of(options)).to(options.device)
    tokens, targets = (one.pin_memory() if options.device == "cuda" else one for one in batch_of(options))

    def backward() -> float:
        losses = []
        for token, target in zip(tokens.chunk(options.m), targets.chunk(options.m), strict=True):
            output = module(token.to(options.device, non_blocking=True))
            losses.append(cross_entropy(output, target.to(options.device, non_blocking=True)) / options.m)
            losses[-1].backward()
        return float(torch.stack([loss.detach() for loss in losses]).sum())

    def infer() -> torch.Tensor:
        with torch.no_grad(), torch.autocast(options.device, torch.bfloat16):
            return module(tokens[:1].to(options.device, non_blocking=True)).cpu()

    count = sum(parameter.numel() for parameter in module.parameters())
    step = measured("plain PyTorch: step", options, trainer(options, module, backward))
    print(f"{count} parameters; plain PyTorch on one device: step {step}", flush=True)
    print(f"inference of one row {measured('plain PyTorch: inference', options, infer)}", flush=True)


def stage_of_two(rank: int, options: argparse.Namespace, meet: str) -> None:
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    device = torch.device(options.device, rank) if options.device == "cuda" else torch.device("cpu")
    if options.device == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if options.device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{meet}", rank=rank, world_size=2)
    layers = layers_of(options)
    half = (len(layers) + 1) // 2
    module = nn.Sequential(*(layers[half:] if rank else layers[:half])).to(device)
    schedule = Schedule1F1B(PipelineStage(module, rank, 2, device), options.m, loss_fn=cross_entropy)
    tokens, targets = (one.to(device) for one in batch_of(options))

    def backward() -> None:
        if rank == 0:
            schedule.step(tokens)
        else:
            losses: list[torch.Tensor] = []
            schedule.step(target=targets, losses=losses)
            float(torch.stack(losses).detach().mean())

    told = measured("torch.distributed.pipelining: step" if rank == 1 else "", options, trainer(options, module, backward))
    if rank == 1:
        print(f"torch.distributed.pipelining, 1F1B on two devices: step {told}", flush=True)
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    sizes = {"blocks": 24, "width": 1024, "heads": 16, "sequence": 1024, "vocab": 24576, "rows": 32, "m": 4, "rounds": 7}
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    gpus = torch.cuda.device_count() if options.device == "cuda" else 2
    if gpus == 0:
        print("no GPU: PyTorch finds none")
        return 0
    plain(options)
    if gpus < 2:
        print("torch.distributed.pipelining is left out: two GPUs are needed, and there is 1")
        return 0
    if options.device == "cuda":
        torch.cuda.empty_cache()
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(stage_of_two, (options, str(pathlib.Path(folder) / "meet")), nprocs=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
