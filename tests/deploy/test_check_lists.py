"""The check lists hold: each answer stands in its file, each test that is named exists, and what is missing says why."""

from __future__ import annotations

import re

import pytest
from check_lists import DRIFT_PAIRS, REVIEWERS_LIST, Row
from conftest import ROOT


def problems_of(row: Row) -> list[str]:
    found = [
        f"{file} has no {text!r}"
        for file, text in row.where.items()
        if not (ROOT / file).exists() or text not in (ROOT / file).read_text()
    ]
    for test in row.tests:
        file, _, name = test.partition("::")
        suite, _, case = name.partition(".")
        pattern = rf"^TEST(_F|_P)?\({suite}, {case}\)" if file.endswith(".cc") else rf"^def {name}\("
        if not (ROOT / file).exists() or not re.search(pattern, (ROOT / file).read_text(), re.MULTILINE):
            found.append(f"there is no test {test}")
    if not row.tests and not row.missing:
        found.append("neither a test nor a reason")
    return found


@pytest.mark.parametrize("row", [*REVIEWERS_LIST, *DRIFT_PAIRS], ids=lambda row: row.asked.partition(":")[0])
def test_each_row_is_answered(row: Row) -> None:
    assert not problems_of(row)


def test_the_lists_are_whole() -> None:
    """As many rows as were asked for: one that is dropped must be dropped here too."""
    assert (len(REVIEWERS_LIST), len(DRIFT_PAIRS)) == (17, 13)


def test_what_is_not_there_is_found() -> None:
    assert problems_of(Row("x", {"README.md": "nobody wrote this"}, ("README.md::test_x",)))
    assert problems_of(Row("x", {}, ("tests/deploy/test_check_lists.py::test_of_nothing",)))
    assert problems_of(Row("x", {}, ()))
