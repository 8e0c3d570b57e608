"""Checks that every header starts with #pragma once and compiles alone.

Usage: headers.py BUILD-FOLDER

A source that includes its own header first proves by its compilation that the header stands alone, at no cost. Every other
header is given to clang, one by one. The largest header of LibTorch is parsed once for all that include it, themselves or through
others of the tree.
"""

import functools
import pathlib
import subprocess
import sys
import tempfile

import compiler
import tree


LARGE = "ATen/core/Tensor.h"


def sort_headers(root: pathlib.Path) -> tuple[list[str], list[str]]:
    """Returns the headers that clang must see, and what is wrong already."""
    alone, problems = [], []
    for path in tree.files(root, (".h",)):
        first_line = next(iter((root / path).read_text().splitlines()), "")
        if first_line != "#pragma once":
            problems.append(f"{path}: must begin with #pragma once")
        source = root / path.with_suffix(".cc")
        if not source.exists() or next(iter(tree.includes(source.read_text())), "") != str(path):
            alone.append(str(path))
    return alone, problems


def including(root: pathlib.Path, name: str) -> set[str]:
    """The headers of the tree that include `name`, themselves or through others of the tree."""

    @functools.cache
    def includes(path: str) -> bool:
        below = tree.includes((root / path).read_text())
        return name in below or any(includes(header) for header in below if (root / header).is_file())

    return {str(path) for path in tree.files(root, (".h",)) if includes(str(path))}


def check(root: pathlib.Path, build: pathlib.Path) -> list[str]:
    alone, problems = sort_headers(root)
    commands = compiler.Commands(root, build)
    plain = ["-Wno-pragma-once-outside-header"]
    large = sorted(including(root, LARGE).intersection(alone))
    problems += commands.check_all([path for path in alone if path not in large], plain)
    if not large:
        return problems
    with tempfile.TemporaryDirectory() as folder:
        parsed = f"{folder}/parsed.pch"
        switches = commands.switches(large[0])
        made = subprocess.run(
            [compiler.CLANG, *switches, "-x", "c++-header", "-o", parsed, "-"],
            input=f"#include <{LARGE}>\n", capture_output=True, text=True,
        )
        if made.returncode:
            return problems + [f"{LARGE}:\n{made.stderr.strip()}"]
        return problems + commands.check_all(large, [*plain, "-include-pch", parsed])


if __name__ == "__main__":
    tree.main(lambda root: check(root, pathlib.Path(sys.argv[1])), "headers")
