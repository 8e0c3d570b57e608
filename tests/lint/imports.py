"""Looks for circles among the modules of the Python client. Imports for types, and inside functions, count too."""

import ast
import pathlib

import tree

FOLDER = pathlib.Path("client/python")


def module_of(path: pathlib.Path) -> str:
    """The dotted name of a file relative to the folder of the package."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(source: str, modules: set[str]) -> set[str]:
    """Those of `modules` that a source names in an import, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            # What is no module of the package is a name in it.
            found.update(
                name if (name := f"{node.module}.{alias.name}") in modules else node.module for alias in node.names
            )
    return found & modules


def circle_through(start: str, arrows: dict[str, set[str]]) -> list[str] | None:
    """A shortest circle from a module back to itself."""
    paths = [[start]]
    seen = set()
    for path in paths:
        for following in sorted(arrows[path[-1]]):
            if following == start:
                return path
            if following not in seen:
                seen.add(following)
                paths.append([*path, following])
    return None


def check(root: pathlib.Path) -> list[str]:
    files = tree.files(root / FOLDER, (".py",), ("penstock",))
    modules = {module_of(path): (root / FOLDER / path).read_text() for path in files}
    arrows = {module: imported(source, set(modules)) for module, source in modules.items()}
    circles: dict[frozenset[str], list[str]] = {}
    for module in sorted(modules):
        if circle := circle_through(module, arrows):
            circles.setdefault(frozenset(circle), circle)
    return [f"{FOLDER}: imports in a circle: {' -> '.join([*circle, circle[0]])}" for circle in circles.values()]


if __name__ == "__main__":
    tree.main(check, "imports")
