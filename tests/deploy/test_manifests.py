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
from manifests import GROUPS, KUSTOMIZE, OVERLAYS, Document, Rendered, load, rendered, seconds, size

KUBERNETES = "1.32"  # the oldest that is promised; preStop.sleep is on by default since 1.30
BASE_BYTES = 512 << 20  # the program and LibTorch themselves

Flags = dict[str, Document]


@pytest.fixture(params=[(name, 0) for name in OVERLAYS] + [(name, 1) for name in GROUPS], ids=lambda one: f"{one[0]}-{one[1]}")
def overlay(request: pytest.FixtureRequest) -> Rendered:
    """Each overlay as its rank 0 sees it, and those of several ranks as rank 1 does."""
    return rendered(*request.param)


# --- form ---------------------------------------------------------------------------------------------------------------


def own_schema(kind: str) -> Document | None:
    path = pathlib.Path(__file__).parent / "schemas" / f"{kind.lower()}.json"
    return json.loads(path.read_text()) if path.exists() else None


def validate(document: Document) -> None:
    schema = own_schema(document["kind"])
    if schema is not None:
        jsonschema.validate(document, schema)
        if document["kind"] == "LeaderWorkerSet":  # its pods are Kubernetes' own
            templates = document["spec"]["leaderWorkerTemplate"]
            for name in ("leaderTemplate", "workerTemplate"):
                one = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": templates[name]}
                kubernetes_validate.validate(one, KUBERNETES, strict=True)
    else:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_every_document_has_a_strict_schema(overlay: Rendered) -> None:
    for document in overlay.documents:
        validate(document)


def test_the_schemas_find_faults(overlay: Rendered) -> None:
    """An unknown key, a wrong type and a missing key are each refused; so is one deep in a pod."""
    needed = "leaderWorkerTemplate" if overlay.kinds("LeaderWorkerSet") else "selector"

    def misspell(workload: Document) -> None:
        Rendered("", [workload], overlay.rank).pod["spec"].update(terminationGracePeriod=240)

    for change in (misspell, lambda d: d["spec"].update(replicas="one"), lambda d: d["spec"].pop(needed)):
        wrong = copy.deepcopy(overlay.workload)
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


def answers_grpc(overlay: Rendered) -> bool:
    """Whether the pods of this template are all leaders: other ranks have no API and no health service."""
    return overlay.name not in GROUPS or (overlay.workload["kind"] == "LeaderWorkerSet" and overlay.rank == 0)


def test_probes(overlay: Rendered, flags: Flags) -> None:
    container = overlay.container
    probes = {name: container[f"{name}Probe"] for name in ("startup", "liveness", "readiness")}
    settings = overlay.settings(flags)
    pages = {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}
    for name, probe in probes.items():
        if answers_grpc(overlay):
            assert probe["grpc"] == {"port": int(settings["health-listen"].rpartition(":")[2]), "service": name}
        else:
            assert probe["httpGet"] == {"path": pages[name], "port": int(settings["metrics-listen"].rpartition(":")[2])}
        assert len(probe.keys() & {"grpc", "httpGet", "tcpSocket", "exec"}) == 1
        assert probe["timeoutSeconds"] <= probe["periodSeconds"]
    assert probes["startup"]["failureThreshold"] * probes["startup"]["periodSeconds"] >= 900


def end_seconds(settings: dict[str, Any]) -> float:
    """How long the daemon takes to its end at the longest; fetches of last results are bounded as the close is."""
    phases = ("announce", "finish", "checkpoint", "close")
    announce, finish, checkpoint, close = (seconds(settings[f"drain-{phase}"]) for phase in phases)
    return announce + finish + checkpoint + 2 * close


def test_the_end_fits_into_its_grace(overlay: Rendered, flags: Flags) -> None:
    before_stop = overlay.container["lifecycle"]["preStop"]["sleep"]["seconds"]
    if overlay.rank and overlay.workload["kind"] == "LeaderWorkerSet":
        # It saves nothing. Where both are deleted it sleeps for as long as its leader may save.
        leader = rendered(overlay.name)
        assert before_stop >= leader.container["lifecycle"]["preStop"]["sleep"]["seconds"] + end_seconds(leader.settings(flags))
        assert before_stop + 10 < overlay.pod["spec"]["terminationGracePeriodSeconds"]
        return
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
    kinds = {"configMap", "emptyDir", "secret", "persistentVolumeClaim"}
    assert {key for volume in pod["volumes"] for key in volume if key != "name"} <= kinds
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
        assert "secretKeyRef" not in entry.get("valueFrom", {}) and not re.search("TOKEN|PASSWORD|SECRET|KEY", entry["name"])


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
    mounts = {mount["name"]: mount["mountPath"] for mount in overlay.container["volumeMounts"]}
    stateful = overlay.workload["spec"]
    if overlay.workload["kind"] == "LeaderWorkerSet":
        claims = [v["persistentVolumeClaim"]["claimName"] for v in overlay.pod["spec"]["volumes"] if "persistentVolumeClaim" in v]
        assert claims == ([] if overlay.rank else [claim["metadata"]["name"] for claim in overlay.kinds("PersistentVolumeClaim")])
        assert stateful["replicas"] == 1, "a claim is one group's"
        volume = "state"
    else:
        assert stateful["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
        (claim,) = stateful["volumeClaimTemplates"]
        volume = claim["metadata"]["name"]
    if volume in mounts or not overlay.rank:
        assert f"--state-dir={mounts[volume]}" in overlay.container["args"]
    pod = overlay.pod["spec"]
    assert pod["topologySpreadConstraints"]
    if "gpu" in overlay.name:
        assert any(t["key"] == "nvidia.com/gpu" for t in pod["tolerations"])
        assert "nvidia.com/gpu.product" in json.dumps(pod["affinity"]["nodeAffinity"])
        assert pod["runtimeClassName"] == "nvidia"


def test_selectors_select_the_pod(overlay: Rendered) -> None:
    rank = str(overlay.rank)
    labels = overlay.pod["metadata"]["labels"] | {"apps.kubernetes.io/pod-index": rank}
    if overlay.workload["kind"] == "LeaderWorkerSet":
        labels["leaderworkerset.sigs.k8s.io/worker-index"] = rank
        selectors = []
    else:
        selectors = [overlay.workload["spec"]["selector"]["matchLabels"]]
    assert (overlay.only("Service")["spec"]["selector"].items() <= labels.items()) == (overlay.rank == 0)
    selectors += [service["spec"]["selector"] for service in overlay.kinds("Service") if service["metadata"]["name"] != "penstock"]
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
    workload = overlay.workload
    assert workload["spec"].get("serviceName", workload["metadata"]["name"]) == "penstock-peers"
    client = overlay.only("Service")["spec"]
    lws = "leaderworkerset.sigs.k8s.io/worker-index"
    assert client["selector"][lws if workload["kind"] == "LeaderWorkerSet" else "apps.kubernetes.io/pod-index"] == "0"
    assert "publishNotReadyAddresses" not in client
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


LISTENERS = {
    "grpc-api": "listen",
    "grpc-health": "health-listen",
    "http-metrics": "metrics-listen",
    "grpc-peers": "peer-listen",
}


def test_ports_agree(overlay: Rendered, flags: Flags) -> None:
    """Listeners, container, Services, probes, policy, PodMonitor and image name the same ports."""
    settings = overlay.settings(flags)
    listeners = {
        name: int(settings[flag].rpartition(":")[2])
        for name, flag in LISTENERS.items()
        if (name != "grpc-peers" or overlay.name in GROUPS) and settings[flag] != "off"
    }
    of_image = set(listeners.values()) - ({8475} if overlay.name in GROUPS else set())
    ports = {p["name"]: p["containerPort"] for p in overlay.container["ports"]}
    if overlay.rank and overlay.workload["kind"] == "LeaderWorkerSet":  # its pages are all that it offers
        assert ports == {"http-metrics": listeners["http-metrics"]}
        return
    assert ports == listeners
    assert all(settings[LISTENERS[name]].startswith("0.0.0.0:") for name in listeners)
    for service in overlay.kinds("Service"):
        for port in service["spec"]["ports"]:
            assert listeners[port["targetPort"]] == port["port"]
    for monitor in overlay.kinds("PodMonitor"):
        assert {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]} == {"http-metrics"}
    dockerfile = (ROOT / "deploy" / "image" / "Dockerfile").read_text()
    for exposed in re.findall(r"^EXPOSE (.*)$", dockerfile, re.M):
        assert {int(port) for port in exposed.split()} == of_image


def test_network_policy(overlay: Rendered, flags: Flags) -> None:
    assert overlay.only("NetworkPolicy", "default-deny")["spec"] == {
        "podSelector": {},
        "policyTypes": ["Ingress", "Egress"],
    }
    rules = overlay.only("NetworkPolicy")["spec"]["ingress"]
    egress = overlay.only("NetworkPolicy")["spec"]["egress"]
    if overlay.name in GROUPS:
        # Every port, but between the group's own pods only; and the metrics' port for probes of the node.
        (inside,) = [rule for rule in rules if "ports" not in rule]
        (outside,) = [rule for rule in egress if "ports" not in rule]
        for peers in (inside["from"], outside["to"]):
            (peer,) = peers
            assert peer.keys() == {"podSelector"}, "of this namespace"
            wanted = peer["podSelector"]["matchLabels"]
            assert wanted and wanted.items() <= overlay.pod["metadata"]["labels"].items()
        probed = {"ports": [{"port": 8473, "protocol": "TCP"}]}
        assert probed in rules
        rules = [rule for rule in rules if "ports" in rule and rule != probed]
        egress = [rule for rule in egress if "ports" in rule]
    by_port = {port["port"]: rule for rule in rules for port in rule["ports"]}
    ports = {port["name"]: port["containerPort"] for port in overlay.leaders_pod["spec"]["containers"][0]["ports"]}
    assert set(by_port) == set(ports.values()) - {ports.get("grpc-peers")}
    assert "namespaceSelector" in by_port[ports["grpc-api"]]["from"][0]
    assert "from" not in by_port[ports["grpc-health"]], "the node's probes have no selector"
    assert "monitoring" in json.dumps(by_port[ports["http-metrics"]]["from"])
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
        if flag == "token-file" and overlay.rank and not settings[flag]:
            continue  # nobody calls it
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
    both = ["server auth", "client auth"]
    assert (server["usages"], client["usages"]) == (both if overlay.name in GROUPS else both[:1], ["client auth"])
    if overlay.name in GROUPS:
        assert overlay.leader in server["dnsNames"] and server["uris"] == ["spiffe://penstock/rank"]


def test_secrets_hold_no_token_and_no_key(overlay: Rendered) -> None:
    (secret,) = overlay.kinds("Secret")
    for line in base64.b64decode(secret["data"]["tokens"]).decode().splitlines():
        assert line.startswith("#")
    people = overlay.only("ConfigMap", "penstock-identities")["data"]["identities"]
    named = [line.split()[0] for line in people.splitlines() if line and not line.startswith("#")]
    assert sorted(named) == sorted(uri for c in overlay.kinds("Certificate") for uri in c["spec"].get("uris", []))


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
    tokens = any(mount["mountPath"] == "/etc/penstock-tokens" for mount in overlay.container["volumeMounts"])
    assert sum(str(tmp_path) in argument for argument in arguments) == 5 + tokens
    check(arguments, overlay.environment, 0)
    for wrong in ("--drain-annonce=5s", "--drain-announce=five"):
        check([*arguments, wrong], overlay.environment, 2)
    config.write_text(overlay.config_text() + '\nno-such-setting = "1"\n')
    check(arguments, overlay.environment, 2)
    known = {flag["environment"] for flag in flags.values()} | {"PENSTOCK_CONFIG", "PENSTOCK_POD_INDEX"}
    assert {name for name in overlay.environment if name.startswith("PENSTOCK_")} <= known
    assert tomllib.loads(overlay.config_text()).keys() <= flags.keys()


@pytest.mark.parametrize("name", GROUPS)
def test_a_rank_that_goes_takes_no_other_along(name: str) -> None:
    """The group forms itself anew: nothing waits for, or restarts, the leader because of another rank."""
    spec = rendered(name).workload["spec"]
    if "leaderWorkerTemplate" in spec:
        assert spec["leaderWorkerTemplate"]["restartPolicy"] == "None" and spec["startupPolicy"] == "LeaderCreated"
    else:
        assert spec["podManagementPolicy"] == "Parallel" and spec["updateStrategy"] == {"type": "OnDelete"}


@pytest.mark.parametrize("name", GROUPS)
def test_each_pod_knows_its_rank(name: str, flags: Flags, tmp_path: pathlib.Path) -> None:
    """All ranks of a group name one leader and one size, and the daemon refuses a pod too many."""
    for rank in range(rendered(name).size):
        one = rendered(name, rank)
        settings = one.settings(flags)
        leader = settings["leader"] or one.environment["LWS_LEADER_ADDRESS"]
        assert leader.partition(":")[0] == one.leader
        assert int(settings["world-size"] or one.environment["LWS_GROUP_SIZE"]) == one.size
        assert settings["peer-listen"] == "0.0.0.0:8475" and leader.partition(":")[2] in ("", "8475")
    group = [argument for argument in one.container["args"] if argument.startswith(("--world-size", "--leader", "--peer"))]
    for rank, code in ((one.size - 1, 0), (one.size, 2)):
        check([*group, "--insecure"], {**rendered(name, rank).environment}, code)


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
