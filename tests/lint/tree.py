"""What the checks know about the source tree: its files, rooms, includes, targets."""

import dataclasses
import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
CODE_FOLDERS = ("engine", "server", "client", "tests")
LEFT_OUT = {"build", "__pycache__", ".git", ".pytest_cache", ".mypy_cache", "node_modules"}

_INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)


def files(root: pathlib.Path, suffixes: tuple[str, ...], folders=CODE_FOLDERS) -> list[pathlib.Path]:
    """The files below `folders` with one of the suffixes, relative to `root`, in order; build folders left out."""
    found = []
    for folder in folders:
        for path in (root / folder).rglob("*"):
            relative = path.relative_to(root)
            wanted = path.suffix in suffixes and path.is_file()
            if wanted and not any(part in LEFT_OUT or part.endswith(".egg-info") for part in relative.parts):
                found.append(relative)
    return sorted(found)


def includes(text: str) -> list[str]:
    """The names between the quotes or brackets of every #include line."""
    return [quoted or bracketed for quoted, bracketed in _INCLUDE.findall(text)]


@dataclasses.dataclass
class Target:
    """A target as CMake knows it, from the list that tests/lint/CMakeLists.txt writes."""

    name: str
    kind: str
    folder: str  # relative to the root
    sources: list[str]  # relative to the root; generated ones left out
    links: list[str]


def targets(root: pathlib.Path, listing: str) -> list[Target]:
    """Reads the list of targets: name, kind, folder, sources, links, separated by tabs; lists by semicolons."""
    found = []
    for line in listing.splitlines():
        name, kind, folder, sources, links = line.split("\t")
        paths = []
        for source in filter(None, sources.split(";")):
            path = pathlib.Path(os.path.normpath(pathlib.Path(folder, source)))
            if path.is_relative_to(root) and not path.is_relative_to(root / "build"):
                paths.append(str(path.relative_to(root)))
        relative = str(pathlib.Path(folder).relative_to(root))
        found.append(Target(name, kind, relative, paths, [link for link in links.split(";") if link]))
    return found


def report(problems: list[str], what: str) -> int:
    """Prints the problems or that there is none; returns the exit code."""
    for problem in problems:
        print(problem)
    print(f"{what}: {len(problems)} problem(s)" if problems else f"{what}: in order")
    return 1 if problems else 0


def main(check, what: str) -> None:
    """Runs `check(root)` on this tree and ends the process."""
    sys.exit(report(check(ROOT), what))
