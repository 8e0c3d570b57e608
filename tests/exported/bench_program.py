#!/usr/bin/env python3
"""Times exported programs against eager PyTorch on the same operators: forward and backward in training mode, one thread.

Run by hand with torch 2.11, torchvision and transformers, on a machine that is otherwise idle:

    bench_program.py path/to/time_program [--rounds 15] [--seconds 1] [--only resnet50] [--keep FOLDER]

Both stand ready on one core. In each round each of the two runs the same number of passes, and they take turns in who is
first; a ratio is taken within a round. Both clear their gradients and move the statistics of batch norm in every pass, both
take large activations from the heap.
"""

import argparse
import ctypes
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import torch
from torch._export.serde.serialize import serialize
from torch.export import Dim, export, save

import compare_with_eager

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of mallopt(3)


def models(batch):
    """Name, model, inputs, dynamic shapes. No dropout: what is drawn is drawn otherwise, and its cost is not the graph's."""
    import torchvision.models as vision
    import transformers

    images, rows = torch.randn(8, 3, 64, 64), ({0: batch},)
    yield "resnet50 64x64, batch 8", vision.resnet50(), (images,), rows
    yield "vit_b_16 64x64, batch 8", vision.vit_b_16(image_size=64), (images,), rows
    still = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0, "bos_token_id": 1, "eos_token_id": 1}
    for name, config, shape in (
        ("gpt2 (12 x 768), 2 x 64 tokens", {}, (2, 64)),
        ("gpt2 (3 x 32), 2 x 12 tokens", {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 99}, (2, 12)),
    ):
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**still, **config))
        wrapped = compare_with_eager.Wrapped(model, ["input_ids"], use_cache=False)
        yield name, wrapped, (torch.randint(0, 90, shape),), (rows,)  # for *inputs


def export_both(model, inputs, shapes, path):
    graphs = {}
    for training in (False, True):
        model.train(training)
        graphs[training] = export(model, inputs, strict=False, dynamic_shapes=shapes)
    extra = {"penstock_training.json": serialize(graphs[True]).exported_program.decode()}
    save(graphs[False], path, extra_files=extra)
    return sum(1 for node in graphs[True].graph.nodes if node.op == "call_function")


def eager_seconds(model, inputs, passes):
    begin = time.perf_counter()
    for _ in range(passes):
        model.zero_grad(set_to_none=True)
        compare_with_eager.tensors_of(model(*inputs))[0].square().mean().backward()
    return time.perf_counter() - begin


def compare(name, model, inputs, shapes, arguments):
    with tempfile.TemporaryDirectory() as folder:
        program, given = f"{folder}/model.pt2", f"{folder}/inputs"
        nodes = export_both(model, inputs, shapes, program)
        if arguments.keep:
            pathlib.Path(arguments.keep).mkdir(parents=True, exist_ok=True)
            shutil.copy(program, pathlib.Path(arguments.keep) / (name.split()[0].rstrip(",") + ".pt2"))
        compare_with_eager.make_programs.write_safetensors(
            pathlib.Path(given), {f"input.{i}": value for i, value in enumerate(inputs)}
        )
        command = [arguments.tool, program, given, arguments.cuts]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as tool:

            def ours(passes):
                tool.stdin.write(f"{passes}\n")
                tool.stdin.flush()
                return float(tool.stdout.readline())

            def theirs(passes):
                return eager_seconds(model, inputs, passes)

            model.train()
            for run in (ours, theirs):  # warm
                run(2)
            passes = max(1, round(arguments.seconds / theirs(1)))
            times = {ours: [], theirs: []}
            for i in range(arguments.rounds):
                for run in (ours, theirs) if i % 2 == 0 else (theirs, ours):
                    times[run].append(run(passes) / passes * 1e3)
            tool.stdin.close()
    ratios = sorted(b / a for a, b in zip(times[ours], times[theirs]))
    median = {run: statistics.median(values) for run, values in times.items()}
    print(
        f"| {name} | {nodes} | {median[ours]:.2f} | {median[theirs]:.2f} | "
        f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}) |",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=1, help="that each of the two runs in a round")
    parser.add_argument("--only", default="")
    parser.add_argument("--cuts", default="modules", choices=("modules", "nodes"))
    parser.add_argument("--keep", default="", help="a folder for the programs, for schedule_bench real --program")
    parser.add_argument("--core", type=int, default=min(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {arguments.core})  # and that of the program that it starts
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, 32 << 20)
    libc.mallopt(M_TRIM_THRESHOLD, 1 << 30)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"{arguments.rounds} rounds, cut at {arguments.cuts}, torch {torch.__version__}")
    print("| model | operators | Penstock, ms | eager, ms | times as fast as eager |\n|---|---|---|---|---|")
    for case in models(Dim("batch", min=1, max=4096)):
        if arguments.only in case[0]:
            compare(*case, arguments)


if __name__ == "__main__":
    sys.exit(main())
