"""Runs clang-tidy with the allow-list of .clang-tidy over the rooms whose files are cheap to read.

Usage: tidy.py BUILD-FOLDER

Files that include LibTorch or gRPC cost ten times as much; for them: clang-tidy-14 -p build/release FILE.
"""

import pathlib
import subprocess
import sys

import compiler
import tree

CLANG_TIDY = "clang-tidy-14"
FOLDERS = ("engine/base", "engine/schedule", "engine/observe", "engine/wire", "server/http", "server/metrics")


def check(root: pathlib.Path, build: pathlib.Path) -> list[str]:
    commands = compiler.Commands(root, build)
    paths = [path for path in commands.files() if path.startswith(tuple(f"{folder}/" for folder in FOLDERS))]
    if not paths:
        return ["no sources found: is compile_commands.json there?"]

    def complaint(path: str) -> str:
        command = [CLANG_TIDY, "--quiet", path, "--", *commands.switches(path)]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True)
        return "" if done.returncode == 0 else done.stdout.strip() or done.stderr.strip()

    return compiler.one_per_core(paths, complaint)


if __name__ == "__main__":
    tree.main(lambda root: check(root, pathlib.Path(sys.argv[1])), "tidy")
