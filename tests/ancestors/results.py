"""What became of the tests: from the XML files of a run; and whether their programs have them: from the programs."""

import json
import pathlib
import subprocess
import xml.etree.ElementTree as xml

from named_tests import Test

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"
NO_GPU = "skipped: no GPU"


def _result(case: xml.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return FAILED
    skipped = case.find("skipped")
    if skipped is not None or case.get("result") == "skipped":
        message = (skipped.get("message") if skipped is not None else None) or ""
        return NO_GPU if "no GPU" in message else "skipped"
    return NOT_RUN if case.get("status") == "notrun" else PASSED


def _worst(results: list[str]) -> str:
    """Of a test that ran several times: with parameters, types, or on machines with a GPU and without."""
    for result in (FAILED, PASSED, NO_GPU, "skipped"):
        if result in results:
            return result
    return NOT_RUN


def read(folders: list[pathlib.Path], tests: list[Test]) -> dict[Test, str]:
    """The results that GoogleTest (GTEST_OUTPUT) and pytest (--junitxml) have left in folders."""
    seen: dict[tuple[str, str], list[str]] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*.xml")):
            for case in xml.parse(path).getroot().iter("testcase"):
                name = case.get("name", "").split("/")[0].split("[")[0]
                for suite in case.get("classname", "").replace(".", "/").split("/"):
                    seen.setdefault((suite, name), []).append(_result(case))
    keys = {test: (test.suite or pathlib.Path(test.path).stem, test.name) for test in tests}
    return {test: _worst(seen.get(key, [])) for test, key in keys.items()}


def _commands(build: pathlib.Path) -> list[list[str]]:
    """What ctest runs, each with its arguments."""
    shown = subprocess.run(["ctest", "--test-dir", str(build), "--show-only=json-v1"], capture_output=True, check=True)
    return [test["command"] for test in json.loads(shown.stdout)["tests"] if test.get("command")]


def _programs(build: pathlib.Path, commands: list[list[str]]) -> dict[str, list[str]]:
    """The programs of ctest by the source files that they are made of; headers count with the sources beside them."""
    paths = {pathlib.Path(command[0]).name: command[0] for command in commands}
    programs: dict[str, list[str]] = {}
    for line in (build / "targets.txt").read_text().splitlines():
        target, _, folder, sources, _ = line.split("\t")
        for source in sources.split(";"):
            if target in paths:
                path = str(pathlib.Path(folder, source))
                programs.setdefault(path, []).append(paths[target])
                programs.setdefault(str(pathlib.Path(path).parent), []).append(paths[target])
    return programs


def _listed(program: str) -> set[tuple[str, str]]:
    shown = subprocess.run([program, "--gtest_list_tests"], capture_output=True, text=True, timeout=120, check=True)
    listed, suites = set(), []
    for line in shown.stdout.splitlines():
        words = line.split("#")[0]
        if words.startswith("  "):
            listed |= {(suite, words.strip().split("/")[0]) for suite in suites}
        else:
            suites = words.strip().rstrip(".").split("/")
    return listed


def missing(root: pathlib.Path, build: pathlib.Path, tests: list[Test]) -> list[str]:
    """A problem for every C++ test that no program of ctest has, and every Python test whose file ctest does not run."""
    commands = _commands(build)
    programs = _programs(build, commands)
    arguments = {argument for command in commands for argument in command[1:]}
    listed: dict[str, set[tuple[str, str]]] = {}
    problems = []
    for test in tests:
        source = root / test.path
        if not test.suite:
            if not any(str(place) in arguments for place in (source, *source.parents)):
                problems.append(f"{test.path}: ctest does not run this file")
            continue
        candidates = programs.get(str(source if source.suffix == ".cc" else source.parent), [])
        for program in candidates:
            if program not in listed:
                try:
                    listed[program] = _listed(program)
                except (OSError, subprocess.SubprocessError) as error:
                    listed[program] = set()
                    problems.append(f"{program}: {error}")
        if not any((test.suite, test.name) in listed[program] for program in candidates):
            problems.append(f"{test.path}: no program of ctest has {test.suite}.{test.name}")
    return problems
