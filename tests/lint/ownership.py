"""Checks that every source belongs to a target, every header is reached from one, every test script is run by ctest.

Usage: ownership.py TARGETS BUILD-FOLDER
"""

import json
import pathlib
import re
import subprocess
import sys

import tree


def check_sources(root: pathlib.Path, targets: list[tree.Target]) -> list[str]:
    owned = {source for target in targets for source in target.sources}
    sources = tree.files(root, (".cc", ".cu"))
    return [f"{path}: no target compiles it" for path in sources if str(path) not in owned]


def check_headers(root: pathlib.Path, targets: list[tree.Target]) -> list[str]:
    """A header that no compiled source reaches is never seen by a compiler."""
    waiting = [source for target in targets for source in target.sources if (root / source).exists()]
    reached = set()
    while waiting:
        path = waiting.pop()
        for name in tree.includes((root / path).read_text(errors="replace")):
            near = str(pathlib.Path(path).parent / name)
            for candidate in (name, near):
                if candidate not in reached and (root / candidate).is_file():
                    reached.add(candidate)
                    waiting.append(candidate)
    return [f"{path}: no target's source includes it" for path in tree.files(root, (".h",)) if str(path) not in reached]


def check_scripts(root: pathlib.Path, commands: list[list[str]]) -> list[str]:
    """`commands` are those of ctest. A test script counts as run if one of them names it or a folder above it."""
    named = {pathlib.Path(word) for command in commands for word in command if word.startswith("/")}
    problems = []
    for path in tree.files(root, (".py", ".sh"), ("tests", "client")):
        is_test = re.search(r"(^|_)test\.(py|sh)$|^test_.*\.py$", path.name)
        if is_test and not any((root / path).is_relative_to(name) for name in named if name != root):
            problems.append(f"{path}: no test of ctest runs it")
    return problems


def _commands(build: str) -> list[list[str]]:
    shown = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], capture_output=True, check=True)
    return [test.get("command", []) for test in json.loads(shown.stdout)["tests"]]


def check(root: pathlib.Path, targets: list[tree.Target], commands: list[list[str]]) -> list[str]:
    return check_sources(root, targets) + check_headers(root, targets) + check_scripts(root, commands)


if __name__ == "__main__":
    listing = pathlib.Path(sys.argv[1]).read_text()
    tree.main(lambda root: check(root, tree.targets(root, listing), _commands(sys.argv[2])), "ownership")
