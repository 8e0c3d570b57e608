"""Runs the checks of a bundle one after the other, each with a limit of time, and reports. Called by tests/gpu/run.sh."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

KEPT = 4 << 20  # bytes of a log
LARGE = ["--autocast", "bf16", "--rows", "32", "--sequence", "1024", "--m", "4"]


@dataclasses.dataclass
class Check:
    name: str
    command: list[str]
    seconds: int  # at most
    needs: str = ""  # a program that the machine may lack
    libraries: bool = True  # it is one of ours, and finds its libraries by the environment


def checks(bundle: pathlib.Path) -> list[Check]:
    tests, bench = str(bundle / "bin/gpu_tests"), str(bundle / "bin/gpu_bench")
    # Not all: under the sanitizer it takes 10 to 40 times as long.
    some = ["CopyGpuTest.Integers*", "CopyGpuTest.AMissing*", "PipelineGpuTest.*"]
    long = ["*AFullDevice*", "*Resnet*", "*Unet*", "*OnTheHost*", "*EveryRule*"]
    sanitized = f"--gtest_filter={':'.join(some)}:-{':'.join(long)}"
    sanitizer = ["compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9", "--print-limit", "20"]
    return [
        Check("gpu", ["nvidia-smi"], 20, needs="nvidia-smi", libraries=False),
        Check("tests", [tests], 150),
        Check("daemon", [sys.executable, "-u", str(bundle / "checks/daemon.py"), str(bundle)], 120, libraries=False),
        Check("engine-time", [bench, "--idle", "--rows", "32", "--m", "32", "--rounds", "51"], 60),
        Check("gpt-350m", [bench, *LARGE, "--rounds", "7"], 150),
        Check("gpt-350m-on-2", [bench, *LARGE, "--rounds", "7", "--stages", "2,4", "--gpus", "2"], 150),
        Check("gpt-350m-on-4", [bench, *LARGE, "--rounds", "7", "--stages", "4", "--gpus", "4"], 150),
        Check("torch-peers", [sys.executable, "-u", str(bundle / "checks/torch_peers.py")], 120, libraries=False),
        Check("memcheck", [*sanitizer, tests, sanitized], 180, needs="compute-sanitizer"),
    ]  # fmt: skip


def torch_folder() -> pathlib.Path | None:
    found = importlib.util.find_spec("torch")
    return pathlib.Path(found.submodule_search_locations[0]) if found and found.submodule_search_locations else None


def library_path(bundle: pathlib.Path, torch: pathlib.Path) -> str:
    cuda = sorted((torch.parent / "nvidia").glob("*/lib"))
    return ":".join(str(folder) for folder in [torch / "lib", *cuda, bundle / "lib"])


def run(check: Check, libraries: str, log: pathlib.Path, limit: float) -> tuple[str, str]:
    """The outcome, and why where it is not `passed`."""
    if check.needs and shutil.which(check.needs) is None:
        return "skipped", f"this machine has no {check.needs}"
    environment = {**os.environ, "PENSTOCK_LIBRARIES": libraries}
    if check.libraries:
        environment["LD_LIBRARY_PATH"] = libraries
    with open(log, "wb") as out:
        child = subprocess.Popen(check.command, stdout=out, stderr=subprocess.STDOUT, env=environment, start_new_session=True)
        try:
            code = child.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            return "failed", f"not done after {limit:.0f} s"
    text = log.read_bytes()
    if len(text) > KEPT:
        log.write_bytes(text[: KEPT // 2] + b"\n...\n" + text[-KEPT // 2 :])
    if code == 0 and b"no GPU: " in text:
        return "skipped", "no GPU"
    if code == 0 and (few := re.search(rb"^\d+ GPUs are needed, and there are \d+", text, re.M)):
        return "skipped", few[0].decode()
    return ("passed", "") if code == 0 else ("failed", f"exit code {code}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=pathlib.Path, required=True)
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("gpu-report"))
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    torch = torch_folder()
    if torch is None:
        print("run: python3 has no torch, whose libraries the programs need", file=sys.stderr)
        return 1
    options.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * options.minutes
    results = []
    for check in checks(options.bundle):
        if options.only and check.name not in options.only:
            continue
        log = options.out / f"{check.name}.log"
        begin = time.monotonic()
        limit = min(check.seconds, end - begin)
        if limit < 5:
            outcome, why = "skipped", "no time is left"
        else:
            outcome, why = run(check, library_path(options.bundle, torch), log, limit)
        results.append({"check": check.name, "outcome": outcome, "why": why, "seconds": round(time.monotonic() - begin, 1)})
        print(f"{check.name:<14} {outcome:<8} {results[-1]['seconds']:6.1f} s  {why}", flush=True)
    (options.out / "report.json").write_text(json.dumps(results, indent=1) + "\n")
    with open(options.out / "report.txt", "w") as report:
        for result in results:
            log = options.out / f"{result['check']}.log"
            tail = log.read_text(errors="replace")[-6000:] if log.exists() else ""
            report.write(f"== {result['check']}: {result['outcome']} {result['why']}\n{tail}\n")
    return 1 if any(result["outcome"] == "failed" for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
