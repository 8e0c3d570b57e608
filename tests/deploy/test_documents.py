"""Drift of documents from programs: flags, versions, commands and exit codes in pages, health services."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shlex
import subprocess

import pytest
from conftest import PENSTOCK, PENSTOCKD, ROOT
from daemon_process import Daemon
from manifests import Document
from test_manifests import project_version

PAGE = ROOT / "docs" / "deployment.md"


def penstock(*arguments: str) -> str:
    return subprocess.run([PENSTOCK, *arguments], capture_output=True, text=True, check=True).stdout


def test_the_table_of_flags_is_the_daemons(flags: dict[str, Document]) -> None:
    match = re.search(r"<!-- flags.*?-->\n(.*?)\n<!-- end of flags -->", PAGE.read_text(), re.S)
    assert match
    rows = ["| flag | default | what it says |", "|---|---|---|"]
    for flag in flags.values():
        assert flag["help"], flag["name"]
        default = flag["default"] or ("none" if flag["repeated"] else "see there")
        rows.append(f"| `--{flag['name']}` | {default} | {flag['help']} |")
    if os.environ.get("PENSTOCK_UPDATE_GOLDEN"):
        PAGE.write_text(PAGE.read_text().replace(match[1], "\n".join(rows)))
    assert match[1].splitlines() == rows, "PENSTOCK_UPDATE_GOLDEN=1 rewrites the table"


@pytest.mark.parametrize("form", ["flag", "environment", "file"])
def test_every_flag_has_three_forms(form: str, flags: dict[str, Document], tmp_path: pathlib.Path) -> None:
    """One name, three forms, all accepted with the default as the value; a wrong value is refused by that name."""
    certificates = tmp_path / "certificates"
    subprocess.run([ROOT / "deploy/dev_certs.sh", certificates], check=True)
    (certificates / "map").write_text("spiffe://penstock/admin admin *\n")
    (certificates / "tokens").write_text("")
    values = {name: flag["default"] for name, flag in flags.items() if flag["default"]}
    values |= {"tls-cert": f"{certificates}/server.crt", "tls-key": f"{certificates}/server.key",
               "tls-client-ca": f"{certificates}/ca.crt", "identity-map": f"{certificates}/map",
               "token-file": f"{certificates}/tokens"}  # fmt: skip
    values |= {"rank": "0", "world-size": "2", "leader": "127.0.0.1:8475", "peer-listen": "127.0.0.1:8475"}
    values |= {"state-dir": str(tmp_path / "state"), "model-root": str(tmp_path), "device": "cpu:0", "device-memory": "cpu:0=1GiB",
               "layer-library": os.environ["PENSTOCK_TEST_LAYERS"], "handle-spill-root": str(tmp_path),
               "audit-log": str(tmp_path / "audit"), "otlp-file": str(tmp_path / "spans"), "otlp-endpoint": "http://localhost:4318"}  # fmt: skip
    assert values.keys() == flags.keys(), "a flag without a default needs a value here"
    for name in values:
        assert flags[name]["environment"] == "PENSTOCK_" + name.upper().replace("-", "_")

    def check(values: dict[str, str]) -> tuple[int, str]:
        arguments, environment = [], {}
        if form == "flag":
            arguments = [f"--{name}={value}" for name, value in values.items()]
        elif form == "environment":
            environment = {flags[name]["environment"]: value for name, value in values.items()}
        else:
            config = tmp_path / "penstockd.toml"
            config.write_text("".join(f'{name} = "{value}"\n' for name, value in values.items()))
            arguments = [f"--config={config}"]
        done = subprocess.run([PENSTOCKD, "--check-config", *arguments], env=environment, capture_output=True, text=True)
        return done.returncode, done.stderr

    assert check(values)[0] == 0
    code, problem = check({**values, "drain-finish": "soon"})
    shown = flags["drain-finish"]["environment"] if form == "environment" else "drain-finish"
    assert code == 2 and shown in problem and "soon" in problem


def test_one_version() -> None:
    version = project_version()
    assert penstock("version", "-o", "name").strip() == version and penstock("--version") == f"penstock {version}\n"
    assert subprocess.run([PENSTOCKD, "--version"], capture_output=True, text=True).stdout == f"penstockd {version}\n"
    assert f'version = "{version}"' in (ROOT / "client" / "python" / "pyproject.toml").read_text()
    labels = (ROOT / "deploy" / "kustomize" / "components" / "labels" / "kustomization.yaml").read_text()
    assert f'app.kubernetes.io/version: "{version}"' in labels
    assert f'newTag: "{version}"' in (ROOT / "deploy" / "kustomize" / "base" / "kustomization.yaml").read_text()
    assert re.findall(r"^## (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)[0] == version


def test_a_running_daemon_tells_its_version(tmp_path: pathlib.Path) -> None:
    version = project_version()
    daemon = Daemon(tmp_path, "--drain-announce=0s")
    daemon.start()
    try:
        ((labels, value),) = daemon.metrics().select("penstock_build_info")
        assert value == 1 and labels["version"] == version and labels["torch"].startswith("2.11.0")
        status = json.loads(penstock("--server", daemon.address, "status", "-o", "json"))
        assert version in json.dumps(status)
        daemon.stop()
    finally:
        daemon.kill()


def commands_in(text: str) -> list[list[str]]:
    """Every line of a code block that calls the command line, without what the shell does with it."""
    found = []
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.S | re.M):
        if language not in ("", "sh"):
            continue
        for line in block.replace("\\\n", " ").splitlines():
            match = re.match(r"(?:\$penstock|penstock) (.*)", line)
            if match:
                words = shlex.split(match[1], comments=True)
                found.append(words)
    return found


def known() -> dict[str, str]:
    """Each command with its line in the list of commands."""
    lines = penstock("--dump=commands").splitlines()
    return {re.match(r"(?:[a-z]+ ?)+(?= |$)", line)[0].strip(): line for line in lines}  # type: ignore[index]


def problems_with(words: list[str], commands: dict[str, str]) -> str:
    name = next((" ".join(words[:n]) for n in (2, 1) if " ".join(words[:n]) in commands), None)
    if name is None:
        return f"no such command: {words}"
    top = ("--server", "--caller", "--output", "-o", "--timeout", "--request-id", "--no-color", "--grpc-exit-codes")
    for word in words:
        option = word.split("=")[0]
        if option.startswith("-") and option not in top and not re.search(rf"[\[, ]{re.escape(option)}[\], ]", commands[name]):
            return f"{name} has no {option}"
    return ""


@pytest.mark.parametrize("page", ["docs/cli.md", "docs/deployment.md"])
def test_commands_in_pages_exist(page: str) -> None:
    calls = commands_in((ROOT / page).read_text())
    assert len(calls) > 4
    commands = known()
    assert not [problem for call in calls if (problem := problems_with(call, commands))]
    assert problems_with(["pipeline", "crate", "x"], commands) and problems_with(["train", "x", "--txet", "y"], commands)


def test_exit_codes_in_pages_are_those_of_the_program(tmp_path: pathlib.Path) -> None:
    """The page's line, each code provoked: 4 by a daemon that is at its end, 5 by a call that it refuses by quota."""
    line = re.search(r"Exit codes: (.*)\.$", (ROOT / "docs" / "cli.md").read_text(), re.M)
    assert line
    told = {int(code): meaning for code, meaning in (part.split(" ", 1) for part in line[1].split(", "))}
    assert told == {
        0: "success",
        1: "any other failure",
        2: "usage",
        3: "unreachable",
        4: "not ready",
        5: "refused by a quota",
        6: "partial success",
        7: "unstable measurement",  # nobody can provoke one at will
    }

    def code(*arguments: str) -> int:
        return subprocess.run([PENSTOCK, "--server", daemon.address, *arguments], capture_output=True).returncode

    daemon = Daemon(tmp_path, "--drain-announce=60s", "--max-pipelines=1")
    assert code("--timeout", "1", "status") == 3
    daemon.start()
    try:
        assert code("status") == 0
        assert code("statsu") == 2
        assert code("pipeline", "get", "nobody") == 1
        assert code("handle", "release", f"pipelines/nobody/handles/00000001-{0:032x}") == 6
        create = ("--model", "mlp", "--stages", "2", "--loss", "cross_entropy")
        assert code("pipeline", "create", "one", *create) == 0
        assert code("pipeline", "create", "two", *create) == 5
        daemon.terminate()
        while code("health", "liveness") == 0 and code("health", "readiness") == 0:
            assert daemon.alive()
        assert code("health", "readiness") == 4
        daemon.terminate()
        assert daemon.wait() == 1
    finally:
        daemon.kill()


def test_daemon_flags_in_pages_exist(flags: dict[str, Document]) -> None:
    others = {"config", "check-config", "dump", "help", "version"}
    for page in ("docs/cli.md", "docs/deployment.md"):
        for line in re.findall(r"penstockd (--[^`\n]*)", (ROOT / page).read_text()):
            for name in re.findall(r"--([a-z-]+)", line):
                assert name in flags.keys() | others, (page, name)


def test_the_page_of_threads_names_those_of_the_daemon() -> None:
    sources = [path for room in ("engine", "server") for path in (ROOT / room).rglob("*") if path.suffix in (".cc", ".h")]
    started = {name for path in sources for name in re.findall(r'"(ps-[a-z-]+)"', path.read_text())}
    table = (ROOT / "docs" / "thread_model.md").read_text().split("\n## ")[0]
    named = {re.sub(r"-?[0-9]+$", "-", name) for name in re.findall(r"`(ps-[a-z0-9-]+)`", table)}
    assert named - {"ps-cpu-", "ps-cuda-"} == started - {"ps-"}  # those of devices are made of their names


WALK = re.compile(r"^\| `([\w/]+\.cc)` \| `([\w:]+)` \| (?:`ps-[\w-]+`, \.\.\.|`ps-\w+`|[\w' ]+) \| [^|]+ \|$", re.M)
STEP = re.compile(r"^\| \d+ \| `([\w/.]+)` \| ((?:`[\w:.]+`(?:, )?)*) ?\| [^|]+ \|$", re.M)
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))


def defines(file: str, name: str) -> bool:
    """Whether a source has this function, type, message or gRPC service, or this `Suite.Case` of a test."""
    forms = [rf"(?:[\w:<>*&, ]+[ *&])?{name}\(", rf" *(?:class|struct|message|service|def) {name}\b"]
    if "." in name:
        forms = [rf"TEST(?:_[FP])?\({name.replace('.', ', ')}\)"]
    return re.search(rf"^(?:{'|'.join(forms)})", (ROOT / file).read_text(), re.M) is not None


@pytest.mark.parametrize("page, steps", [("life_of_a_step.md", 25), ("life_of_a_request.md", 22)])
def test_the_walks_name_functions_of_their_files(page: str, steps: int) -> None:
    rows = WALK.findall((ROOT / "docs" / page).read_text())
    assert len(rows) == steps, "a row is not of the form that this test reads, or is new"
    for file, function in rows:
        assert defines(file, function), (file, function)


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_the_guides_name_what_their_files_have(page: pathlib.Path) -> None:
    text = page.read_text()
    rows = STEP.findall(text)
    assert len(rows) == len(re.findall(r"^\| \d", text, re.M)) > 4, "a row is not of the form that this test reads"
    for file, names in rows:
        assert (ROOT / file).is_file(), file
        assert not [name for name in re.findall(r"`(.+?)`", names) if not defines(file, name)], (file, names)


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_the_changes_of_the_guides_apply_to_the_tree(page: pathlib.Path) -> None:
    (diff,) = re.findall(r"^```diff\n(.*?)^```", page.read_text(), re.M | re.S)
    done = subprocess.run(["git", "apply", "--check", "-"], input=diff, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_health_services_in_pages_are_the_probes() -> None:
    from manifests import GROUPS, OVERLAYS, rendered

    table = re.findall(r"^\| `(\w+)`(?:, and the empty name)? \| ", PAGE.read_text().split("## Probes")[1], re.M)[:3]
    for overlay in set(OVERLAYS) - set(GROUPS):  # ranks are probed by HTTP, too: test_manifests.py
        container = rendered(overlay).container
        assert [container[f"{name}Probe"]["grpc"]["service"] for name in table] == table == ["startup", "liveness", "readiness"]


def test_json_of_doctor_and_config_is_one_document() -> None:
    done = subprocess.run([PENSTOCK, "doctor", "-o", "json"], capture_output=True, text=True)
    assert done.returncode in (0, 1) and {"checks", "worst"} <= json.loads(done.stdout).keys()
    settings = json.loads(penstock("config", "show", "--origin", "-o", "json"))["settings"]
    assert {setting["name"] for setting in settings} >= {"server", "timeout", "output"}
