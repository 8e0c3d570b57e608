"""Builds the programs of tests/sanitized.txt with a sanitizer preset and runs them.

Usage: run.py [--build-only] PRESET

A listed program that does not exist is an error, and so is a planted fault that the sanitizer does not find.
"""

import argparse
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def programs_of(listing: str, preset: str) -> list[str]:
    """The programs that `listing` (the text of tests/sanitized.txt) names for a preset."""
    programs = []
    for number, line in enumerate(listing.splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if len(words) < 2 or not set(words[1:]) <= {"asan-ubsan", "tsan"}:
            raise ValueError(f"tests/sanitized.txt:{number}: expected PROGRAM PRESET..., got '{line}'")
        if preset in words[1:]:
            programs.append(words[0])
    if not programs:
        raise ValueError(f"tests/sanitized.txt names no program for {preset}")
    return programs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("preset", choices=["asan-ubsan", "tsan"])
    parser.add_argument("--build-only", action="store_true")
    arguments = parser.parse_args()
    programs = programs_of((ROOT / "tests/sanitized.txt").read_text(), arguments.preset)

    build = subprocess.run([ROOT / "deploy/build.sh", arguments.preset, "planted", *programs])
    if build.returncode or arguments.build_only:
        return build.returncode
    names = "|".join(programs)
    ctest = ["ctest", "--test-dir", ROOT / "build" / arguments.preset, "--output-on-failure"]
    listed = subprocess.run([*ctest, "-N", "-R", f"^({names})$"], capture_output=True, text=True, check=True).stdout
    absent = [program for program in programs if f": {program}\n" not in listed]
    if absent:
        print(f"not registered with ctest in {arguments.preset}: {', '.join(absent)}", file=sys.stderr)
        return 1
    return subprocess.run([*ctest, "-R", f"^({names}|planted_.*)$"]).returncode


if __name__ == "__main__":
    sys.exit(main())
