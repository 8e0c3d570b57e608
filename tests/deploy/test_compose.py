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
            "properties": {"context": TEXT, "dockerfile": TEXT, "target": TEXT},
        },
        "healthcheck": {
            "type": "object", "additionalProperties": False, "required": ["test"],
            "properties": {"test": TEXTS, "interval": TEXT, "timeout": TEXT, "start_period": TEXT, "retries": {"type": "integer"}},
        },
        "depends_on": {},
    },
}  # fmt: skip
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"name": TEXT, "services": {"type": "object", "additionalProperties": SERVICE}, "volumes": {"type": "object"}},
}


@pytest.fixture
def compose() -> Document:
    (document,) = load(FOLDER / "compose.yaml")
    return document


def test_its_keys_exist(compose: Document) -> None:
    jsonschema.validate(compose, SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**compose, "services": {"x": {"image": "y", "reed_only": True}}}, SCHEMA)


def made_certificates(certs: pathlib.Path) -> None:
    """By the command that the file begins with."""
    (command,) = re.findall(r"^#   (.*dev_certs.sh) deploy/compose/certs admin", (FOLDER / "compose.yaml").read_text(), re.M)
    subprocess.run(["sh", "-c", f"{command} '{certs}' admin"], cwd=ROOT, check=True)


def test_the_daemon_in_its_container_can_read_what_it_needs(tmp_path: pathlib.Path) -> None:
    made_certificates(tmp_path / "certs")
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "certs").iterdir()}
    assert all(modes[name] == 0o644 for name in ("ca.crt", "server.crt", "server.key"))
    assert modes["ca.key"] == modes["admin.key"] == 0o600
    assert (tmp_path / "certs").stat().st_mode & 0o777 == 0o755
    shown = subprocess.run(["openssl", "x509", "-in", tmp_path / "certs/server.crt", "-noout", "-ext", "subjectAltName"],
                           capture_output=True, text=True, check=True).stdout  # fmt: skip
    assert "DNS:localhost" in shown and "DNS:penstockd" in shown


def test_flags_exist_and_fit(compose: Document, flags: dict[str, Document], tmp_path: pathlib.Path) -> None:
    daemon = compose["services"]["penstockd"]
    assert not any(argument.startswith("--insecure") for argument in daemon["command"])
    made_certificates(tmp_path / "certs")
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
    needs = size(settings["handle-bytes"]) + size(settings["grpc-memory-bytes"]) + size(daemon["shm_size"]) + BASE_BYTES
    assert needs <= size(daemon["mem_limit"])
    ports = {int(settings[flag].rpartition(":")[2]) for flag in ("listen", "metrics-listen")}
    assert {int(port.split(":")[-1]) for port in daemon["ports"]} == ports


def test_everything_is_published_on_loopback_only(compose: Document) -> None:
    for name, service in compose["services"].items():
        for port in service["ports"]:
            assert port.startswith("127.0.0.1:"), (name, port)
        assert service["cap_drop"] == ["ALL"] and "no-new-privileges:true" in service["security_opt"]


def test_images_are_pinned(compose: Document) -> None:
    for service in compose["services"].values():
        match = re.fullmatch(r"\$\{[A-Z_]+_IMAGE:-([\w./-]+):(v?\d[\w.-]+)\}", service["image"])
        assert match, service["image"]
        if match[1] == "penstock/penstockd":
            assert match[2] == project_version()


def test_what_is_mounted_exists(compose: Document) -> None:
    build = compose["services"]["penstockd"]["build"]
    assert (FOLDER / build["context"] / build["dockerfile"]).resolve() == ROOT / "deploy/image/Dockerfile"
    for service in compose["services"].values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if source == "./certs":
                assert "/deploy/compose/certs/" in (ROOT / ".gitignore").read_text().splitlines()  # dev_certs.sh makes it
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
