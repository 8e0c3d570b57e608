"""Makes docs/ancestors.md from tests/ancestors/rows.txt and tests.txt, or checks that it is up to date.

Usage: generate.py --write [--results FOLDER ...]
       generate.py --check [--build FOLDER] [--results FOLDER ...]
       generate.py --ran FOLDER ...

--write also takes the reasons of rows that have a test now out of rows.txt. With --results, results come from the
XML files that GoogleTest and pytest left in the folders; without, those in the document stay; a new test is "not run".
--check with --build asks the programs of that build whether they have the tests, and ctest whether it runs the files of
Python. --ran FOLDER says which tests of the document did not run, or failed, in the run that left its results there.
"""

import argparse
import collections
import dataclasses
import difflib
import pathlib
import re
import sys
import textwrap

import named_tests
import results
from named_tests import Test

ROWS = "tests/ancestors/rows.txt"
DOCUMENT = "docs/ancestors.md"
KINDS = {
    "see": "tested as",
    "python": "Python only, not ported",
    "internal": "no counterpart here",
    "unbuilt": "not offered",
    "open": "open",
}
HEAD = """# What the ancestors do, and what tests it here

Penstock succeeds torchgpipe, fairscale's `Pipe` and `AsyncPipe`, and `torch.distributed.pipeline.sync`. Every behaviour
of theirs that a user may rely on, or that was wrong, is a row with an id; `tests/ancestors/tests.txt` says which tests show
which rows.

This page is made by `tests/ancestors/generate.py --write` from `tests/ancestors/rows.txt`, that table and the sources of the
tests, and not edited. The test `ancestors_document` fails where it does not match them, where the table names a test or a row
that there is not, where a row has neither a test nor a reason, and where no built program has a test that stands here;
`tests/run.sh` fails where one of them did not run.

`where` says on what a row is shown: **gRPC**, through a real daemon or its services; **engine**, in one process without
them; **simulator**, on schedules as data, which nothing executes; **stand-in**, on devices that only tests have; **GPU**, on
a real one. The last column is what the tests did in the last full run, as its result files say; a test that failed can't
be written here, and `not run` is a test that is newer.
"""
# By the first prefix of a test's path that fits.
WHERE = (
    ("tests/gpu/", "GPU"),
    ("tests/integration/", "gRPC"),
    ("tests/deploy/", "gRPC"),
    ("tests/observability/", "gRPC"),
    ("tests/soak/", "gRPC"),
    ("tests/transparency/daemon_", "gRPC"),
    ("tests/unit/rpc/", "gRPC"),
    ("client/", "gRPC"),
    ("tests/unit/schedule/", "simulator"),
    ("tests/property/schedule/", "simulator"),
    ("tests/unit/device/", "stand-in"),
    ("tests/unit/exec/accelerator_", "stand-in"),
    ("", "engine"),
)


@dataclasses.dataclass
class Row:
    id: str
    behaviour: str
    reason: str
    group: str

    @property
    def kind(self) -> str:
        return self.reason.split(" ")[0]

    @property
    def why(self) -> str:
        return self.reason.partition(" ")[2]

    @property
    def seen_as(self) -> list[str]:
        return self.why.split(", ") if self.kind == "see" else []


def read_rows(text: str) -> tuple[dict[str, Row], list[str]]:
    rows: dict[str, Row] = {}
    problems = []
    group = ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("== "):
            group = line[3:]
        elif line and not line.startswith("#"):
            row = Row(*(part.strip() for part in (line + "||").split("|")[:3]), group)
            if row.id in rows or not row.behaviour or (row.reason and row.kind not in KINDS):
                problems.append(f"{ROWS}:{number}: twice, without behaviour, or with a reason of no kind: {line}")
            rows[row.id] = row
    return rows, problems


def check_reasons(rows: dict[str, Row], named: dict[str, list[Test]]) -> list[str]:
    problems = []
    for row in rows.values():
        if named[row.id] and row.reason:
            problems.append(f"{ROWS}: {row.id} has a test now and needs no reason (--write takes it out)")
        if not named[row.id] and not row.reason:
            problems.append(f"{ROWS}: {row.id} has neither a test nor a reason")
        if row.kind == "see" and not all(other in rows for other in row.why.split(", ")):
            problems.append(f"{ROWS}: {row.id} is to be seen as {row.why}, which is no row")
    return problems


def without_stale_reasons(text: str, named: dict[str, list[Test]]) -> str:
    lines = []
    for line in text.splitlines():
        row = line.split(" | ")[0]
        lines.append(re.sub(r"\|[^|]*$", "|", line) if named.get(row) and line.count("|") == 2 else line)
    return "\n".join(lines) + "\n"


def is_open(row: Row, rows: dict[str, Row], named: dict[str, list[Test]], above: tuple[str, ...] = ()) -> bool:
    """Whether a row still wants a test, itself or as the rows that it is seen as."""
    if named[row.id] or row.id in above:
        return row.id in above
    return row.kind == "open" or any(is_open(rows[other], rows, named, (*above, row.id)) for other in row.seen_as)


def where(tests: list[Test]) -> str:
    """On what tests show a row, each place once, in the order of WHERE's places."""
    shown = {next(place for prefix, place in WHERE if test.path.startswith(prefix)) for test in tests}
    return ", ".join(place for place in dict.fromkeys(place for _, place in WHERE) if place in shown)


def _cells(row: Row, open_row: bool, tests: list[Test], outcome: dict[Test, str]) -> tuple[str, str, str]:
    if not tests:
        words = KINDS[row.kind] + {"see": " "}.get(row.kind, ": ") * bool(row.why) + row.why
        return f"*{words}*", "", "open" if open_row else ""
    links = [f"[{test.name}](../{test.path})" for test in tests]
    found = [outcome[test] for test in tests]
    return "<br>".join(links), where(tests), "<br>".join(found if len(set(found)) > 1 else found[:1])


def document(rows: dict[str, Row], named: dict[str, list[Test]], outcome: dict[Test, str]) -> str:
    open_rows = [row.id for row in rows.values() if is_open(row, rows, named)]
    untested = collections.Counter(row.kind for row in rows.values() if not named[row.id] and row.id not in open_rows)
    tests = {test for found in named.values() for test in found}
    lines = [HEAD]
    own = sum(map(bool, named.values()))
    lines += [f"{len(rows)} rows. {own} have tests of their own, {len(tests)} in all. The others:", ""]
    lines += [f"- {untested[kind]}: {words}" for kind, words in KINDS.items() if untested[kind]]
    if open_rows:
        lines += textwrap.wrap(f"- {len(open_rows)}: open, {', '.join(open_rows)}", 118, subsequent_indent="  ")
    group = ""
    for row in rows.values():
        if row.group != group:
            group = row.group
            lines += ["", f"## {group}", "", "| id | behaviour | tests | where | result |", "|---|---|---|---|---|"]
        cells = _cells(row, row.id in open_rows, named[row.id], outcome)
        lines.append(f"| {row.id} | {row.behaviour} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def earlier_results(text: str, tests: set[Test]) -> dict[Test, str]:
    """What the document says of its tests."""
    known = {}
    for links, result in re.findall(r"^\| \S+ \| .* \| (\[.*?) \| (?:[^|]*) \| ([^|]*) \|$", text, re.MULTILINE):
        linked = re.findall(r"\[(\w+)\]\(\.\./([^)]+)\)", links)
        of_each = result.split("<br>") if "<br>" in result else [result] * len(linked)
        known |= {(path, name): one for (name, path), one in zip(linked, of_each)}
    return {test: known.get((test.path, test.name), results.NOT_RUN) for test in tests}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true")
    what.add_argument("--check", action="store_true")
    what.add_argument("--ran", type=pathlib.Path, nargs="+", default=[])
    parser.add_argument("--build", type=pathlib.Path)
    parser.add_argument("--results", type=pathlib.Path, nargs="+", default=[])
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    return parser.parse_args()


def main(arguments: argparse.Namespace) -> list[str]:
    root = arguments.root
    text = (root / ROWS).read_text()
    rows, problems = read_rows(text)
    named, strange = named_tests.by_row(named_tests.find(root), rows, (root / named_tests.TABLE).read_text())
    problems += strange
    if arguments.write:
        (root / ROWS).write_text(without_stale_reasons(text, named))
        rows, _ = read_rows((root / ROWS).read_text())
    problems += check_reasons(rows, named)
    if problems:
        return problems
    tests = {test for found in named.values() for test in found}
    if arguments.ran:
        outcome = results.read(arguments.ran, sorted(tests))
        bad = (results.FAILED, results.NOT_RUN)
        return [f"{test.path}: {test.name}: {outcome[test]}" for test in sorted(tests) if outcome[test] in bad]
    old = (root / DOCUMENT).read_text() if (root / DOCUMENT).exists() else ""
    outcome = results.read(arguments.results, sorted(tests)) if arguments.results else earlier_results(old, tests)
    problems += [f"{test.path}: {test.name} failed" for test in sorted(tests) if outcome[test] == results.FAILED]
    if arguments.build:
        problems += results.missing(root, arguments.build, sorted(tests))
    if problems:
        return problems
    new = document(rows, named, outcome)
    if arguments.write:
        (root / DOCUMENT).write_text(new)
    elif new != old:
        problems.append(f"{DOCUMENT}: is out of date, run tests/ancestors/generate.py --write")
        problems += list(difflib.unified_diff(old.splitlines(), new.splitlines(), "is", "should be", "", "", 0, ""))
    return problems


if __name__ == "__main__":
    found = main(parse_arguments())
    print("\n".join(found) or f"{DOCUMENT}: in order")
    sys.exit(1 if found else 0)
