"""Makes docs/bad_inputs.md from bad_inputs.py and bad_inputs.txt.

Usage: bad_inputs_page.py --write        (with the Python of the tests)
"""

from __future__ import annotations

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/bad_inputs.md"
SENT = "tests/integration/test_bad_inputs.py test_a_bad_input"

sys.path[:0] = [str(ROOT / "client/python"), str(ROOT / "tests/ancestors")]

from bad_inputs import CASES, CLASSES  # noqa: E402

INTRODUCTION = """# Bad inputs, and the errors that they get

This page is made by `tests/integration/bad_inputs_page.py --write` from the tests; a test compares it.

You got an error, and look for what it complains of: find the input here. Each row is sent to a daemon by a test. After
each the daemon lives, the next good request is answered, and nothing is lost or kept: gradients that were accumulated,
pipelines, checkpoints, handles and the journal are as before. An error has no path of the daemon's machine, no pointer
and no stack. What a reason means, and who asks again, is in [Errors](reference/errors.md). A *field* is a part of the
name that the error gives in its values; the error gives the *value*, too, shortened.
"""


def elsewhere() -> tuple[list[list[str]], list[list[str]]]:
    """Rows with tests of their own, and those apart."""
    tested, apart = (ROOT / "tests/integration/bad_inputs.txt").read_text().split("== apart\n")
    lines = [line for line in tested.splitlines() if line[:1] not in ("", "#")]
    rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    return rows, [line.split(" | ") for line in apart.splitlines()]


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _code(text: str) -> str:
    return ", ".join(f"`{word}`" for word in text.split(", ")) if text[:1].isupper() else text


def _test(test: str) -> str:
    path, name = test.split(" ")
    return f"[{name.rpartition('.')[2]}](../{path})"


def page() -> str:
    rows, apart = elsewhere()
    lines = INTRODUCTION.splitlines()
    for group, title in CLASSES.items():
        lines += ["", f"## {title}", "", "| input | code | reason | field | test |", "|---|---|---|---|---|"]
        for case in CASES:
            if case.group == group:
                what = f"{case.what} (`{case.method.partition('/')[2]}`)"
                lines.append(_cells(what, _code(case.code), _code(case.reason), f"`{case.field}`" * bool(case.field), _test(SENT)))
        for _, what, code, reason, field, test in (row for row in rows if row[0] == group):
            lines.append(_cells(what, _code(code), _code(reason), f"`{field}`" * bool(field), _test(test)))
    lines += ["", "## Not sent by any test, or otherwise than one may expect", "", "| input | why |", "|---|---|"]
    lines += [_cells(*row) for row in apart]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    PAGE.write_text(page())
