"""Finds the tests of the tree, and which of them show which rows: tests.txt says so."""

import ast
import dataclasses
import pathlib
import re

TABLE = "tests/ancestors/tests.txt"
FOLDERS = ("tests", "client")
CPP_TEST = re.compile(r"^(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\)", re.MULTILINE)


@dataclasses.dataclass(frozen=True, order=True)
class Test:
    path: str  # of the source, relative to the root
    suite: str  # "" in Python
    name: str


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
    """All tests of the tree, in order of path and place."""
    tests = []
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            relative = str(path.relative_to(root))
            if path.suffix in (".cc", ".h"):
                tests += _cpp_tests(relative, path.read_text())
            elif re.fullmatch(r"test_.*\.py", path.name):
                tests += _python_tests(relative, path.read_text())
    return tests


def by_row(tests: list[Test], rows: dict, table: str) -> tuple[dict[str, list[Test]], list[str]]:
    """Tests by the rows that the table says they show; a problem for each line with a test or a row that there is not."""
    named: dict[str, list[Test]] = {row: [] for row in rows}
    known = set(tests)
    problems = []
    for number, line in enumerate(table.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        where, _, ids = line.partition(": ")
        path, _, name = where.partition(" ")
        suite, dot, case = name.rpartition(".")
        test = Test(path, suite if dot else "", case)
        if test not in known:
            problems.append(f"{TABLE}:{number}: there is no such test: {where}")
        for row in ids.split(", "):
            if row not in rows or test in named[row]:
                problems.append(f"{TABLE}:{number}: {row} is no row, or stands twice: {line}")
            else:
                named[row].append(test)
    return {row: sorted(found) for row, found in named.items()}, problems
