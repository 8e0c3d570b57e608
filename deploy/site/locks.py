"""The page of locks: every mutex of the sources, whose it is, what it guards, and which other one is taken after it."""

from __future__ import annotations

import pathlib
import re

_MUTEX = re.compile(r"^\s*(?:mutable )?absl::Mutex (\w+)((?: ABSL_\w+\([^)]*\))*);", re.M)
_TYPE = re.compile(r"^( *)(?:class|struct) (?:ABSL_\w+ )?(\w+(?:::\w+)*)(?: final)?(?:\s+:[^;{]*)? \{", re.M)


def owner(text: str, at: int) -> tuple[str, str]:
    """The innermost type around a position, by indentation: its name, and its text."""
    line = text.rfind("\n", 0, at) + 1
    indent = len(text[line:]) - len(text[line:].lstrip(" "))
    around = [found for found in _TYPE.finditer(text, 0, at) if len(found[1]) < indent]
    if not around:
        return "(local)", ""
    end = re.compile(rf"^{around[-1][1]}}}", re.M).search(text, at)
    return around[-1][2], text[around[-1].start() : end.start() if end else len(text)]


def rows(root: pathlib.Path) -> list[tuple[str, str, str, str]]:
    """Type, lock, fields that it guards, what may be taken while it is held."""
    found = []
    for folder in ("engine", "server", "client"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in (".h", ".cc"):
                continue
            text = path.read_text()
            for mutex in _MUTEX.finditer(text):
                name = mutex[1]
                type_name, body = owner(text, mutex.start(1))
                guarded = re.findall(rf"(\w+) ABSL_(?:PT_)?GUARDED_BY\({name}\)", body)
                before = re.findall(r"ABSL_ACQUIRED_BEFORE\(([^)]*)\)", mutex[2])
                where = f"{path.parent.relative_to(root)}: `{type_name}`"
                found.append((where, f"`{name}`", ", ".join(f"`{field}`" for field in dict.fromkeys(guarded)), ", ".join(before)))
    return found
