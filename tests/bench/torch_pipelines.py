"""One of the two processes of another pipeline that Penstock is compared with: `torch.distributed.pipelining`, or fairscale's AsyncPipe.
rank_peers.py starts both.

Each line of standard input is a number of steps to make. The answer is a line of JSON: when they began and ended, on the clock that all
processes share, and the loss of each, where this rank has it. A step clears, runs forward, loss and backward, and steps with plain SGD.
"""

import argparse
import collections
import json
import os
import sys
import time

SCHEDULES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "looped-bfs": "ScheduleLoopedBFS",
    "interleaved-1f1b": "ScheduleInterleaved1F1B",
    "interleaved-zb": "ScheduleInterleavedZeroBubble",
    "zbv": "ScheduleZBVZeroBubble",
    "dualpipe-v": "ScheduleDualPipeV",
}
V_SHAPED = ("zbv", "dualpipe-v")
HEADS = 4


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--core", type=int, required=True)
    parser.add_argument("--meet", required=True, help="a path where both processes meet, new for each pair")
    parser.add_argument("--data", required=True, help="an .npz: weights by name, then tokens and targets")
    parser.add_argument("--balance", required=True, help="layers of each stage: 5,5")
    parser.add_argument("--schedule", choices=[*SCHEDULES, "async-pipe"], required=True)
    parser.add_argument("--micro-batches", type=int, required=True)
    parser.add_argument("--checkpoint", choices=("never", "always"), required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    return parser.parse_args()


options = read_options()
os.sched_setaffinity(0, {options.core})  # before any thread starts
os.environ.update(GLOO_SOCKET_IFNAME="lo", TP_SOCKET_IFNAME="lo")
answers = os.fdopen(os.dup(1), "w")  # what libraries print is none
os.dup2(2, 1)

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Embedding(nn.Module):
    def __init__(self, vocabulary, width, sequence):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(sequence, width)

    def forward(self, tokens):
        return self.token(tokens) + self.position.weight[: tokens.size(1)]


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)

    def forward(self, x):
        rows, length, width = x.shape
        parts = self.query_key_value(self.norm(x)).view(rows, length, 3, HEADS, width // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.projection(mixed.transpose(1, 2).reshape(rows, length, width))


class FeedForward(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, x):
        return self.contract(F.gelu(self.expand(self.norm(x))))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention = Attention(width)
        self.feed_forward = FeedForward(width)

    def forward(self, x):
        x = x + self.attention(x)
        return x + self.feed_forward(x)


class Head(nn.Module):
    def __init__(self, width, vocabulary):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.weight = nn.Parameter(torch.empty(vocabulary, width))

    def forward(self, x):
        return F.linear(self.norm(x), self.weight)


class Checkpointed(nn.Module):
    """A stage that keeps its input alone, and runs again for its backward: these schedules have no mode for it."""

    def __init__(self, stage):
        super().__init__()
        self.stage = stage

    def forward(self, x):
        from torch.utils.checkpoint import checkpoint

        return checkpoint(self.stage, x, use_reentrant=False)


def model_of(weights):
    """The daemon's model `gpt`, its weights under the same names."""
    vocabulary, width = weights["embedding.token.weight"].shape
    layers = collections.OrderedDict(embedding=Embedding(vocabulary, width, len(weights["embedding.position.weight"])))
    for block in range(sum(name.endswith("expand.weight") for name in weights)):
        layers[f"block{block}"] = Block(width)
    layers["head"] = Head(width, vocabulary)
    model = nn.Sequential(layers)
    model.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in weights.items()})
    return model


def cross_entropy(output, target):
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


def pipelining(model, balance, tokens, targets):
    """The stages of this rank, and what makes one forward and backward and gives the loss, if this rank has it."""
    from torch.distributed.pipelining import PipelineStage, schedules, stage

    if options.schedule in V_SHAPED:  # torch 2.11 sends to itself there, which gloo refuses
        stage._PipelineStageBase._get_init_p2p_neighbors_ops = lambda self: []
    count = len(balance)
    if count == 2:
        places = [options.rank]
    else:
        places = [options.rank, 3 - options.rank if options.schedule in V_SHAPED else 2 + options.rank]
    begins = [sum(balance[:place]) for place in range(count)]
    modules = {place: model[begins[place] : begins[place] + balance[place]] for place in places}
    always = options.checkpoint == "always"
    stages = [
        PipelineStage(Checkpointed(module) if always else module, place, count, torch.device("cpu"))
        for place, module in modules.items()
    ]
    kind = getattr(schedules, SCHEDULES[options.schedule])
    schedule = kind(stages if count > 2 else stages[0], options.micro_batches, loss_fn=cross_entropy)

    def run():
        losses = []
        last = {"target": targets, "losses": losses} if count - 1 in places else {}
        schedule.step(*([tokens] if 0 in places else []), **last)
        return sum(loss.item() for loss in losses) / len(losses) if losses else None

    return nn.ModuleList(modules.values()), run


def async_pipe(model, balance, tokens, targets):
    import warnings

    warnings.filterwarnings("ignore")
    from fairscale.nn.model_parallel import initialize_model_parallel
    from fairscale.nn.pipe import AsyncPipe
    from torch.distributed import rpc

    # Without the transport over shared memory, which polls on the core that computes.
    over = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{options.meet}-rpc", rpc_timeout=600, _transports=["uv"])
    rpc.init_rpc(f"rank{options.rank}", rank=options.rank, world_size=2, rpc_backend_options=over)
    initialize_model_parallel(1, 2)
    pipe = AsyncPipe(
        model, balance=balance, worker_map={0: "rank0", 1: "rank1"}, chunks=options.micro_batches,
        checkpoint=options.checkpoint, input_device=torch.device("cpu"),
    )  # fmt: skip

    def run():
        output = pipe(tokens)
        if not pipe.final_stage:
            return None
        loss = cross_entropy(output, targets)
        loss.backward()
        return loss.item()

    return pipe, run


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{options.meet}", rank=options.rank, world_size=2)
    arrays = dict(np.load(options.data))
    tokens, targets = (torch.from_numpy(arrays.pop(name)) for name in ("tokens", "targets"))
    balance = [int(layers) for layers in options.balance.split(",")]
    make = async_pipe if options.schedule == "async-pipe" else pipelining
    module, run = make(model_of(arrays), balance, tokens, targets)
    optimizer = torch.optim.SGD(module.parameters(), lr=options.learning_rate)
    print(json.dumps({"ready": torch.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        losses = []
        begun = time.monotonic()
        for _ in range(int(line)):
            optimizer.zero_grad()
            losses.append(run())
            optimizer.step()
        print(json.dumps({"begun": begun, "ended": time.monotonic(), "losses": losses}), file=answers, flush=True)
    os._exit(0)  # neither library ends well where the other process may be gone


if __name__ == "__main__":
    main()
