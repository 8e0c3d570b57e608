#!/usr/bin/env python3
"""The manual pages of the programs and the completion of shells, from what the programs say of themselves.

Usage: SOURCE_DATE_EPOCH=SECONDS manual.py --build FOLDER --out FOLDER
       (for a look at them: man -l FOLDER/share/man/man1/penstock.1)

No text of an option is written here: the pages are the programs' --help, the completion is what `penstock completion` prints.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import pathlib
import re
import subprocess
import time
from collections.abc import Iterator

PENSTOCK = "client/cli/penstock"
PENSTOCKD = "server/penstockd"
COMPLETION = {
    "share/bash-completion/completions/penstock": "bash",
    "share/fish/vendor_completions.d/penstock.fish": "fish",
}
# Characters that roff would take for something else, or show as another.
ESCAPES = {"\\": "\\e", "-": "\\-", "'": "\\(aq", "`": "\\(ga", "^": "\\(ha", "~": "\\(ti"}


@functools.cache
def told(program: pathlib.Path, *words: str) -> str:
    """What a program prints, whatever the settings of who asks."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK")}
    return subprocess.run([program, *words], env=environment, capture_output=True, encoding="utf-8", check=True).stdout


def escaped(text: str) -> str:
    text = "".join(ESCAPES.get(letter, letter) for letter in text)
    return f"\\&{text}" if text.startswith(".") else text


class Help:
    """The --help of a program or of one of its commands, in parts.

    `about` says what it does, `usage` how it is called; `sections` holds the rest: "Examples", "Positionals", "Options",
    "Subcommands".
    """

    def __init__(self, text: str) -> None:
        lines = text.splitlines()
        usage = next(here for here, line in enumerate(lines) if line.startswith("Usage: "))
        self.usage = lines[usage].removeprefix("Usage: ")
        self.about = lines[usage - 1]
        self.sections: dict[str, list[str]] = {}
        for line in lines:
            if heading := re.fullmatch(r"([A-Z]\w+):", line):
                self.sections[heading[1]] = []
            elif line.startswith("  "):
                self.sections[next(reversed(self.sections))].append(line)
        help_row = next(line for line in self.sections["Options"] if line.startswith("  -h,--help "))
        self._column = len(help_row) - len(re.sub(r"^ *\S+ +", "", help_row))

    def rows(self, section: str) -> Iterator[tuple[str, str]]:
        """What stands at the left, and its meaning, which begins in a column or, where there is no room, on the next line."""
        margin = " " * self._column
        for line, next_line in itertools.pairwise([*self.sections.get(section, []), ""]):
            if line.startswith(margin):
                continue
            if next_line.startswith(margin):
                yield line.strip(), next_line.strip()
            else:
                yield line[: self._column].strip(), line[self._column :].strip()


def definitions(help_text: Help, section: str) -> Iterator[str]:
    for left, meaning in help_text.rows(section):
        name, _, rest = left.partition(" ")
        yield f".TP\n\\fB{escaped(name)}\\fR{' ' + escaped(rest) if rest else ''}"
        if meaning:
            yield escaped(meaning)


def examples(help_text: Help) -> Iterator[str]:
    if lines := help_text.sections.get("Examples"):
        yield from (".nf", *(escaped(line) for line in lines), ".fi")


def page(name: str, section: int, version: str, epoch: int, parts: list[str]) -> str:
    day = time.strftime("%Y-%m-%d", time.gmtime(epoch))
    return "\n".join([f'.TH {name.upper()} {section} "{day}" "Penstock {version}" "Penstock"', *parts]) + "\n"


def introduction(name: str, help_text: Help) -> list[str]:
    about = escaped(help_text.about)
    return [".SH NAME", f"{name} \\- {about.rstrip('.')}", ".SH SYNOPSIS", escaped(help_text.usage), ".SH DESCRIPTION", about]


def of_the_command_line(penstock: pathlib.Path, version: str, epoch: int) -> str:
    root = Help(told(penstock, "--help"))
    parts = [*introduction("penstock", root), ".SH OPTIONS", *definitions(root, "Options"), ".SH COMMANDS"]
    for words in commands(penstock):
        command = Help(told(penstock, *words, "--help"))
        parts += [f".SS penstock {escaped(' '.join(words))}", escaped(command.about), ".PP", escaped(command.usage)]
        parts += [*definitions(command, "Positionals")]
        parts += list(definitions(command, "Options"))[2:]  # -h is the same of each
        parts += [".PP", *examples(command)] if command.sections.get("Examples") else []
    parts += [".SH EXAMPLES", *examples(root), ".SH SEE ALSO", "\\fBpenstockd\\fR(8)"]
    return page("penstock", 1, version, epoch, parts)


def commands(penstock: pathlib.Path, *above: str) -> Iterator[tuple[str, ...]]:
    """The words of each command that is no group of others, in the order of the help."""
    for name, _ in Help(told(penstock, *above, "--help")).rows("Subcommands"):
        words = (*above, name)
        below = list(commands(penstock, *words))
        yield from below or [words]


def of_the_daemon(penstockd: pathlib.Path, version: str, epoch: int) -> str:
    root = Help(told(penstockd, "--help"))
    parts = [
        *introduction("penstockd", root),
        ".SH OPTIONS",
        *definitions(root, "Options"),
        ".SH SEE ALSO",
        "\\fBpenstock\\fR(1)",
    ]
    return page("penstockd", 8, version, epoch, parts)


def completions(penstock: pathlib.Path) -> dict[str, str]:
    return {path: told(penstock, "completion", shell) for path, shell in COMPLETION.items()}


def of_both(build: pathlib.Path, version: str, epoch: int) -> dict[str, str]:
    """What belongs to both programs, by its path below a prefix as /usr."""
    pages = {
        "share/man/man1/penstock.1": of_the_command_line(build / PENSTOCK, version, epoch),
        "share/man/man8/penstockd.8": of_the_daemon(build / PENSTOCKD, version, epoch),
    }
    return {**pages, **completions(build / PENSTOCK)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes the manual pages and the completion of a build.")
    parser.add_argument("--build", type=pathlib.Path, required=True, help="build folder")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="where share/ goes")
    arguments = parser.parse_args()
    if not (seconds := os.environ.get("SOURCE_DATE_EPOCH", "")).isdecimal():
        parser.error("SOURCE_DATE_EPOCH must be the seconds since 1970 whose day is on the pages")
    version = told(arguments.build / PENSTOCK, "version", "-o", "name").strip()
    for name, text in of_both(arguments.build, version, int(seconds)).items():
        path = arguments.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
