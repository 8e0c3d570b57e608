"""The compose file: its keys, what it mounts, the daemon's flags in it, and the time of its end."""

from __future__ import annotations

import pathlib
import re
import subprocess

import jsonschema
import pytest
import yaml
from conftest import PENSTOCKD, ROOT
from manifests import Document, load, seconds, size
from test_manifests import BASE_BYTES, end_seconds, project_version

FOLDER = ROOT / "deploy" / "compose"
TEXT = {"type": "string"}
TEXTS = {"type": "array", "items": TEXT}
SERVICE = {
    "type": "object",
    "additionalProperties": False,
    "required": ["image"],
    "properties": {
        "image": TEXT, "command": TEXTS, "ports": TEXTS, "volumes": TEXTS, "tmpfs": TEXTS, "user": TEXT, "cap_drop": TEXTS,
        "security_opt": TEXTS, "shm_size": TEXT, "mem_limit": TEXT, "pids_limit": {"type": "integer"},
        "read_only": {"type": "boolean"}, "restart": {"enum": ["no", "on-failure", "always", "unless-stopped"]},
        "stop_signal": TEXT, "stop_grace_period": TEXT, "environment": {"type": "object", "additionalProperties": TEXT},
        "build": {
            "type": "object", "additionalProperties": False, "required": ["context", "dockerfile", "target"],
            "properties": {
                "context": TEXT, "dockerfile": TEXT, "target": TEXT, "args": {"type": "object", "additionalProperties": TEXT},
            },
        },
        "healthcheck": {
            "type": "object", "additionalProperties": False, "oneOf": [{"required": ["test"]}, {"required": ["disable"]}],
            "properties": {"disable": {"type": "boolean"}, "test": TEXTS, "interval": TEXT, "timeout": TEXT, "start_period": TEXT, "retries": {"type": "integer"}},
        },
        "depends_on": {},
    },
}  # fmt: skip
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "patternProperties": {"^x-": {}},
    "properties": {"name": TEXT, "services": {"type": "object", "additionalProperties": SERVICE}, "volumes": {"type": "object"}},
}


FILES = pytest.mark.parametrize("file", ["compose.yaml", "ranks.yaml"])
# The certificates of each, and the services that run the daemon.
CERTS = {"compose.yaml": "certs", "ranks.yaml": "certs-ranks"}
DAEMONS = {"compose.yaml": ["penstockd"], "ranks.yaml": ["penstock-0", "penstock-1", "penstock-2"]}


def read(file: str) -> Document:
    (document,) = load(FOLDER / file)
    return document


@pytest.fixture
def compose() -> Document:
    return read("compose.yaml")


@FILES
def test_its_keys_exist(file: str) -> None:
    compose = read(file)
    jsonschema.validate(compose, SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**compose, "services": {"x": {"image": "y", "reed_only": True}}}, SCHEMA)


def made_certificates(certs: pathlib.Path, file: str) -> None:
    """By the command that the file begins with."""
    lines = (FOLDER / file).read_text().splitlines()
    commands = [line[4:].partition("  #")[0] for line in lines if re.match(r"#   .*DEV_CERTS_", line)]
    script = "\n".join(commands)
    assert script.count(f" deploy/compose/{CERTS[file]} admin") == 1
    subprocess.run(["sh", "-ec", script.replace(f" deploy/compose/{CERTS[file]} ", f" '{certs}' ")], cwd=ROOT, check=True)


@FILES
def test_the_daemon_in_its_container_can_read_what_it_needs(file: str, tmp_path: pathlib.Path) -> None:
    made_certificates(tmp_path / "certs", file)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "certs").iterdir()}
    assert all(modes[name] == 0o644 for name in ("ca.crt", "server.crt", "server.key"))
    assert modes["ca.key"] == modes["admin.key"] == 0o600
    assert (tmp_path / "certs").stat().st_mode & 0o777 == 0o755
    shown = subprocess.run(["openssl", "x509", "-in", tmp_path / "certs/server.crt", "-noout", "-ext", "subjectAltName"],
                           capture_output=True, text=True, check=True).stdout  # fmt: skip
    assert "DNS:localhost" in shown and f"DNS:{DAEMONS[file][0]}" in shown
    assert ("URI:spiffe://penstock/rank" in shown) == (file == "ranks.yaml")


@pytest.mark.parametrize("file, name", [(file, name) for file, names in DAEMONS.items() for name in names])
def test_flags_exist_and_fit(file: str, name: str, flags: dict[str, Document], tmp_path: pathlib.Path) -> None:
    daemon = read(file)["services"][name]
    assert not any(argument.startswith("--insecure") for argument in daemon["command"])
    made_certificates(tmp_path / "certs", file)
    mounted = {volume.split(":")[1]: FOLDER / volume.split(":")[0] for volume in daemon["volumes"] if volume.startswith(".")}
    mounted["/etc/penstock/certs"] = tmp_path / "certs"
    arguments = list(daemon["command"])
    for inside, outside in mounted.items():
        arguments = [argument.replace(f"={inside}", f"={outside}") for argument in arguments]
    assert sum(argument != given for argument, given in zip(arguments, daemon["command"])) == 4
    done = subprocess.run([PENSTOCKD, "--check-config", *arguments], env={}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    settings = {name: flag["default"] for name, flag in flags.items()}
    settings |= dict(argument.removeprefix("--").partition("=")[::2] for argument in daemon["command"])
    assert end_seconds(settings) < seconds(daemon["stop_grace_period"])
    serves = settings["rank"] in ("", "0")
    needs = size(settings["grpc-memory-bytes"]) + size(daemon["shm_size"]) + BASE_BYTES
    if serves:
        needs += size(settings["handle-bytes"])
    assert needs <= size(daemon["mem_limit"])
    ports = {int(settings[flag].rpartition(":")[2]) for flag in ("listen", "metrics-listen")[not serves :]}
    assert {int(port.split(":")[-1]) for port in daemon["ports"]} == ports


def test_ranks_are_numbered_and_the_leader_stops_first() -> None:
    """Compose stops what depends before what it depends on."""
    services = read("ranks.yaml")["services"]
    given = [dict(argument.removeprefix("--").partition("=")[::2] for argument in one["command"]) for one in services.values()]
    assert [one["rank"] for one in given] == ["0", "1", "2"]
    assert {one["world-size"] for one in given} == {str(len(services))}
    leader = list(services)[0]
    assert {one["leader"] for one in given} == {f"{leader}:{given[0]['peer-listen'].rpartition(':')[2]}"}
    assert services[leader]["depends_on"] == list(services)[1:]
    assert [one["healthcheck"].get("disable", False) for one in services.values()] == [False, True, True]
    identities = (FOLDER / "identities-ranks").read_text()
    assert re.search(r"^spiffe://penstock/rank +admin +\*$", identities, re.M)


@FILES
def test_everything_is_published_on_loopback_only(file: str) -> None:
    compose = read(file)
    for name, service in compose["services"].items():
        for port in service["ports"]:
            assert port.startswith("127.0.0.1:"), (name, port)
        assert service["cap_drop"] == ["ALL"] and "no-new-privileges:true" in service["security_opt"]


@FILES
def test_images_are_pinned(file: str) -> None:
    compose = read(file)
    for service in compose["services"].values():
        match = re.fullmatch(r"\$\{[A-Z_]+_IMAGE:-([\w./-]+):(v?\d[\w.-]+)\}", service["image"])
        assert match, service["image"]
        if match[1] == "penstock/penstockd":
            assert match[2] == project_version()


@FILES
def test_what_is_mounted_exists(file: str) -> None:
    compose = read(file)
    build = compose["services"][DAEMONS[file][0]]["build"]
    assert (FOLDER / build["context"] / build["dockerfile"]).resolve() == ROOT / "deploy/image/Dockerfile"
    for service in compose["services"].values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if source == f"./{CERTS[file]}":
                assert f"/deploy/compose/{CERTS[file]}/" in (ROOT / ".gitignore").read_text().splitlines()  # dev_certs.sh makes it
            elif source.startswith("."):
                assert (FOLDER / source).exists(), volume
            else:
                assert source in compose["volumes"], volume


def test_prometheus_scrapes_this_daemon(compose: Document) -> None:
    config = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yaml").read_text())
    targets = [t for job in config["scrape_configs"] for entry in job["static_configs"] for t in entry["targets"]]
    (argument,) = [a for a in compose["services"]["penstockd"]["command"] if a.startswith("--metrics-listen=")]
    assert targets == [f"penstockd:{argument.rpartition(':')[2]}"]
    for file in config["rule_files"]:
        assert (ROOT / "deploy" / "prometheus" / file).exists()
    prometheus = compose["services"]["prometheus"]
    assert "--config.file=/etc/prometheus/prometheus.yaml" in prometheus["command"]
    (source,) = load(ROOT / "deploy/grafana/provisioning/datasources/penstock.yaml")
    assert source["datasources"][0]["url"] == "http://prometheus:9090"
    (dashboards,) = load(ROOT / "deploy/grafana/provisioning/dashboards/penstock.yaml")
    folder = dashboards["providers"][0]["options"]["path"]
    assert any(volume.split(":")[1].startswith(folder) for volume in compose["services"]["grafana"]["volumes"])
