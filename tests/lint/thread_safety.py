"""Gives every source with locks to clang's thread-safety analysis, as errors.

Usage: thread_safety.py BUILD-FOLDER

A source has locks if it, or a header of the tree that it includes directly, names absl::Mutex or an annotation.
"""

import pathlib
import re
import sys

import compiler
import tree

LOCKS = re.compile(r"absl::Mutex|ABSL_(PT_)?GUARDED_BY|ABSL_(EXCLUSIVE|SHARED)_LOCKS_REQUIRED|ABSL_LOCKS_EXCLUDED")
SWITCHES = ["-Wthread-safety", "-Werror=thread-safety"]


def has_locks(root: pathlib.Path, path: str) -> bool:
    text = (root / path).read_text()
    headers = [root / name for name in tree.includes(text) if (root / name).is_file()]
    return bool(LOCKS.search(text)) or any(LOCKS.search(header.read_text()) for header in headers)


def check(root: pathlib.Path, build: pathlib.Path) -> list[str]:
    commands = compiler.Commands(root, build)
    locked = {path for path in commands.files() if not path.startswith("tests/") and has_locks(root, path)}
    if not locked:
        return ["no source with locks found: is compile_commands.json there?"]
    # What many sources include is read once for all those that are compiled together.
    units = [unit for unit, sources in commands.units().items() if locked.intersection(sources)]
    print(f"{len(locked)} sources in {len(units)} units")
    return commands.check_all(units, SWITCHES)


if __name__ == "__main__":
    tree.main(lambda root: check(root, pathlib.Path(sys.argv[1])), "thread safety")
