"""Runs benchmarks and keeps what they print in docs/results/NAME.txt, below where, when and on what they ran.

    build/deps/test-venv/bin/python tests/bench/record.py [NAME ...]

Without names: all of them, an hour. Run it on an idle machine: what another program takes shows as spread.
"""

from __future__ import annotations

import argparse
import datetime
import os
import pathlib
import platform
import shlex
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs/results"

# Each name with its command, as one would type it in the project's root.
BENCH = "build/release/tests/bench"
PYTHON = "build/deps/test-venv/bin/python"
TORCH = "build/deps/torch-venv/bin/python"  # the environment that has PyTorch
DAEMON = "--daemon build/release/server/penstockd"
RUNS = {
    "step_gpt": f"{BENCH}/pipeline_bench speed --workload gpt --rounds 9",
    "step_mlp": f"{BENCH}/pipeline_bench speed --workload mlp --rounds 9",
    "step_resnet": f"{BENCH}/pipeline_bench speed --workload resnet --m 2,4,8 --rounds 7",
    "step_unet": f"{BENCH}/pipeline_bench speed --workload unet --m 2,4,8 --rounds 7",
    "step_amoebanet": f"{BENCH}/pipeline_bench speed --workload amoebanet --m 2,4,8 --rounds 7",
    "mechanisms": f"{BENCH}/pipeline_bench ablation",
    "memory_gpt": f"{BENCH}/pipeline_bench memory",
    "memory_resnet": f"{BENCH}/pipeline_bench memory --workload resnet",
    "memory_unet": f"{BENCH}/pipeline_bench memory --workload unet",
    "undo": f"{BENCH}/pipeline_bench undo",
    "engine_time": f"{BENCH}/pipeline_bench overhead --rounds 101",
    "rpc": f"{BENCH}/rpc_bench build/release/server/penstockd",
    "filling_delay4": f"{BENCH}/fill_bench --workload delay4 --rounds 3",
    "filling_delay8": f"{BENCH}/fill_bench --workload delay8 --rounds 3",
    "filling_gpt": f"{BENCH}/fill_bench --workload gpt --m 8 --rows 1 --steps 4 --rounds 5 --in-flight 12",
    "scrape": f"{BENCH}/metrics_bench 301",
    "observing_delay4": f"{BENCH}/observation_bench --workload delay4 --rounds 7 --seconds 2",
    "observing_gpt": f"{BENCH}/observation_bench --workload gpt --rounds 5 --seconds 3",
    "schedules_delay": f"{BENCH}/schedule_bench delay --rounds 3",
    "schedules_gpt": f"{BENCH}/schedule_bench real --workload gpt --m 8 --rounds 3",
    "schedules_unet": f"{BENCH}/schedule_bench real --workload unet --m 4 --rounds 5",
    "plans_uneven": f"{BENCH}/schedule_bench plans --workload uneven --rounds 3",
    "plans_gpt": f"{BENCH}/schedule_bench plans --workload gpt --rounds 3",
    "plans_delay": f"{BENCH}/schedule_bench plans --workload delay --rounds 3",
    "planning_time": f"{BENCH}/plan_bench",
    "journal": f"{PYTHON} tests/bench/journal_cost.py {DAEMON}",
    "saves": f"{PYTHON} tests/bench/save_cost.py {DAEMON}",
    "replay": f"{PYTHON} tests/bench/largest_replay.py {DAEMON}",
    "identity": f"{PYTHON} tests/bench/identity_cost.py {DAEMON}",
    "rank_cost": f"{PYTHON} tests/bench/rank_cost.py {DAEMON}",
    "rank_peers": f"{PYTHON} tests/bench/rank_peers.py {DAEMON}",
    "rank_schedules": f"{PYTHON} tests/bench/rank_schedules.py {DAEMON} --penstock build/release/client/cli/penstock",
    "rank_schedules_20ms": f"{PYTHON} tests/bench/rank_schedules.py {DAEMON} --penstock build/release/client/cli/penstock"
    " --milliseconds 20 --micro-batches 8 --rounds 5",
    "triton": f"{PYTHON} tests/bench/triton_peer.py {DAEMON} --triton build/triton --rounds 3",
    "batching": f"{PYTHON} tests/bench/batching.py {DAEMON}",
    "stages": f"{PYTHON} tests/bench/stages.py {DAEMON}",
    "training_beside": f"{PYTHON} tests/bench/training_beside.py {DAEMON}",
    "training_beside_gpt": f"{PYTHON} tests/bench/training_beside.py {DAEMON} --model gpt",
    "work_stream": f"{PYTHON} tests/bench/work_stream.py {DAEMON}",
    "replan": f"{PYTHON} tests/bench/replan.py {DAEMON}",
    "sequences": f"{TORCH} tests/bench/sequences.py {DAEMON}",
    "ready": f"{TORCH} tests/bench/ready.py {DAEMON}",
    "rank_carriers": f"{PYTHON} tests/bench/carrier_cost.py --bench {BENCH}/carrier_bench",
    "rank_survivors": f"{PYTHON} tests/bench/rank_survivors.py {DAEMON}",
    "python_client": f"{PYTHON} tests/bench/python_client.py {DAEMON} --rounds 3",
}


def processor() -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def output_of(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def commit() -> str:
    """With "-dirty" where anything differs from it but the results that this run has written."""
    changed = output_of("git", "status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs/results")
    return output_of("git", "rev-parse", "--short=8", "HEAD") + ("-dirty" if changed else "")


def record(name: str) -> bool:
    command = RUNS[name]
    load = os.getloadavg()[0]
    begun = time.monotonic()
    run = subprocess.run(shlex.split(command), cwd=ROOT, capture_output=True, text=True)
    seconds = time.monotonic() - begun
    if run.returncode != 0:
        print(f"{name}: {command} ended with {run.returncode}:\n{run.stdout}{run.stderr}", file=sys.stderr)
        return False
    head = {
        "command": command,
        "commit": commit(),
        "date": datetime.date.today().isoformat(),
        "machine": f"{os.cpu_count()} cores, {processor()}, Linux {platform.release().split('-')[0]}",
        "load before": f"{load:.2f}",
        "took": f"{seconds:.0f} s",
    }
    lines = [f"{key:<12} {value}" for key, value in head.items()]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.txt").write_text("\n".join([*lines, "", run.stdout.rstrip(), ""]))
    print(f"{name}: {seconds:.0f} s")
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(RUNS)}")
    names = parser.parse_args().names or list(RUNS)
    unknown = [name for name in names if name not in RUNS]
    if unknown:
        parser.error(f"no benchmark {unknown[0]}; there are {', '.join(RUNS)}")
    return 0 if all([record(name) for name in names]) else 1


if __name__ == "__main__":
    sys.exit(main())
