"""What the survivors keep after a rank was lost again and again: memory and descriptors of the leader and of a third rank, and how long a
pipeline takes to be there again.

    build/deps/test-venv/bin/python tests/bench/rank_survivors.py --daemon build/release/server/penstockd

Three ranks hold a pipeline of the model `mlp`. The last one is killed and started again, so many times; in between a client trains. *Back*
is from the start of the process to the end of the next step. Growth counts from the fifth loss: by then there is what later ones need.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import tempfile
import time

import numpy as np

from spreads import spread

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/integration"), str(ROOT / "client/python")]

FIRST = 5
STEPS = 4
PATIENCE = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--daemon", required=True)
    parser.add_argument("--transport", choices=("ucx", "grpc"), default="ucx")
    parser.add_argument("--losses", type=int, default=50)
    options = parser.parse_args()
    if options.losses <= FIRST:
        parser.error(f"--losses: must be more than {FIRST}")
    os.environ["PENSTOCKD"] = options.daemon
    from rank_group import Group

    rows = np.random.default_rng(1).standard_normal((32, 64)).astype(np.float32)
    with tempfile.TemporaryDirectory() as name:
        group = Group(pathlib.Path(name), 3, options.transport)
        with group.running(), group.client() as client:
            pipeline = client.create_pipeline(
                "mlp",
                model="mlp",
                options={"layers": 6, "width": 64},
                devices=["cpu:0", "1/cpu:0", "2/cpu:0"],
                schedule="1f1b",
                micro_batches=4,
                optimizer="adamw",
                loss="mean_squared_error",
            )
            survivors, lost = group.ranks[:2], group.ranks[2]
            kept: list[list[tuple[float, int]]] = [[] for _ in survivors]
            back: list[float] = []
            for _ in range(options.losses):
                lost.kill()
                begun = time.perf_counter()
                lost.start()
                pipeline.train_step(rows, rows, timeout=PATIENCE)
                back.append(time.perf_counter() - begun)
                for _ in range(STEPS):
                    pipeline.train_step(rows, rows)
                for rank, values in zip(survivors, kept):
                    values.append((rank.resident_bytes() / (1 << 20), len(os.listdir(f"/proc/{rank.pid}/fd"))))
    print(f"three ranks over {options.transport}, the last one lost {options.losses} times")
    print(f"back after {spread(back, 2)} s; median (least to most)")
    for number, values in enumerate(kept):
        (first_mib, first_open), (last_mib, last_open) = values[FIRST - 1], values[-1]
        most = max(mib for mib, _ in values)
        memory = f"{first_mib:.0f} after {FIRST} losses, {last_mib:.0f} after {options.losses}, at most {most:.0f}"
        print(f"rank {number}: MiB resident {memory}; descriptors {first_open}, then {last_open}")


if __name__ == "__main__":
    main()
