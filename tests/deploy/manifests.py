"""The rendered manifests as data, and the daemon's settings in them."""

from __future__ import annotations

import base64
import dataclasses
import os
import pathlib
import re
import subprocess
import tomllib
from typing import Any

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
KUSTOMIZE = ROOT / "deploy" / "kustomize"
OVERLAYS = sorted(path.name for path in (KUSTOMIZE / "overlays").iterdir())

Document = dict[str, Any]


class UniqueKeys(yaml.SafeLoader):
    """YAML in which a key that stands twice is an error."""


def _mapping(loader: UniqueKeys, node: yaml.MappingNode) -> Document:
    keys = [loader.construct_object(key) for key, _ in node.value]  # type: ignore[no-untyped-call]
    twice = {key for key in keys if keys.count(key) > 1}
    assert not twice, f"{twice} twice, line {node.start_mark.line + 1}"
    return loader.construct_mapping(node, deep=True)


UniqueKeys.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def load(path: pathlib.Path) -> list[Document]:
    return [document for document in yaml.load_all(path.read_text(), Loader=UniqueKeys) if document is not None]


def seconds(text: str) -> float:
    """"5s", "500ms", "10min", "1h"."""
    match = re.fullmatch(r"([\d.]+)(ms|s|min|m|h)?", text)
    assert match, text
    return float(match[1]) * {"ms": 0.001, "s": 1, None: 1, "min": 60, "m": 60, "h": 3600}[match[2]]


def size(text: str) -> int:
    """Kubernetes' "4Gi", the daemon's "4GiB", compose's "8g"."""
    match = re.fullmatch(r"(\d+)([KMGT]?)(i?)B?", text.upper().replace("I", "i"))
    assert match, text
    return int(match[1]) << (10 * " KMGT".index(match[2] or " "))


@dataclasses.dataclass
class Rendered:
    """What one overlay comes to."""

    name: str
    documents: list[Document]

    def only(self, kind: str, name: str = "penstock") -> Document:
        found = [d for d in self.documents if d["kind"] == kind and d["metadata"]["name"] == name]
        assert len(found) == 1, f"{len(found)} of {kind} {name}"
        return found[0]

    def kinds(self, kind: str) -> list[Document]:
        return [d for d in self.documents if d["kind"] == kind]

    @property
    def pod(self) -> Document:
        pod: Document = self.only("StatefulSet")["spec"]["template"]
        return pod

    @property
    def container(self) -> Document:
        (container,) = self.pod["spec"]["containers"]
        assert isinstance(container, dict)
        return container

    @property
    def environment(self) -> dict[str, str]:
        return {entry["name"]: entry["value"] for entry in self.container["env"]}

    def config_text(self) -> str:
        """The file that the pod mounts as its configuration."""
        (volume,) = [v for v in self.pod["spec"]["volumes"] if v["name"] == "config"]
        text: str = self.only("ConfigMap", volume["configMap"]["name"])["data"]["penstockd.toml"]
        return text

    def place_credentials(self, tls: pathlib.Path, identities: pathlib.Path, tokens: pathlib.Path, server: str = "") -> None:
        """Fills the folders as cert-manager and the kubelet do; the administrator's pair lies beside as admin.crt and
        admin.key. `server`: further names of the daemon, as dev_certs.sh takes them."""
        environment = {**os.environ, "DEV_CERTS_SERVER": server}
        subprocess.run([ROOT / "deploy/dev_certs.sh", tls, "admin"], env=environment, check=True)
        for end in ("crt", "key"):
            (tls / f"server.{end}").rename(tls / f"tls.{end}")
        (identities / "identities").write_text(self.only("ConfigMap", "penstock-identities")["data"]["identities"])
        (tokens / "tokens").write_bytes(base64.b64decode(self.only("Secret", "penstock-tokens")["data"]["tokens"]))

    def settings(self, flags: dict[str, Document]) -> dict[str, Any]:
        """Every setting of the daemon: its argument, else its key in the configuration, else the default."""
        arguments = dict(argument.removeprefix("--").partition("=")[::2] for argument in self.container["args"])
        config = tomllib.loads(self.config_text())
        return {name: arguments.get(name, config.get(name, flag["default"])) for name, flag in flags.items()}


def rendered(overlay: str) -> Rendered:
    return Rendered(overlay, load(KUSTOMIZE / "rendered" / f"{overlay}.yaml"))
