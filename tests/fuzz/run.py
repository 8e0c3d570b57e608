"""Runs fuzz targets for long, by hand, and goes on where the last run ended.

Usage: run.py --minutes N [TARGET ...]        (no target: one after another; for example: run.py --minutes 60 wire_reader)

Builds the preset `fuzz`. New inputs stay in build/fuzz/tests/fuzz/found/TARGET; an input that fails is left beside that folder,
as TARGET.crash-..., TARGET.timeout-... and so on. The last lines tell of each target how many inputs it ran and what it covered.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/fuzz"


def targets() -> list[str]:
    return sorted(path.name.removesuffix("_fuzz.cc") for path in pathlib.Path(__file__).parent.glob("*_fuzz.cc"))


def command_of(target: str, minutes: float) -> list[str]:
    """The target's command as ctest knows it, but for so long and with a seed of its own."""
    shown = subprocess.run(["ctest", "--test-dir", BUILD, "--show-only=json-v1"], capture_output=True, check=True)
    commands = {test["name"]: test["command"] for test in json.loads(shown.stdout)["tests"] if "command" in test}
    program, *options = [word for word in commands[f"{target}_fuzz"] if not word.startswith(("-seed=", "-runs="))]
    return [program, f"-max_total_time={round(minutes * 60)}", *options]


def fuzz(target: str, minutes: float) -> str:
    """One sentence on what came of it."""
    process = subprocess.Popen(command_of(target, minutes), stderr=subprocess.PIPE, text=True, errors="replace")
    covered = inputs = "?"
    for line in process.stderr:
        print(line, end="")
        if found := re.search(r"cov: (\d+)", line):
            covered = found[1]
        if found := re.search(r"number_of_executed_units: (\d+)", line):
            inputs = found[1]
    return f"{target}: {'FAILED' if process.wait() else 'in order'}, {inputs} inputs, {covered} places covered"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, required=True, help="for each target")
    parser.add_argument("target", nargs="*", choices=[[], *targets()], help=", ".join(targets()))
    arguments = parser.parse_args()
    chosen = arguments.target or targets()
    build = subprocess.run([ROOT / "deploy/build.sh", "fuzz", *(f"{target}_fuzz" for target in chosen)])
    if build.returncode:
        return build.returncode
    sentences = [fuzz(target, arguments.minutes) for target in chosen]
    print("\n".join(sentences))
    return 1 if any("FAILED" in sentence for sentence in sentences) else 0


if __name__ == "__main__":
    sys.exit(main())
