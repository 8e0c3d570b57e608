"""Checks that clang-format would change nothing.

Usage: format.py            (to repair: clang-format-14 -i FILE)
"""

import collections
import pathlib
import re
import subprocess

import tree

FORMATTER = "clang-format-14"


def check(root: pathlib.Path) -> list[str]:
    paths = [str(path) for path in tree.files(root, (".h", ".cc", ".cu"))]
    if not paths:
        return ["no sources found"]
    done = subprocess.run([FORMATTER, "--dry-run", "--Werror", *paths], cwd=root, capture_output=True, text=True)
    places = collections.Counter(re.findall(r"^(\S+?):\d+:\d+: error:", done.stderr, re.MULTILINE))
    if done.returncode and not places:
        return [done.stderr.strip()]
    return [f"{path}: {count} place(s)" for path, count in sorted(places.items())]


if __name__ == "__main__":
    tree.main(check, "format")
