"""The page of the Python client's names: signatures and docstrings, read from its sources without importing them."""

from __future__ import annotations

import ast
import pathlib
import re

Function = ast.FunctionDef | ast.AsyncFunctionDef


def own_module(node: ast.ImportFrom) -> str | None:
    """The module of this package that an import names; None for another package's."""
    module = node.module or ""
    return module.removeprefix("penstock").lstrip(".") if node.level or module.split(".")[0] == "penstock" else None


def exported(package: pathlib.Path) -> dict[str, str]:
    """Each public name of the package, with the module that defines it."""
    tree = ast.parse((package / "__init__.py").read_text())
    homes = {
        alias.asname or alias.name: own_module(node) or ""
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    (names,) = (node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__")
    return {name: homes[name] for name in ast.literal_eval(names)}


def definition(package: pathlib.Path, module: str, name: str) -> ast.ClassDef | Function | None:
    """The class or function of that name, also where the module takes it from another one."""
    tree = ast.parse((package / f"{module.replace('.', '/')}.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.ClassDef | Function) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == name for alias in node.names):
            home = own_module(node)
            return definition(package, home, name) if home else None
    return None


def signature(function: Function, *, method: bool) -> str:
    arguments = ast.unparse(function.args)
    if method and not any(ast.unparse(d) == "staticmethod" for d in function.decorator_list):
        arguments = arguments.partition(", ")[2] if ", " in arguments else ""
    returns = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    start = "async " if isinstance(function, ast.AsyncFunctionDef) else ""
    return f"{start}{function.name}({arguments}){returns}"


def docstring(node: ast.ClassDef | Function) -> str:
    """As Markdown: sections (Args, Raises, ...) become lists, an example a code block."""
    said, items = [], False
    text = (ast.get_docstring(node) or "").replace("<", "&lt;")
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text.replace("``", "`"))  # roles and code of reStructuredText
    for line in text.splitlines():
        if heading := re.fullmatch(r"(Args|Attributes|Raises|Returns|Yields):", line):
            said += [f"**{heading[1]}**", ""]
            items = True
        elif items and re.match(r" {4}[\w, *]+: ", line):
            name, _, what = line.strip().partition(": ")
            said.append(f"- `{name}`: {what}")
        elif items and line.startswith("     "):
            said.append("  " + line.strip())
        else:
            items = items and (not line or line.startswith("    "))
            said.append(line.strip() if items else line.replace("::", ":") if line.endswith("::") else line)
    return "\n" + "\n".join(said) + "\n" if said else ""


def is_property(function: Function) -> bool:
    return any(ast.unparse(d) in ("property", "functools.cached_property", "cached_property") for d in function.decorator_list)


def class_text(package: pathlib.Path, module: str, node: ast.ClassDef) -> str:
    text = docstring(node)
    fields = [item for item in node.body if isinstance(item, ast.AnnAssign) and not ast.unparse(item.target).startswith("_")]
    if fields:
        text += "\n```python\n" + "\n".join(ast.unparse(field) for field in fields) + "\n```\n"
    for item in node.body:
        if not isinstance(item, Function) or (item.name.startswith("_") and item.name != "__init__"):
            continue
        if item.name == "__init__" and not ast.get_docstring(item) and not item.args.args[1:] and not item.args.kwonlyargs:
            continue
        shown = item.name if is_property(item) else signature(item, method=True)
        if is_property(item) and item.returns:
            shown += f": {ast.unparse(item.returns)}"
        text += f"\n```python\n{shown}\n```\n" + docstring(item)
    for base in node.bases:  # what it has from a base of this package
        found = definition(package, module, ast.unparse(base).partition("[")[0])
        if isinstance(found, ast.ClassDef):
            text += class_text(package, module, found).replace(docstring(found), "", 1)
    return text


def page(package: pathlib.Path, made: str) -> str:
    text = (
        f"# Python\n\n{made}\n`import penstock`; the asyncio client has the same names under `penstock.aio`, with coroutines. "
        "[By example](../../client/python/README.md).\n"
    )
    for name, module in sorted(exported(package).items(), key=lambda item: item[0].lower()):
        node = definition(package, module, name) if module else None
        if node is None:  # a module
            continue
        text += f"\n## {name}\n"
        if isinstance(node, ast.ClassDef):
            text += class_text(package, module, node)
        else:
            text += f"\n```python\n{signature(node, method=False)}\n```\n{docstring(node)}"
    return text
