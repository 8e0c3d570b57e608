"""The rendered manifests: strict schemas, the reviewer's list, ports, memory, the sum of the end, drift from the daemon."""

from __future__ import annotations

import base64
import copy
import json
import pathlib
import re
import subprocess
import tomllib
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
from conftest import PENSTOCKD, ROOT
from manifests import KUSTOMIZE, OVERLAYS, Document, Rendered, load, rendered, seconds, size

KUBERNETES = "1.32"  # the oldest that is promised; preStop.sleep is on by default since 1.30
BASE_BYTES = 512 << 20  # the program and LibTorch themselves

Flags = dict[str, Document]


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest) -> Rendered:
    return rendered(request.param)


# --- form ---------------------------------------------------------------------------------------------------------------


def own_schema(kind: str) -> Document | None:
    path = pathlib.Path(__file__).parent / "schemas" / f"{kind.lower()}.json"
    return json.loads(path.read_text()) if path.exists() else None


def validate(document: Document) -> None:
    schema = own_schema(document["kind"])
    if schema is not None:
        jsonschema.validate(document, schema)
    else:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_every_document_has_a_strict_schema(overlay: Rendered) -> None:
    for document in overlay.documents:
        validate(document)


def test_the_schemas_find_faults(overlay: Rendered) -> None:
    """An unknown key, a wrong type and a missing key are each refused."""
    for change in (
        lambda d: d["spec"]["template"]["spec"].update(terminationGracePeriod=240),
        lambda d: d["spec"].update(replicas="one"),
        lambda d: d["spec"].pop("selector"),
    ):
        wrong = copy.deepcopy(overlay.only("StatefulSet"))
        change(wrong)
        with pytest.raises(Exception, match="(?i)valid|required|additional|type"):
            validate(wrong)
    for kind in ("PodMonitor", "PrometheusRule", "Certificate", "Issuer"):
        for document in overlay.kinds(kind):
            wrong = copy.deepcopy(document)
            wrong["spec"]["unknown"] = 1
            with pytest.raises(jsonschema.ValidationError, match="unknown|is not valid under any"):
                validate(wrong)


def test_rendered_is_what_the_overlays_come_to(tmp_path: pathlib.Path) -> None:
    done = subprocess.run([str(KUSTOMIZE / "render.sh"), str(tmp_path)], capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip("no kubectl with kustomize 5 here: rendered/ is not compared with its sources")
    assert done.returncode == 0, done.stderr
    for name in OVERLAYS:
        assert load(tmp_path / f"{name}.yaml") == load(KUSTOMIZE / "rendered" / f"{name}.yaml"), (
            f"{name}: deploy/kustomize/render.sh writes it anew"
        )


def test_every_source_is_used() -> None:
    """Each file of base, components and overlays is named by the kustomization beside it."""
    for path in KUSTOMIZE.rglob("*"):
        if path.is_file() and path.name not in ("kustomization.yaml", "render.sh") and path.parent.name != "rendered":
            assert path.name in (path.parent / "kustomization.yaml").read_text(), path


# --- the strict reviewer's list -----------------------------------------------------------------------------------------


def test_probes(overlay: Rendered, flags: Flags) -> None:
    container = overlay.container
    probes = {name: container[f"{name}Probe"] for name in ("startup", "liveness", "readiness")}
    port = int(overlay.settings(flags)["health-listen"].rpartition(":")[2])
    for name, probe in probes.items():
        assert probe["grpc"] == {"port": port, "service": name}
        assert probe["timeoutSeconds"] <= probe["periodSeconds"]
    assert probes["startup"]["failureThreshold"] * probes["startup"]["periodSeconds"] >= 900


def end_seconds(settings: dict[str, Any]) -> float:
    """How long the daemon takes to its end at the longest; fetches of last results are bounded as the close is."""
    phases = ("announce", "finish", "checkpoint", "close")
    announce, finish, checkpoint, close = (seconds(settings[f"drain-{phase}"]) for phase in phases)
    return announce + finish + checkpoint + 2 * close


def test_the_end_fits_into_its_grace(overlay: Rendered, flags: Flags) -> None:
    before_stop = overlay.container["lifecycle"]["preStop"]["sleep"]["seconds"]
    total = before_stop + end_seconds(overlay.settings(flags))
    assert total < overlay.pod["spec"]["terminationGracePeriodSeconds"]
    comment = (KUSTOMIZE / "base" / "statefulset.yaml").read_text()
    assert f"{total:.0f} < {overlay.pod['spec']['terminationGracePeriodSeconds']}" in comment, f"{total} in the comment"


def test_pod_security(overlay: Rendered) -> None:
    """What the level `restricted` asks for, and that the namespace enforces it."""
    assert overlay.only("Namespace")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    pod = overlay.pod["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert min(pod["securityContext"][key] for key in ("runAsUser", "runAsGroup", "fsGroup")) >= 10000
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert {key for volume in pod["volumes"] for key in volume if key != "name"} <= {"configMap", "emptyDir", "secret"}
    for container in pod["containers"]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False and context["privileged"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}


def test_writable_paths_and_identity(overlay: Rendered) -> None:
    mounts = {mount["mountPath"]: mount["name"] for mount in overlay.container["volumeMounts"]}
    empty = {volume["name"]: volume["emptyDir"] for volume in overlay.pod["spec"]["volumes"] if "emptyDir" in volume}
    variables = ["HOME", "TMPDIR"] + ["CUDA_CACHE_PATH"] * ("gpu" in overlay.name)
    for variable in variables:
        assert "sizeLimit" in empty[mounts[overlay.environment[variable]]], variable
    assert empty[mounts["/dev/shm"]]["medium"] == "Memory"
    assert overlay.only("ServiceAccount")["automountServiceAccountToken"] is False
    assert overlay.pod["spec"]["automountServiceAccountToken"] is False
    assert overlay.pod["spec"]["serviceAccountName"] == "penstock"
    for entry in overlay.container["env"]:
        assert "valueFrom" not in entry and not re.search("TOKEN|PASSWORD|SECRET|KEY", entry["name"])


def test_resources_and_memory(overlay: Rendered, flags: Flags) -> None:
    resources = overlay.container["resources"]
    for kind in ("cpu", "memory", "ephemeral-storage"):
        assert kind in resources["requests"] and kind in resources["limits"]
    assert "nvidia.com/gpu" not in resources["requests"]
    assert ("nvidia.com/gpu" in resources["limits"]) == ("gpu" in overlay.name)
    settings = overlay.settings(flags)
    in_memory = sum(
        size(volume["emptyDir"]["sizeLimit"])
        for volume in overlay.pod["spec"]["volumes"]
        if volume.get("emptyDir", {}).get("medium") == "Memory"
    )
    devices = sum(size(entry.partition("=")[2]) for entry in settings["device-memory"] or [])
    needs = in_memory + devices + size(settings["handle-bytes"]) + size(settings["grpc-memory-bytes"]) + BASE_BYTES
    assert size(settings["handle-bytes"]) > 0, "0 would be a tenth of the machine's memory, not of the container's"
    assert needs <= size(resources["limits"]["memory"])
    scratch = sum(
        size(volume["emptyDir"]["sizeLimit"])
        for volume in overlay.pod["spec"]["volumes"]
        if "emptyDir" in volume and volume["emptyDir"].get("medium") != "Memory"
    )
    assert scratch <= size(resources["limits"]["ephemeral-storage"])


def test_disruption_storage_and_scheduling(overlay: Rendered) -> None:
    budget = overlay.only("PodDisruptionBudget")["spec"]
    assert budget["maxUnavailable"] == 1 and budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    stateful = overlay.only("StatefulSet")["spec"]
    assert stateful["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    (claim,) = stateful["volumeClaimTemplates"]
    mounts = {mount["name"]: mount["mountPath"] for mount in overlay.container["volumeMounts"]}
    assert f"--state-dir={mounts[claim['metadata']['name']]}" in overlay.container["args"]
    pod = overlay.pod["spec"]
    assert pod["topologySpreadConstraints"]
    if "gpu" in overlay.name:
        assert any(t["key"] == "nvidia.com/gpu" for t in pod["tolerations"])
        assert "nvidia.com/gpu.product" in json.dumps(pod["affinity"]["nodeAffinity"])
        assert pod["runtimeClassName"] == "nvidia"


def test_selectors_select_the_pod(overlay: Rendered) -> None:
    labels = {**overlay.pod["metadata"]["labels"], "apps.kubernetes.io/pod-index": "0"}
    selectors = [overlay.only("StatefulSet")["spec"]["selector"]["matchLabels"]]
    selectors += [service["spec"]["selector"] for service in overlay.kinds("Service")]
    selectors += [d["spec"]["selector"]["matchLabels"] for d in overlay.kinds("PodDisruptionBudget")]
    selectors += [d["spec"]["selector"]["matchLabels"] for d in overlay.kinds("PodMonitor")]
    selectors += [d["spec"]["podSelector"].get("matchLabels", {}) for d in overlay.kinds("NetworkPolicy")]
    for selector in selectors:
        assert selector.items() <= labels.items(), selector
    for budget in overlay.kinds("PodDisruptionBudget"):
        assert budget["spec"]["selector"]["matchLabels"], "an empty selector would take every pod of the namespace"


def test_services(overlay: Rendered) -> None:
    peers = overlay.only("Service", "penstock-peers")["spec"]
    assert peers["clusterIP"] == "None" and peers["publishNotReadyAddresses"] is True
    assert overlay.only("StatefulSet")["spec"]["serviceName"] == "penstock-peers"
    client = overlay.only("Service")["spec"]
    assert client["selector"]["apps.kubernetes.io/pod-index"] == "0" and "publishNotReadyAddresses" not in client
    assert [port["targetPort"] for port in client["ports"]] == ["grpc-api"]


def test_metrics_are_scraped_from_the_pod(overlay: Rendered) -> None:
    """Each pod for itself: a Service would add stages together. Where nothing is monitored, nothing is half there."""
    assert not overlay.kinds("ServiceMonitor")
    assert len(overlay.kinds("PodMonitor")) == len(overlay.kinds("PrometheusRule")) == ("gpu" in overlay.name)
    for monitor in overlay.kinds("PodMonitor"):
        assert monitor["spec"]["selector"]["matchLabels"].items() <= overlay.pod["metadata"]["labels"].items()
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert seconds(endpoint["interval"]) <= 15, "rates over a minute need four points"


def test_labels_and_image(overlay: Rendered) -> None:
    version = project_version()
    wanted = {f"app.kubernetes.io/{key}" for key in ("name", "instance", "version", "component", "part-of", "managed-by")}
    for metadata in [document["metadata"] for document in overlay.documents] + [overlay.pod["metadata"]]:
        assert wanted <= metadata["labels"].keys(), metadata["name"]
        assert metadata["labels"]["app.kubernetes.io/version"] == version
    image, _, tag = overlay.container["image"].rpartition(":")
    assert image == "penstock/penstockd" and tag == (f"{version}-cuda13" if "gpu" in overlay.name else version)


# --- ports --------------------------------------------------------------------------------------------------------------


def test_ports_agree(overlay: Rendered, flags: Flags) -> None:
    """Listeners, container, Services, probes, policy, PodMonitor and image name the same ports."""
    settings = overlay.settings(flags)
    listeners = {
        name: int(settings[flag].rpartition(":")[2])
        for name, flag in (("grpc-api", "listen"), ("grpc-health", "health-listen"), ("http-metrics", "metrics-listen"))
    }
    assert {p["name"]: p["containerPort"] for p in overlay.container["ports"]} == listeners
    assert all(settings[flag].startswith("0.0.0.0:") for flag in ("listen", "health-listen", "metrics-listen"))
    for service in overlay.kinds("Service"):
        for port in service["spec"]["ports"]:
            assert listeners[port["targetPort"]] == port["port"]
    for monitor in overlay.kinds("PodMonitor"):
        assert {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]} == {"http-metrics"}
    dockerfile = (ROOT / "deploy" / "image" / "Dockerfile").read_text()
    for exposed in re.findall(r"^EXPOSE (.*)$", dockerfile, re.M):
        assert {int(port) for port in exposed.split()} == set(listeners.values())


def test_network_policy(overlay: Rendered, flags: Flags) -> None:
    assert overlay.only("NetworkPolicy", "default-deny")["spec"] == {
        "podSelector": {},
        "policyTypes": ["Ingress", "Egress"],
    }
    rules = overlay.only("NetworkPolicy")["spec"]["ingress"]
    by_port = {port["port"]: rule for rule in rules for port in rule["ports"]}
    ports = {port["name"]: port["containerPort"] for port in overlay.container["ports"]}
    assert set(by_port) == set(ports.values())
    assert "namespaceSelector" in by_port[ports["grpc-api"]]["from"][0]
    assert "from" not in by_port[ports["grpc-health"]], "the node's probes have no selector"
    assert "monitoring" in json.dumps(by_port[ports["http-metrics"]]["from"])
    egress = overlay.only("NetworkPolicy")["spec"]["egress"]
    assert {port["port"] for rule in egress for port in rule["ports"]} == {53}


# --- TLS ----------------------------------------------------------------------------------------------------------------


def test_the_api_speaks_tls_and_asks_who_calls(overlay: Rendered, flags: Flags) -> None:
    assert not any(argument.startswith("--insecure") for argument in overlay.container["args"])
    settings = overlay.settings(flags)
    mounts = {mount["mountPath"]: mount for mount in overlay.container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in overlay.pod["spec"]["volumes"]}
    for flag, source in {
        "tls-cert": ("secret", "secretName", "penstock-tls"),
        "tls-key": ("secret", "secretName", "penstock-tls"),
        "tls-client-ca": ("secret", "secretName", "penstock-tls"),
        "identity-map": ("configMap", "name", "penstock-identities"),
        "token-file": ("secret", "secretName", "penstock-tokens"),
    }.items():
        kind, key, name = source
        folder, _, file = settings[flag].rpartition("/")
        assert mounts[folder]["readOnly"] is True
        volume = volumes[mounts[folder]["name"]][kind]
        assert volume[key] == name, flag
        assert volume.get("defaultMode", 0o440) == 0o440
        assert file in ("tls.crt", "tls.key", "ca.crt", "identities", "tokens")


def test_certificates_are_signed_renewed_in_time_and_named(overlay: Rendered) -> None:
    issuers = {issuer["metadata"]["name"]: issuer["spec"] for issuer in overlay.kinds("Issuer")}
    made = {certificate["spec"]["secretName"]: certificate["spec"] for certificate in overlay.kinds("Certificate")}
    for spec in made.values():
        assert spec["issuerRef"]["name"] in issuers
    assert issuers["penstock"]["ca"]["secretName"] in made and made["penstock-ca"]["isCA"] is True
    server, client = made["penstock-tls"], made["penstock-admin"]
    for spec in (server, client):
        hours = seconds(spec["renewBefore"]) / 3600
        assert 14 * 24 < hours < seconds(spec["duration"]) / 3600, "the alert fires two weeks before the end"
        assert spec["privateKey"]["rotationPolicy"] == "Always"
    service = overlay.only("Service")["metadata"]
    for name in (service["name"], f"{service['name']}.{service['namespace']}.svc", "localhost"):
        assert name in server["dnsNames"]
    assert (server["usages"], client["usages"]) == (["server auth"], ["client auth"])


def test_secrets_hold_no_token_and_no_key(overlay: Rendered) -> None:
    (secret,) = overlay.kinds("Secret")
    for line in base64.b64decode(secret["data"]["tokens"]).decode().splitlines():
        assert line.startswith("#")
    people = overlay.only("ConfigMap", "penstock-identities")["data"]["identities"]
    named = [line.split()[0] for line in people.splitlines() if line and not line.startswith("#")]
    assert named == [uri for c in overlay.kinds("Certificate") for uri in c["spec"].get("uris", [])]


# --- drift from the daemon ----------------------------------------------------------------------------------------------


def test_arguments_and_configuration_exist(overlay: Rendered, flags: Flags, tmp_path: pathlib.Path) -> None:
    """The daemon itself takes every argument, variable and key; a wrong one is refused."""
    config = tmp_path / "penstockd.toml"
    config.write_text(overlay.config_text())
    folders = [tmp_path / name for name in ("tls", "identities", "tokens")]
    for folder in folders:
        folder.mkdir()
    overlay.place_credentials(*folders)
    arguments = [argument.replace("/etc/penstock/penstockd.toml", str(config)) for argument in overlay.container["args"]]
    for folder in folders:
        arguments = [argument.replace(f"/etc/penstock-{folder.name}/", f"{folder}/") for argument in arguments]
    assert sum(str(tmp_path) in argument for argument in arguments) == 6
    check(arguments, overlay.environment, 0)
    for wrong in ("--drain-annonce=5s", "--drain-announce=five"):
        check([*arguments, wrong], overlay.environment, 2)
    config.write_text(overlay.config_text() + '\nno-such-setting = "1"\n')
    check(arguments, overlay.environment, 2)
    known = {flag["environment"] for flag in flags.values()} | {"PENSTOCK_CONFIG"}
    assert {name for name in overlay.environment if name.startswith("PENSTOCK_")} <= known
    assert tomllib.loads(overlay.config_text()).keys() <= flags.keys()


def check(arguments: list[str], environment: dict[str, str], code: int) -> None:
    done = subprocess.run([PENSTOCKD, "--check-config", *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == code, (arguments, done.stderr)


def test_rules_and_dashboard_are_copies() -> None:
    component = KUSTOMIZE / "components" / "monitoring"
    assert json.loads((component / "penstock.json").read_text()) == json.loads(
        (ROOT / "deploy" / "grafana" / "penstock.json").read_text()
    )
    (rule,) = load(component / "prometheusrule.yaml")
    files = [ROOT / "deploy" / "prometheus" / name for name in ("rules.yaml", "alerts.yaml")]
    assert rule["spec"]["groups"] == [group for file in files for (one,) in [load(file)] for group in one["groups"]]


def project_version() -> str:
    match = re.search(r"project\(Penstock VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())
    assert match
    return match[1]
