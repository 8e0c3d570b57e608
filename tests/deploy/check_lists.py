"""What a strict reviewer asks of the manifests of one node, and every pair of things that could drift apart: where each of them
is answered, and by which test. test_check_lists.py reads it."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Row:
    """One thing that is asked for.

    Attributes:
        asked: what, in words.
        where: files of the tree with the text that answers it, as FILE: TEXT.
        tests: what fails if the answer goes, as FILE::NAME; in C++ the name is SUITE.CASE.
        missing: why there is no answer, or what is left of it; empty if it is answered.
    """

    asked: str
    where: dict[str, str]
    tests: tuple[str, ...]
    missing: str = ""


BASE = "deploy/kustomize/base/"
COMPONENTS = "deploy/kustomize/components/"
MANIFESTS = "tests/deploy/test_manifests.py::"
DOCUMENTS = "tests/deploy/test_documents.py::"
SYSTEMD = "tests/deploy/test_systemd.py::"
COMPOSE = "tests/deploy/test_compose.py::"
IMAGE = "tests/deploy/test_image.py::"
DRIFT = "tests/observability/test_drift.py::"

REVIEWERS_LIST = (
    Row("probes: startup, liveness, readiness by gRPC, three service names, a numeric port, plaintext on the pod's address",
        {BASE + "statefulset.yaml": "startupProbe:"},
        (MANIFESTS + "test_probes", MANIFESTS + "test_ports_agree",
         "tests/deploy/test_behaviour.py::test_probed_and_ended_under_load")),
    Row("shutdown: the sum of all phases in a comment and in a test",
        {BASE + "statefulset.yaml": "terminationGracePeriodSeconds: 240"},
        (MANIFESTS + "test_the_end_fits_into_its_grace",)),
    Row("pod security: the level restricted, enforced by the namespace",
        {BASE + "statefulset.yaml": "runAsNonRoot: true", BASE + "namespace.yaml": "pod-security.kubernetes.io/enforce: restricted"},
        (MANIFESTS + "test_pod_security",)),
    Row("writable paths: emptyDir for TMPDIR, HOME, CUDA_CACHE_PATH",
        {BASE + "statefulset.yaml": "name: TMPDIR", COMPONENTS + "gpu-nvidia/statefulset.yaml": "name: CUDA_CACHE_PATH"},
        (MANIFESTS + "test_writable_paths_and_identity", IMAGE + "test_every_mount_point_exists")),
    Row("identity: an account of its own, no token, no secret in a variable",
        {BASE + "serviceaccount.yaml": "automountServiceAccountToken: false"},
        (MANIFESTS + "test_writable_paths_and_identity",)),
    Row("resources: cpu, memory and ephemeral-storage as requests and limits, GPUs as limits only",
        {BASE + "statefulset.yaml": "ephemeral-storage: 1Gi", COMPONENTS + "gpu-nvidia/statefulset.yaml": "nvidia.com/gpu:"},
        (MANIFESTS + "test_resources_and_memory",)),
    Row("shared memory: /dev/shm in memory, with a limit that counts against the container's",
        {BASE + "statefulset.yaml": "medium: Memory"},
        (MANIFESTS + "test_writable_paths_and_identity", MANIFESTS + "test_resources_and_memory")),
    Row("disruption: maxUnavailable 1, AlwaysAllow, survived by a drain that saves",
        {BASE + "poddisruptionbudget.yaml": "unhealthyPodEvictionPolicy: AlwaysAllow"},
        (MANIFESTS + "test_disruption_storage_and_scheduling",
         "tests/integration/test_drain.py::test_the_last_state_is_saved_and_goes_on_to_the_last_bit")),
    Row("network: default deny, API from labelled namespaces, metrics from monitoring, DNS out, health from the node",
        {COMPONENTS + "networkpolicy/penstock.yaml": "penstock.clients/allowed"},
        (MANIFESTS + "test_network_policy",),
        "ports between the pods of a group: there is one pod"),
    Row("services: the peers' headless with addresses that are not ready, the clients' for rank 0 only",
        {BASE + "service-peers.yaml": "publishNotReadyAddresses: true", BASE + "service.yaml": 'pod-index: "0"'},
        (MANIFESTS + "test_services", MANIFESTS + "test_selectors_select_the_pod")),
    Row("storage: a claim for checkpoints, its retention named",
        {BASE + "statefulset.yaml": "persistentVolumeClaimRetentionPolicy:"},
        (MANIFESTS + "test_disruption_storage_and_scheduling",)),
    Row("TLS: certificates of cert-manager, reloaded", {}, (), "the daemon speaks no TLS; the network policy is its fence"),
    Row("image: a tag or digest, never latest",
        {BASE + "kustomization.yaml": "newTag:"},
        (MANIFESTS + "test_labels_and_image", COMPOSE + "test_images_are_pinned", IMAGE + "test_the_dockerfile")),
    Row("scheduling: toleration of the GPU taint, affinity on the product, runtime class, spread",
        {COMPONENTS + "gpu-nvidia/statefulset.yaml": "tolerations:"},
        (MANIFESTS + "test_disruption_storage_and_scheduling",)),
    Row("labels: the six of app.kubernetes.io",
        {COMPONENTS + "labels/kustomization.yaml": "app.kubernetes.io/part-of"},
        (MANIFESTS + "test_labels_and_image",)),
    Row("metrics: a PodMonitor, for a Service has no meaning for one stage",
        {COMPONENTS + "monitoring/podmonitor.yaml": "kind: PodMonitor"},
        (MANIFESTS + "test_metrics_are_scraped_from_the_pod", MANIFESTS + "test_ports_agree")),
    Row("autoscaling: whole pipelines by queue age", {}, (), "there is one pod"),
)  # fmt: skip

DRIFT_PAIRS = (
    Row("flags and documents",
        {"docs/deployment.md": "<!-- flags: from penstockd --dump=flags -->"},
        (DOCUMENTS + "test_the_table_of_flags_is_the_daemons", DOCUMENTS + "test_daemon_flags_in_pages_exist",
         DRIFT + "test_the_runbook_names_what_exists"),
        "there are no man pages"),
    Row("flags and manifests, unit, compose file",
        {BASE + "statefulset.yaml": "--state-dir=", "deploy/compose/compose.yaml": "--state-dir="},
        (MANIFESTS + "test_arguments_and_configuration_exist", SYSTEMD + "test_flags_and_configuration_exist",
         COMPOSE + "test_flags_exist_and_fit")),
    Row("flags, variables and file: one name, three forms",
        {"docs/deployment.md": "PENSTOCK_DRAIN_FINISH"},
        (DOCUMENTS + "test_every_flag_has_three_forms",
         "tests/unit/server/daemon_options_test.cc::DaemonOptions.ListsComeFromAllThreeForms")),
    Row("ports: listeners, container, Services, probes, policy, PodMonitor, EXPOSE",
        {"deploy/image/Dockerfile": "EXPOSE 8470 8472 8473"},
        (MANIFESTS + "test_ports_agree", MANIFESTS + "test_probes", MANIFESTS + "test_network_policy",
         COMPOSE + "test_prometheus_scrapes_this_daemon", SYSTEMD + "test_default_ports_are_those_of_the_daemon")),
    Row("metrics and the golden table",
        {"tests/unit/metrics/metric_table.json": "penstock_build_info"},
        ("tests/unit/metrics/metric_names_test.cc::MetricTableTest.EqualsTheTableThatPeopleHaveRead",)),
    Row("metrics and the live page",
        {},
        ("tests/unit/metrics/metrics_page_test.cc::MetricsPageTest.EveryFamilyStandsOnThePageBeforeTheFirstBatch",
         "tests/unit/metrics/metrics_page_test.cc::MetricsPageTest.NothingUnregisteredStandsOnThePage")),
    Row("metrics and rules, dashboard",
        {},
        (DRIFT + "test_every_name_and_value_is_exported", DRIFT + "test_every_exported_name_is_used_or_diagnostic"),
        "there is no autoscaler"),
    Row("states: code, rules, panels, colours, traces",
        {},
        (DRIFT + "test_each_state_is_in_exactly_one_class",
         "tests/unit/observe/stage_state_test.cc::StageStateTest.NamesAndColoursAreUniqueAndWellFormed",
         "tests/unit/observe/stage_state_test.cc::StageStateTest.EachStateIsInTheClassThatTheRulesExpect")),
    Row("alerts and runbooks",
        {"deploy/prometheus/alerts.yaml": "runbook_url:"},
        (DRIFT + "test_every_alert_has_a_section_of_the_runbook", DRIFT + "test_every_alert_has_a_firing_and_a_silent_test")),
    Row("health services, times of the end and manifests, unit, compose file",
        {"docs/deployment.md": "## Probes"},
        (MANIFESTS + "test_probes", DOCUMENTS + "test_health_services_in_pages_are_the_probes",
         MANIFESTS + "test_the_end_fits_into_its_grace", SYSTEMD + "test_the_end_fits_into_its_time",
         COMPOSE + "test_flags_exist_and_fit", SYSTEMD + "test_the_watchdog_waits_longer_than_the_liveness_rule")),
    Row("command line and documents, completion: commands, options, exit codes; examples are executed",
        {"docs/cli.md": "Exit codes:"},
        (DOCUMENTS + "test_commands_in_pages_exist", DOCUMENTS + "test_exit_codes_in_pages_are_those_of_the_program",
         "tests/deploy/test_examples.py::test_the_examples_of_a_page_run", "tests/deploy/test_completion.py::test_it_completes")),
    Row("JSON of pages and of the command line", {"docs/schemas/status.json": "penstock status -o json; /statusz"},
        ("tests/observability/test_json.py::test_a_page_has_its_schema",
         "tests/observability/test_json.py::test_a_command_has_the_schema_of_its_page",
         "tests/observability/test_json.py::test_page_and_command_tell_the_same")),
    Row("version: CMake, packages, image label, build_info, changelog",
        {"CMakeLists.txt": "project(Penstock VERSION", "CHANGELOG.md": "# Changelog"},
        (DOCUMENTS + "test_one_version", DOCUMENTS + "test_a_running_daemon_tells_its_version",
         IMAGE + "test_the_configuration_of_what_is_built", IMAGE + "test_the_dockerfile", MANIFESTS + "test_labels_and_image"),
        "of packages there is the Python client's"),
)  # fmt: skip
