"""Runs clang-tidy with the allow-list of .clang-tidy over the rooms whose files are cheap to read.

Usage: tidy.py BUILD-FOLDER

Files that include LibTorch or gRPC cost ten times as much; for them: clang-tidy-14 -p build/release FILE.

In a unit of many sources misc-unused-using-decls sees the unit's own lines only, so a using-declaration whose name stands nowhere
else in its source is found here, in every room.
"""

import pathlib
import re
import subprocess
import sys

import compiler
import tree

CLANG_TIDY = "clang-tidy-14"
FOLDERS = ("engine/base", "engine/schedule", "engine/observe", "engine/wire", "engine/journal", "server/http", "server/metrics")

_USING = re.compile(r"^using (?!namespace\b|enum\b)[\w:]+::(\w+);", re.MULTILINE)
_COMMENT = re.compile(r"//.*")


def unused_using(text: str) -> list[str]:
    """The names that a source declares by `using` and does not use."""
    code = _COMMENT.sub("", text)
    return [name for name in _USING.findall(code) if len(re.findall(rf"\b{name}\b", code)) == 1]


def check(root: pathlib.Path, build: pathlib.Path) -> list[str]:
    commands = compiler.Commands(root, build)
    folders = tuple(f"{folder}/" for folder in FOLDERS)
    # What many sources include is read once for all those that are compiled together.
    units = [unit for unit, sources in commands.units().items() if any(path.startswith(folders) for path in sources)]
    if not units:
        return ["no sources found: is compile_commands.json there?"]

    def complaint(path: str) -> str:
        command = [CLANG_TIDY, "--quiet", path, "--", *commands.switches(path)]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True)
        return "" if done.returncode == 0 else done.stdout.strip() or done.stderr.strip()

    unused = [
        f"{path}: using {name} is not used"
        for path in tree.files(root, (".cc",), ("engine", "server", "client"))
        for name in unused_using((root / path).read_text())
    ]
    return unused + compiler.one_per_core(units, complaint)


if __name__ == "__main__":
    tree.main(lambda root: check(root, pathlib.Path(sys.argv[1])), "tidy")
