"""Gives every source with locks to clang's thread-safety analysis, as errors.

Usage: thread_safety.py BUILD-FOLDER

A source has locks if it, or a header of the tree that it includes directly, names absl::Mutex or an annotation. What the programs of
tests/sanitized.txt hold is left out: the build for AddressSanitizer compiles it by clang, with this analysis as errors.
"""

import pathlib
import re
import sys

import compiler
import tree

sys.path.insert(0, str(tree.ROOT / "tests/sanitize"))
import run as sanitize  # noqa: E402

LOCKS = re.compile(r"absl::Mutex|ABSL_(PT_)?GUARDED_BY|ABSL_(EXCLUSIVE|SHARED)_LOCKS_REQUIRED|ABSL_LOCKS_EXCLUDED")
SWITCHES = ["-Wthread-safety", "-Werror=thread-safety"]


def has_locks(root: pathlib.Path, path: str) -> bool:
    text = (root / path).read_text()
    headers = [root / name for name in tree.includes(text) if (root / name).is_file()]
    return bool(LOCKS.search(text)) or any(LOCKS.search(header.read_text()) for header in headers)


def sources_of(programs: list[str], targets: list[tree.Target]) -> set[str]:
    """The sources of programs and of every library that they link."""
    by_name = {target.name: target for target in targets}
    open_names, seen = list(programs), set()
    while open_names:
        name = open_names.pop().replace("::", "_")
        if name in by_name and name not in seen:
            seen.add(name)
            open_names += by_name[name].links
    return {source for name in seen for source in by_name[name].sources}


def check(root: pathlib.Path, build: pathlib.Path, compiled_by_clang: set[str] = frozenset()) -> list[str]:
    commands = compiler.Commands(root, build)
    locked = {path for path in commands.files() if not path.startswith("tests/") and has_locks(root, path)}
    if not locked:
        return ["no source with locks found: is compile_commands.json there?"]
    locked -= compiled_by_clang
    # What many sources include is read once for all those that are compiled together.
    units = [unit for unit, sources in commands.units().items() if locked.intersection(sources)]
    print(f"{len(locked)} sources in {len(units)} units")
    return commands.check_all(units, SWITCHES)


def main(root: pathlib.Path) -> list[str]:
    build = pathlib.Path(sys.argv[1])
    programs = sanitize.programs_of((root / "tests/sanitized.txt").read_text(), "asan-ubsan")
    targets = tree.targets(root, (build / "targets.txt").read_text())
    return check(root, build, sources_of(programs, targets))


if __name__ == "__main__":
    tree.main(main, "thread safety")
