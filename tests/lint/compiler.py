"""Runs clang over files of the tree without making objects, with the switches of compile_commands.json."""

import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess

CLANG = "clang++-14"


class Commands:
    """The compile commands of a build folder, and how clang checks a file with them."""

    def __init__(self, root: pathlib.Path, build: pathlib.Path):
        self._root = root
        self._switches: dict[str, list[str]] = {}
        self._folders: dict[str, str] = {}
        self._units: dict[str, list[str]] = {}
        for entry in json.loads((build / "compile_commands.json").read_text()):
            for path in _sources(pathlib.Path(entry["file"])):
                if not path.is_relative_to(root) or path.is_relative_to(root / "build"):
                    continue
                relative = str(path.relative_to(root))
                self._switches[relative] = _switches(shlex.split(entry["command"]), entry["directory"])
                self._folders.setdefault(str(pathlib.Path(relative).parent), relative)
                self._units.setdefault(os.path.relpath(entry["file"], root), []).append(relative)

    def files(self) -> list[str]:
        return sorted(self._switches)

    def units(self) -> dict[str, list[str]]:
        """The files of the tree by what they are compiled in: themselves, or one file for many in a unity build."""
        return self._units

    def switches(self, path: str) -> list[str]:
        """The switches of a file or unit; for a header those of a source in its folder."""
        path = self._units.get(path, [path])[0]
        if path in self._switches:
            return self._switches[path]
        neighbour = self._folders.get(str(pathlib.Path(path).parent))
        return self._switches[neighbour] if neighbour else ["-std=c++20", f"-I{self._root}"]

    def check(self, path: str, extra: list[str]) -> str:
        """What clang complains about, or "" if it accepts the file."""
        command = [CLANG, *self.switches(path), "-fsyntax-only", "-x", "c++", *extra, str(self._root / path)]
        done = subprocess.run(command, capture_output=True, text=True)
        return "" if done.returncode == 0 else done.stderr.strip() or f"{CLANG} ended with {done.returncode}"

    def check_all(self, paths: list[str], extra: list[str]) -> list[str]:
        """Checks files; returns one problem for each that is refused."""
        return one_per_core(paths, lambda path: self.check(path, extra))


def one_per_core(paths: list[str], check) -> list[str]:
    """Calls `check` on every path, as many at a time as there are cores; returns the complaints, each with its path."""
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        complaints = pool.map(check, paths)
        return [f"{path}:\n{complaint}" for path, complaint in zip(paths, complaints) if complaint]


def _sources(path: pathlib.Path) -> list[pathlib.Path]:
    """What a command compiles: the file, or the files that a unity build has put into it."""
    if path.parent.name != "Unity":
        return [path]
    return [pathlib.Path(name) for name in re.findall(r'^#include "(/.*)"$', path.read_text(), re.MULTILINE)]


def _switches(words: list[str], folder: str) -> list[str]:
    """Keeps what decides how a file reads: include paths, definitions, the language."""
    kept, position = [], 0
    while position < len(words):
        word = words[position]
        if word in ("-isystem", "-I", "-D", "-include"):
            kept += [word, words[position + 1]]
            position += 1
        elif word.startswith(("-I", "-D", "-std=")):
            kept.append(word)
        position += 1
    return [str(pathlib.Path(folder, w)) if w.startswith("..") else w for w in kept]
