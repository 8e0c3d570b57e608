"""Finds the tests whose names begin with ids of rows: MB_6_FollowsTheKnownTable, test_PIPE_1_chunks_positive, ...

A name may begin with several ids (CKPT_4_CKPT_7_...). An id of section S8 or PEERS is a lower-case phrase, so where one
ends is known from the rows: the longest that fits. After S8_pipe_small its group need not be said again (..._chunks_1).
"""

import ast
import dataclasses
import pathlib
import re

GROUPS = "U MB PIPE SCH STR DEP WRK RREF DDP CKPT DBN SKIP BAL ASY EXP ISS DEF".split()
PHRASES = ("S8", "PEERS")
FOLDERS = ("tests", "client")
CPP_TEST = re.compile(r"^(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\)", re.MULTILINE)
NUMBERED = re.compile(rf"({'|'.join(GROUPS)})_(D?\d+)(?:_|$)")
PHRASE = re.compile(rf"({'|'.join(PHRASES)})_")


@dataclasses.dataclass(frozen=True, order=True)
class Test:
    path: str  # of the source, relative to the root
    suite: str  # "" in Python
    name: str


def _phrase(rest: str, rows: dict, group: str = "") -> str | None:
    """The longest row of the group that the text begins with."""
    known = [row for row in rows if row.startswith(group) and f"{group}{rest}_".startswith(f"{row}_")]
    return max(known, key=len, default=None)


def ids_of(name: str, rows: dict) -> tuple[list[str], list[str]]:
    """The ids that a test's name begins with, and those among them that are no rows."""
    rest = name.removeprefix("test_")
    found, unknown, group = [], [], None
    while rest:
        if match := NUMBERED.match(rest):
            row, rest, group = f"{match[1]}-{match[2]}", rest[match.end() :], None
        elif match := PHRASE.match(rest):
            row = _phrase(rest, rows) or re.match(r"[A-Z0-9]+(?:_[a-z0-9]+)*", rest)[0]
            rest = rest[len(row) :].removeprefix("_")
            group = "_".join(row.split("_")[:2]) + "_"  # S8_pipe_small_chunks_1: two items of one group
        elif group and (row := _phrase(rest, rows, group)):
            rest = rest[len(row) - len(group) :].removeprefix("_")
        else:
            break
        (found if row in rows else unknown).append(row)
    return found, unknown


def _cpp_tests(path: str, text: str) -> list[Test]:
    return [Test(path, suite, name) for suite, name in CPP_TEST.findall(text)]


def _python_tests(path: str, text: str) -> list[Test]:
    """Functions that pytest collects, without those that are always skipped or expected to fail."""
    tests = []
    for node in ast.parse(text).body:
        for function in node.body if isinstance(node, ast.ClassDef) else [node]:
            if not isinstance(function, ast.FunctionDef) or not function.name.startswith("test_"):
                continue
            marks = [ast.unparse(decorator) for decorator in function.decorator_list]
            if not any(re.search(r"mark\.(skip\b|xfail)", mark) for mark in marks):
                tests.append(Test(path, "", function.name))
    return tests


def find(root: pathlib.Path) -> list[Test]:
    """All tests of the tree, with ids or without, in order of path and place."""
    tests = []
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            relative = str(path.relative_to(root))
            if path.suffix in (".cc", ".h"):
                tests += _cpp_tests(relative, path.read_text())
            elif re.fullmatch(r"test_.*\.py", path.name):
                tests += _python_tests(relative, path.read_text())
    return tests


def by_row(tests: list[Test], rows: dict) -> tuple[dict[str, list[Test]], list[str]]:
    """Tests by the rows that they name, and a problem for every id that no row has."""
    named: dict[str, list[Test]] = {row: [] for row in rows}
    problems = []
    for test in tests:
        found, unknown = ids_of(test.name, rows)
        for row in found:
            named[row].append(test)
        problems += [f"{test.path}: {test.name} names {row}, and there is no such row" for row in unknown]
    return named, problems
