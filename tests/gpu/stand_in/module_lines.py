#!/usr/bin/env python3
"""Runs the CUDA module's tests on the runtime that stands in, and tells which of its lines that ran and which never: with --table
for each function, beside the test of tests/gpu that calls it on a GPU (on_a_gpu.txt). docs/gpu.md has that table.

Usage: module_lines.py --build FOLDER [--table] [GoogleTest's options]

Exit codes: that of the tests; 1 if a line was never run, on_a_gpu.txt has not the module's functions or docs/gpu.md another
table; 77 where deploy/setup.sh --tests has made no stand-ins for CUDA's other libraries.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
MODULE = "engine/device/cuda/"
PAGE = ROOT / "docs/gpu.md"
ON_A_GPU = pathlib.Path(__file__).with_name("on_a_gpu.txt")
RUNTIME = ("libcudart.so.13", "libcuda.so.1", "libnvrtc.so.13")


def run_tests(here: pathlib.Path, options: list[str]) -> int:
    stand_ins = sorted((ROOT / "build/deps/torch-venv/lib").glob("python3*/site-packages/penstock_cuda_stand_ins/*.so.*"))
    program = here / "cuda_module_stand_in_test"
    if not stand_ins or not program.exists():
        print(f"skipped: {'stand-ins of CUDA libraries are' if program.exists() else 'the program is'} missing")
        return 77
    # Loaded before LibTorch asks for libraries of these names.
    loaded = ":".join(map(str, [*(here / name for name in RUNTIME), *stand_ins]))
    return subprocess.run([str(program), *options], env={**os.environ, "LD_PRELOAD": loaded}).returncode


def counted(here: pathlib.Path) -> dict[str, dict[int, int]]:
    """How often each line was run, by its function."""
    lines: dict[str, dict[int, int]] = collections.defaultdict(dict)
    notes = [*here.rglob("*.gcda")]
    told = subprocess.run(["gcov", "--json-format", "--stdout", *map(str, notes)], cwd=here, capture_output=True, text=True, check=True)
    for document in told.stdout.splitlines():
        for file in json.loads(document)["files"]:
            name = re.sub(r".*/(?=engine/device/)", "", file["file"])
            if not name.startswith(MODULE):
                continue
            names = {one["name"]: short(one["demangled_name"]) for one in file["functions"]}
            for line in file["lines"]:
                function = names.get(line.get("function_name", ""), "")
                key = f"{name.removeprefix(MODULE)} | {function}"
                lines[key][line["line_number"]] = max(line["count"], lines[key].get(line["line_number"], 0))
    return lines


def short(name: str) -> str:
    """A function without namespaces and parameters; what is inside of one counts for it."""
    name = name.replace("(anonymous namespace)::", "").replace("penstock::", "")
    return name.partition("(")[0].rpartition(" ")[2]


def expected() -> dict[str, str]:
    """From file and function to what is known of them on a GPU."""
    known = {}
    tests = "".join(path.read_text() for path in ON_A_GPU.parents[1].glob("*_gpu_test.cc"))
    for line in ON_A_GPU.read_text().splitlines():
        if line and not line.startswith("#"):
            file, function, told = (part.strip() for part in line.split("|"))
            known[f"{file} | {function}"] = told
            for suite, test in re.findall(r"(\w+GpuTest)\.(\w+)", told):
                if f"TEST_F({suite}, {test})" not in tests:
                    sys.exit(f"{ON_A_GPU.name} names {suite}.{test}, and there is none")
    return known


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--table", action="store_true", help="also print each function")
    arguments, options = parser.parse_known_args()
    here = arguments.build.resolve() / "tests/gpu/stand_in"
    for old in here.rglob("*.gcda"):
        old.unlink()
    if code := run_tests(here, options):
        return code
    lines, known = counted(here), expected()
    text = {path.name: path.read_text().splitlines() for path in (ROOT / MODULE).iterdir()}
    never = 0
    rows = []
    for key in sorted(lines, key=lambda key: (key.partition(" ")[0], min(lines[key]))):
        file, _, function = key.partition(" | ")
        ran = sum(count > 0 for count in lines[key].values())
        rows.append(f"| `{function}` | {ran} of {len(lines[key])} | {known.get(key, '')} |\n")
        for number, count in sorted(lines[key].items()):
            if not count:
                never += 1
                print(f"never run: {MODULE}{file}:{number}: {text[file][number - 1].strip()}")
    if arguments.table:
        print("".join(rows), end="")
    total = sum(len(one) for one in lines.values())
    print(f"{total - never} of {total} lines of {MODULE} ran on stand-ins")
    if lines.keys() != known.keys():
        print(f"{ON_A_GPU.name} lacks {sorted(lines.keys() - known.keys())} and has {sorted(known.keys() - lines.keys())} in vain")
        return 1
    if "".join(rows) not in PAGE.read_text():
        print(f"{PAGE.name} has another table than --table prints")
        return 1
    return 1 if never else 0


if __name__ == "__main__":
    sys.exit(main())
