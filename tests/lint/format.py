"""Checks that clang-format would change nothing.

Usage: format.py            (to repair: clang-format-14 -i FILE)
"""

import pathlib
import subprocess

import tree

FORMATTER = "clang-format-14"


def check(root: pathlib.Path) -> list[str]:
    paths = [str(path) for path in tree.files(root, (".h", ".cc", ".cu"))]
    if not paths:
        return ["no sources found"]
    done = subprocess.run([FORMATTER, "--dry-run", "--Werror", *paths], cwd=root, capture_output=True, text=True)
    lines = [line for line in done.stderr.splitlines() if ": error:" in line]
    if done.returncode and not lines:
        return [done.stderr.strip()]
    return lines


if __name__ == "__main__":
    tree.main(check, "format")
