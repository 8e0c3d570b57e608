"""Writes modules of the synchronous client from those of the asyncio client.

Usage: unasync.py [--check]

Takes `async` and `await` out of the code, turns `penstock.aio` into `penstock` and names of asyncio's protocols into
those without. What can't be the same in both lies in pairs of modules with one interface, written by hand: `attempts`,
`settling`, `showing`, `off_loop`, `pipelines`, `streamed`. With --check it writes nothing and fails if a file differs from what
would be written.
"""

import io
import pathlib
import re
import sys
import tokenize

PACKAGE = pathlib.Path(__file__).resolve().parents[1] / "penstock"
MODULES = (
    "checkpoints.py",
    "client.py",
    "connection.py",
    "evaluation.py",
    "handles.py",
    "models.py",
    "reading.py",
    "resources.py",
    "state.py",
    "uploads.py",
    "work.py",
)
NAMES = {
    "AbstractAsyncContextManager": "AbstractContextManager",
    "AsyncGenerator": "Generator",
    "AsyncIterator": "Iterator",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "aclosing": "closing",
    "anext": "next",
    "asynccontextmanager": "contextmanager",
}
HEADER = "# Written by client/python/tools/unasync.py from penstock/aio/{name}; change that file instead.\n"


def synchronous(source: str) -> str:
    """The source of a module without `async` and `await`, for the synchronous client.

    Raises:
        ValueError: an `await` ends its line, or a name has no synchronous counterpart here.
    """
    lines = source.splitlines(keepends=True)
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    # From the end, so that the columns of earlier tokens stay.
    for token, following in reversed(list(zip(tokens, tokens[1:]))):
        if token.type != tokenize.NAME:
            continue
        row, column = token.start
        line = lines[row - 1]
        if token.string in ("async", "await"):
            if following.type == tokenize.NL:
                raise ValueError(f"line {row}: '{token.string}' ends its line")
            lines[row - 1] = line[:column] + line[following.start[1] :]
        elif token.string in NAMES:
            lines[row - 1] = line[:column] + NAMES[token.string] + line[token.end[1] :]
        elif token.string.startswith(("Async", "Await", "async")):
            raise ValueError(f"line {row}: '{token.string}' has no synchronous name")
    return re.sub(r"\bpenstock\.aio\b", "penstock", "".join(lines))


def main() -> int:
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        print(__doc__)
        return 2
    stale = 0
    for name in MODULES:
        path = PACKAGE / name
        text = HEADER.format(name=name) + synchronous((PACKAGE / "aio" / name).read_text())
        if not check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            print(f"penstock/{name} differs from what penstock/aio/{name} gives: run client/python/tools/unasync.py")
            stale += 1
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
