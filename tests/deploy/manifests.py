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
GROUPS = [name for name in OVERLAYS if name.startswith("multi-node")]  # those of several ranks

Document = dict[str, Any]


class UniqueKeys(yaml.SafeLoader):
    """YAML in which a key that stands twice is an error."""


def _mapping(loader: UniqueKeys, node: yaml.MappingNode) -> Document:
    own = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
    keys = [loader.construct_object(key) for key in own]  # type: ignore[no-untyped-call]
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
    """What one overlay comes to, seen from one of its ranks."""

    name: str
    documents: list[Document]
    rank: int = 0

    def only(self, kind: str, name: str = "penstock") -> Document:
        found = [d for d in self.documents if d["kind"] == kind and d["metadata"]["name"] == name]
        assert len(found) == 1, f"{len(found)} of {kind} {name}"
        return found[0]

    def kinds(self, kind: str) -> list[Document]:
        return [d for d in self.documents if d["kind"] == kind]

    @property
    def leaders_pod(self) -> Document:
        return Rendered(self.name, self.documents).pod

    @property
    def workload(self) -> Document:
        """The StatefulSet, or the LeaderWorkerSet."""
        (workload,) = self.kinds("StatefulSet") + self.kinds("LeaderWorkerSet")
        return workload

    @property
    def size(self) -> int:
        """How many ranks there are."""
        spec = self.workload["spec"]
        size: int = spec["leaderWorkerTemplate"]["size"] if "leaderWorkerTemplate" in spec else spec["replicas"]
        return size

    @property
    def pod(self) -> Document:
        spec = self.workload["spec"]
        if "leaderWorkerTemplate" in spec:
            pod: Document = spec["leaderWorkerTemplate"]["workerTemplate" if self.rank else "leaderTemplate"]
        else:
            pod = spec["template"]
        return pod

    @property
    def container(self) -> Document:
        (container,) = self.pod["spec"]["containers"]
        assert isinstance(container, dict)
        return container

    @property
    def environment(self) -> dict[str, str]:
        """With what is set for each pod: by the downward API, or by the controller of LeaderWorkerSets."""
        given = {entry["name"]: entry.get("value", "") for entry in self.container["env"]}
        if "PENSTOCK_POD_INDEX" in given:
            given["PENSTOCK_POD_INDEX"] = str(self.rank)
        if self.workload["kind"] == "LeaderWorkerSet":
            given |= {"LWS_WORKER_INDEX": str(self.rank), "LWS_GROUP_SIZE": str(self.size), "LWS_LEADER_ADDRESS": self.leader}
        return given

    @property
    def leader(self) -> str:
        """The leader's name in DNS."""
        workload = self.workload
        name, service = workload["metadata"]["name"], workload["spec"].get("serviceName")
        return f"{name}-0.{service}" if service else f"{name}-0.{name}.{workload['metadata']['namespace']}"

    def config_text(self) -> str:
        """The file that the pod mounts as its configuration."""
        (volume,) = [v for v in self.pod["spec"]["volumes"] if v["name"] == "config"]
        text: str = self.only("ConfigMap", volume["configMap"]["name"])["data"]["penstockd.toml"]
        return text

    def place_credentials(self, tls: pathlib.Path, identities: pathlib.Path, tokens: pathlib.Path, server: str = "") -> None:
        """Fills the folders as cert-manager and the kubelet do; the administrator's pair lies beside as admin.crt and
        admin.key. `server`: further names of the daemon, as dev_certs.sh takes them, beside those of the manifest."""
        spec = self.only("Certificate")["spec"]
        names = [f"DNS:{name}" for name in spec["dnsNames"]] + [f"URI:{uri}" for uri in spec.get("uris", [])]
        server = ",".join([server] * bool(server) + names)
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


def rendered(overlay: str, rank: int = 0) -> Rendered:
    return Rendered(overlay, load(KUSTOMIZE / "rendered" / f"{overlay}.yaml"), rank)
