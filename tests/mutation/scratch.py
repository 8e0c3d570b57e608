"""A copy of the tree, below build/, in which mutations are applied, built and run: the tree itself is never touched."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import time

from mutations import Mutation

PRESET = "mutation"  # a mutation compiles one file
SKIPPED = 77

_SEEN_BY = (  # in the order in which they say more
    re.compile(r"^\[  FAILED  \] ([\w/.]+)", re.MULTILINE),
    re.compile(r"^(?:FAILED|ERROR) \S*?([\w.]+::[^ \n]+)", re.MULTILINE),
    re.compile(r"^(?:FAIL|ERROR): (\w+)", re.MULTILINE),
)
_RUNNING = re.compile(r"^\[ RUN      \] ([\w/.]+)", re.MULTILINE)


class Scratch:
    """Not for two processes at once: give each a folder of its own."""

    def __init__(self, root: pathlib.Path, folder: pathlib.Path, jobs: int, build_prefix: list[str]):
        self._root, self._folder, self._jobs, self._build_prefix = root, folder, jobs, build_prefix
        self._build = folder / "build" / PRESET
        self._tests: dict[str, dict] = {}

    def update(self) -> None:
        """Copies what git would commit, as it stands now. What is the same keeps its time, and isn't built again."""
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=self._root, capture_output=True, check=True, text=True,
        )
        wanted = [name for name in listed.stdout.split("\0") if name and (self._root / name).is_file()]
        for name in wanted:
            self._copy(name)
        (self._folder / "build").mkdir(parents=True, exist_ok=True)
        for part in self._folder.iterdir():
            if part.name != "build":
                self._drop_others(part, frozenset(wanted))
        dependencies = self._folder / "build/deps"
        if not dependencies.is_symlink():
            dependencies.symlink_to((self._root / "build/deps").resolve())

    def _copy(self, name: str) -> None:
        source, target = self._root / name, self._folder / name
        if target.is_file() and target.read_bytes() == source.read_bytes():
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
        target.chmod(source.stat().st_mode)

    def _drop_others(self, part: pathlib.Path, wanted: frozenset[str]) -> None:
        for path in [part, *part.rglob("*")]:
            if path.is_file() and str(path.relative_to(self._folder)) not in wanted:
                path.unlink()

    def configure(self) -> None:
        subprocess.run(["cmake", "--preset", PRESET], cwd=self._folder, check=True, stdout=subprocess.DEVNULL)

    def _test(self, program: str) -> dict:
        """The test as ctest knows it, with its command, which it has once it is built."""
        if "command" not in self._tests.get(program, {}):
            shown = subprocess.run(
                ["ctest", "--test-dir", self._build, "--show-only=json-v1"], capture_output=True, check=True
            )
            self._tests = {test["name"]: test for test in json.loads(shown.stdout)["tests"]}
        if "command" not in self._tests.get(program, {}):
            raise SystemExit(f"ctest knows no test {program}")
        return self._tests[program]

    @contextlib.contextmanager
    def mutated(self, mutation: Mutation):
        """Its file has the fault while this is entered; `prepare` runs after the change and after its end."""
        path = self._folder / mutation.file
        right = path.read_text()
        path.write_text(right.replace(mutation.old, mutation.new))
        try:
            self._prepare(mutation.prepare)
            yield
        finally:
            path.write_text(right)
            self._prepare(mutation.prepare)

    def _prepare(self, command: list[str]) -> None:
        if command:
            subprocess.run(command, cwd=self._folder, check=True, stdout=subprocess.DEVNULL)

    def build(self, programs: list[str]) -> tuple[bool, str]:
        """Whether what the programs need builds, and the end of what the compiler says."""
        targets = [target for program in programs for target in targets_of(program)]
        if not targets:
            return True, ""
        command = [*self._build_prefix, "ninja", "-C", self._build, f"-j{self._jobs}", *dict.fromkeys(targets)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        return done.returncode == 0, done.stdout[-4000:]

    def run(self, program: str, limit: float) -> tuple[int | None, str, float]:
        """The program's exit code, or None past the limit in seconds; its output; how long it took."""
        test = self._test(program)
        properties = {entry["name"]: entry["value"] for entry in test.get("properties", [])}
        environment = dict(os.environ, GTEST_FAIL_FAST="1", PYTEST_ADDOPTS="-x")
        environment.update(pair.split("=", 1) for pair in properties.get("ENVIRONMENT", []))
        began = time.monotonic()
        process = subprocess.Popen(
            test["command"], cwd=properties.get("WORKING_DIRECTORY"), env=environment, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        )
        try:
            output, _ = process.communicate(timeout=limit)
            code = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            code = None
        return code, output, time.monotonic() - began


def targets_of(program: str) -> list[str]:
    """What ninja builds for a test of ctest: itself; for a test of a real daemon the programs; nothing for Python."""
    if program.endswith("_test"):
        return [program]
    if program.startswith(("integration_", "own_models_", "observability_", "deploy_")):
        return ["penstockd", "penstock", "test_layers"]
    return []


def case_in(output: str) -> str:
    """The name of the case that failed, or that ran when the program ended."""
    for pattern in _SEEN_BY:
        if found := pattern.search(output):
            return found[1]
    running = _RUNNING.findall(output)
    return running[-1] if running else "the program as a whole"
