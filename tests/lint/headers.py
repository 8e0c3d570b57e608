"""Checks that every header starts with #pragma once and compiles alone.

Usage: headers.py BUILD-FOLDER

A source that includes its own header first proves by its compilation that the header stands alone, at no cost. Every other
header is given to clang, one by one.
"""

import pathlib
import sys

import compiler
import tree


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


def check(root: pathlib.Path, build: pathlib.Path) -> list[str]:
    alone, problems = sort_headers(root)
    return problems + compiler.Commands(root, build).check_all(alone, ["-Wno-pragma-once-outside-header"])


if __name__ == "__main__":
    tree.main(lambda root: check(root, pathlib.Path(sys.argv[1])), "headers")
