"""What programs read: every page's JSON and what commands print with -o json have the schemas of docs/schemas, and where both
tell the same, they tell it alike."""

from __future__ import annotations

import copy
import json
import os
import pathlib
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import jsonschema
import numpy as np
import penstock
import pytest
import referencing

from daemon_process import Daemon
from small_models import create_mlp, mlp_batch

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCHEMAS = ROOT / "docs/schemas"

PAGES = {
    "/": "overview.json",
    "/statusz": "status.json",
    "/pipeline?name=shown": "pipeline.json",
    "/queuez": "queues.json",
    "/handlez": "handles.json",
    "/memory": "memory.json",
    "/checkpointz": "checkpoints.json",
    "/tracez": "traces.json",
    "/logz": "log.json",
    "/flagz": "settings.json",
    "/healthz": "health.json",
    "/readyz": "health.json",
}
COMMANDS = {
    "status": "status.json",
    "pipeline get shown": "messages.json#/$defs/pipeline",
    "checkpoint list shown": "checkpoints.json",
    "config show --origin": "settings.json",
    "health": "health.json",
    "health liveness": "health.json",
}


def registry() -> referencing.Registry[Any]:
    files = [(path.name, json.loads(path.read_text())) for path in SCHEMAS.glob("*.json")]
    return referencing.Registry().with_contents(files)


def complaints(value: Any, schema: str) -> list[str]:
    validator = jsonschema.Draft202012Validator({"$ref": schema}, registry=registry())
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(value)]


@pytest.fixture(scope="module")
def shown(daemon: Daemon) -> Iterator[Daemon]:
    """A daemon with a pipeline that has trained, inferred, saved and kept results, and one that has done nothing."""
    with penstock.Client(daemon.address) as client, penstock.Client(daemon.address, caller="ann") as ann:
        pipeline = create_mlp(client, "shown")
        create_mlp(client, "unused")
        for step in range(3):
            pipeline.train_step(*mlp_batch(step))
        kept = ann.pipeline("shown").submit_infer(mlp_batch(0)[0], lease=600).wait()
        pipeline.save_checkpoint()
        with pytest.raises(penstock.PenstockError):
            pipeline.infer(np.zeros((2, 3), np.float32))
        yield daemon
        del kept


def page(daemon: Daemon, path: str) -> Any:
    joint = "&" if "?" in path else "?"
    with urllib.request.urlopen(f"http://{daemon.admin_address}{path}{joint}format=json", timeout=60) as answer:
        return json.load(answer)


def command(daemon: Daemon, words: str) -> Any:
    line = [os.environ["PENSTOCK"], "--server", daemon.address, *words.split(), "-o", "json"]
    return json.loads(subprocess.run(line, capture_output=True, check=True, timeout=120).stdout)


@pytest.mark.parametrize("path", PAGES)
def test_a_page_has_its_schema(shown: Daemon, path: str) -> None:
    assert complaints(page(shown, path), PAGES[path]) == []


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_has_the_schema_of_its_page(shown: Daemon, words: str) -> None:
    assert complaints(command(shown, words), COMMANDS[words]) == []


def test_a_daemon_without_pipelines_has_them_too(start_daemon: Any) -> None:
    empty = start_daemon("--drain-announce=0s")
    for path, schema in PAGES.items():
        if "name=" not in path:
            assert complaints(page(empty, path), schema) == [], path


def test_page_and_command_tell_the_same(shown: Daemon) -> None:
    status, told = page(shown, "/statusz"), command(shown, "status")
    for one in (status, told):
        for entry in one["pipelines"]:
            for key in ("time", "lanes"):  # these move on
                entry["statistics"].pop(key)
    assert status["server"] == told["server"]
    assert [entry["pipeline"]["name"] for entry in told["pipelines"]] == ["pipelines/shown", "pipelines/unused"]
    assert status["pipelines"] == told["pipelines"]
    assert page(shown, "/pipeline?name=shown")["pipeline"] == command(shown, "pipeline get shown")
    assert page(shown, "/checkpointz")["checkpoints"] == command(shown, "checkpoint list shown")["checkpoints"]
    health = page(shown, "/readyz")
    assert command(shown, "health").items() <= health.items()


@pytest.mark.parametrize("path", PAGES)
def test_a_field_that_is_gone_is_noticed(shown: Daemon, path: str) -> None:
    """The schemas can fail: without any one field of the page's own level, and of the first entry of each list."""
    value = page(shown, path)
    schema = json.loads((SCHEMAS / PAGES[path]).read_text())
    for key in schema["required"]:
        poorer = copy.deepcopy(value)
        del poorer[key]
        assert complaints(poorer, PAGES[path]) != [], key
        if isinstance(value[key], list) and value[key] and isinstance(value[key][0], dict):
            for inner in value[key][0]:
                poorer = copy.deepcopy(value)
                poorer[key][0][inner] = {"not": "this"}
                if inner in ("spec", "plan", "values") or inner.startswith("lane_"):
                    continue
                assert complaints(poorer, PAGES[path]) != [], (key, inner)


def test_schemas_know_every_state(metrics_table: dict[str, dict[str, Any]]) -> None:
    labels = metrics_table["penstock_stage_time_seconds_total"]["labels"]
    states = next(label["values"] for label in labels if label["name"] == "state")
    for path in SCHEMAS.glob("*.json"):
        for found in lists_of_states(json.loads(path.read_text())):
            assert found == states, path.name


def lists_of_states(schema: Any) -> Iterator[list[str]]:
    if isinstance(schema, dict):
        if "wait_gradient" in schema.get("enum", []):
            yield schema["enum"]
        for value in schema.values():
            yield from lists_of_states(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from lists_of_states(value)


def test_every_schema_is_one_and_is_used() -> None:
    for path in SCHEMAS.glob("*.json"):
        jsonschema.Draft202012Validator.check_schema(json.loads(path.read_text()))
    used = {name.split("#")[0] for name in (*PAGES.values(), *COMMANDS.values())}
    assert used == {path.name for path in SCHEMAS.glob("*.json")}


def test_a_daemon_that_drains_says_so(start_daemon: Any) -> None:
    draining = start_daemon("--drain-announce=60s")
    draining.terminate()
    deadline = time.monotonic() + 60
    while True:
        assert time.monotonic() < deadline, "it still says that it is ready"
        try:
            assert page(draining, "/readyz")["status"] == "serving"
        except urllib.error.HTTPError as error:
            assert error.code == 503
            body = json.load(error)
            break
    assert complaints(body, "health.json") == [] and body["status"] == "not_serving"
    assert any(not condition["holds"] and condition["detail"] for condition in body["conditions"])
