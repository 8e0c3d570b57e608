#!/usr/bin/env python3
"""Runs the real models through a daemon beside eager PyTorch, and writes the table of docs/models.md.

build/deps/torch-venv/bin/python tests/exported/compare_models.py build/release/server/penstockd
    --size real      ResNet-50, ConvNeXt-tiny, ViT-B/16, Swin-T, BERT-base, GPT-2 ... as people use them: minutes, and 8
    GB --only gpt2      one model
    --write          into docs/models.md
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "models.md"
BEGIN, END = "<!-- table of {size} models: compare_models.py -->", "<!-- end of table -->"
HEAD = (
    "model",
    "parameters",
    "nodes: evaluation, training",
    "operators",
    "layers",
    "cut before",
    "bytes crossing",
    "evaluation",
    "gradients",
    "after 5 AdamW steps",
)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("daemon")
    parser.add_argument("--size", choices=("small", "real"), default="small")
    parser.add_argument("--only", default="")
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if arguments.write and (arguments.size != "small" or arguments.only):
        parser.error("--write is for all of the small models")
    return arguments


def verdict(left, right) -> str:
    """Equal, or how far off at worst: the largest difference, of the largest value of its tensor."""
    import torch
    from torch_models import relative

    different = [name for name in left if not torch.equal(left[name], right[name])]
    if not different:
        return "equal"
    worst = max(relative(left[name], right[name]) for name in different)
    return f"{len(different)} of {len(left)} tensors differ by up to {worst:.1e}"


def row(client, programs, model, stages: int, rows: int) -> list[str]:
    import torch
    import torch_models as tm

    program = programs.brought(model)
    facts = client.models.get(program)
    (probe, _), *steps = tm.batches(model, 6, rows)

    def created(name: str, optimizer: str, options: dict[str, float]):
        return client.create_pipeline(
            name,
            model=program,
            stages=stages,
            cut_cost="size",
            schedule="1f1b",
            micro_batches=2,
            mini_batch_rows=rows,
            optimizer=optimizer,
            optimizer_options=options,
            loss="cross_entropy",
        )

    module = tm.made(model)
    plain = created("plain", "sgd", {"learning_rate": 1.0})
    evaluation = verdict({"": tm.infer(plain, probe)}, {"": tm.evaluate(model, module, probe)})
    tm.train(plain, steps[:1])
    list(tm.eager_steps(model, module, steps[:1], 2, torch.optim.SGD(module.parameters(), lr=1.0)))
    learned = dict(module.named_parameters())
    reached = plain.state_dict()
    gradients = verdict(
        {name: reached[name] for name in learned}, {name: value.data for name, value in learned.items()}
    )
    plan = plain.refresh().plan
    plain.delete(force=True)

    module = tm.made(model)
    pipeline = created("adamw", "adamw", tm.ADAMW)
    tm.train(pipeline, steps)
    list(tm.eager_steps(model, module, steps, 2, tm.adamw(module)))
    after = verdict(pipeline.state_dict(), module.state_dict())
    pipeline.delete(force=True)

    exported = programs.exported[program]
    crossing = [0] * stages
    first = 0
    for index, stage in enumerate(plan.stages):
        first += len(stage.layers)
        crossing[index] = plan.layers[first - 1].output_bytes
    for skip in plan.skips:
        for cut in range(skip.from_stage, skip.to_stage):
            crossing[cut] += skip.bytes
    return [
        model.name,
        f"{facts.parameters:,}",
        ", ".join(str(exported.nodes[mode]) for mode in ("evaluation", "training")),
        str(len(facts.operators)),
        str(len(facts.layers)),
        ", ".join(stage.layers[0] for stage in plan.stages[1:]),
        ", ".join(f"{count:,}" for count in crossing[: stages - 1]),
        evaluation,
        gradients,
        after,
    ]


def write(size: str, table: list[str]) -> None:
    text = PAGE.read_text()
    begin = text.index(BEGIN.format(size=size))
    end = text.index(END, begin)
    PAGE.write_text(text[:begin] + "\n".join([BEGIN.format(size=size), *table, ""]) + text[end:])


def main() -> None:
    arguments = parse()
    os.environ["PENSTOCKD"] = arguments.daemon
    for folder in ("client/python", "tests/integration", "tests/integration/own_models", "tests/exported"):
        sys.path.insert(0, str(ROOT / folder))
    import penstock
    import torch_models as tm
    from daemon_process import Daemon
    from real_models import real_models

    tm.one_thread()
    table = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder) / "models"
        root.mkdir()
        daemon = Daemon(pathlib.Path(folder), f"--model-root={root}", "--allow-model-upload", "--drain-announce=0s")
        daemon.start()
        try:
            with penstock.Client(daemon.address, timeout=600) as client, tm.Programs(client) as programs:
                for model in real_models(arguments.size):
                    if arguments.only not in model.name:
                        continue
                    began = time.monotonic()
                    table.append(
                        "| " + " | ".join(row(client, programs, model, arguments.stages, arguments.rows)) + " |"
                    )
                    print(table[-1], f"({time.monotonic() - began:.0f} s)", flush=True)
            daemon.stop()
        finally:
            daemon.kill()
    if arguments.write:
        write(arguments.size, table)


if __name__ == "__main__":
    main()
