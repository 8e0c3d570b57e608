"""Checks that links in README and docs lead somewhere, and that paths named in them exist.

A link of the form [text](target) must resolve, its #anchor must be a heading there. A word in backquotes that begins with
a folder of the tree and looks like a path must exist; `{h,cc}`, `*` and <placeholders> are understood as patterns,
and `engine/base/file` stands for its header and source.
Addresses on the network are not looked up.
"""

import itertools
import pathlib
import re

import tree

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"(?:\./)?(?:engine|server|client|proto|deploy|tests|docs|cmake)/[\w./*{},-]+")


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+\s+(.*?)\s*#*$", _without_code_blocks(text), re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found.add(next(a for a in itertools.chain([plain], (f"{plain}-{n}" for n in itertools.count(1))) if a not in found))
    return found


def _without_code_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def _braces(pattern: str) -> list[str]:
    match = re.search(r"\{([^{}]*)\}", pattern)
    if not match:
        return [pattern]
    return [p for word in match[1].split(",") for p in _braces(pattern[: match.start()] + word + pattern[match.end() :])]


def check_page(root: pathlib.Path, page: pathlib.Path) -> list[str]:
    text = _without_code_blocks((root / page).read_text())
    problems = []
    for target in (a or b for a, b in _LINK.findall(_CODE.sub("", text))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        goal = (root / page).parent / name if name else root / page
        if not goal.exists():
            problems.append(f"{page}: link to {target}, which does not exist")
        elif anchor and goal.suffix == ".md" and anchor not in anchors(goal.read_text()):
            problems.append(f"{page}: link to {target}, but {name or page} has no such heading")
    for word in _CODE.findall(text):
        if _PATH.fullmatch(word):
            for pattern in _braces(word.removeprefix("./").rstrip("/.,")):
                if not any(root.glob(pattern)) and not any(root.glob(f"{pattern}.*")):
                    problems.append(f"{page}: names {pattern}, which does not exist")
    return problems


def check(root: pathlib.Path) -> list[str]:
    pages = tree.files(root, (".md",), (".",))
    return [problem for page in pages for problem in check_page(root, page)]


if __name__ == "__main__":
    tree.main(check, "links")
