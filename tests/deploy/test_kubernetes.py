"""The chart and the plain manifests give the same objects, and every pod follows the rules of production."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
import yaml

from deploy.kubernetes.chart import CHART, default_values, example_values, render_chart
from deploy.kubernetes.generate import K8S, OVERLAYS, copies, manifests
from deploy.kubernetes.overlays import apply_patch, build, diff
from runlane.api.client_side import ProxyTrust
from runlane.cli.commands import load_command
from runlane.settings import Settings, load_settings
from runlane.version import VERSION

EXAMPLES: dict[str, dict[str, Any]] = {"default": {}, **{name: example_values(name) for name in OVERLAYS}}
VARIANTS = pytest.mark.parametrize("values", EXAMPLES.values(), ids=EXAMPLES)


def of_kind(objects: list[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    return [item for item in objects if item["kind"] in kinds]


def pods(objects: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return the specifications of all pods, with the component that they belong to."""
    for item in of_kind(objects, "Deployment", "Job"):
        template = item["spec"]["template"]
        yield template["metadata"]["labels"]["app.kubernetes.io/component"], template["spec"]


# --- one source


def test_the_manifests_are_generated_from_the_chart() -> None:
    expected = manifests()
    found = {str(path.relative_to(K8S)): path.read_text() for path in K8S.rglob("*.yaml")}
    assert found == expected, "Run: python -m deploy.kubernetes.generate"
    assert copies() == {path.name: path.read_text() for path in (CHART / "files").iterdir()}


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_gives_the_objects_of_the_chart(name: str) -> None:
    assert build(K8S / "overlays" / name) == render_chart(example_values(name))


def test_the_base_gives_the_objects_of_the_chart() -> None:
    assert build(K8S / "base") == render_chart()


def test_patches_turn_one_object_into_the_other() -> None:
    before = {"a": 1, "b/c": {"d": [1, 2]}, "e": [{"f": 1}, {"g": 2}], "h": 3}
    after = {"a": 2, "b/c": {"d": [1]}, "e": [{"f": 1}, {"g": 3, "i": 4}], "j": None}
    assert apply_patch(before, list(diff(before, after))) == after


def test_versions_agree() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == default_values()["image"]["tag"] == VERSION


# --- rules of production


@VARIANTS
def test_every_pod_is_restricted(values: dict[str, Any]) -> None:
    found = list(pods(render_chart(values)))
    assert {component for component, _ in found} == {"server", "worker", "migrate"}
    for component, pod in found:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert "runAsUser" not in pod["securityContext"]
        assert pod["enableServiceLinks"] is False
        assert "hostNetwork" not in pod
        may_patch = component == "worker" and values.get("deletionCost", False)
        assert pod["automountServiceAccountToken"] is may_patch
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
            resources = container["resources"]
            assert {"cpu", "memory"} <= set(resources["requests"])
            # A worker that is throttled renews its lease late and looks dead.
            assert set(resources["limits"]) == {"memory"}
            assert not container["image"].endswith(":latest")
            assert {mount["mountPath"] for mount in container["volumeMounts"]} >= {"/tmp", "/etc/runlane"}
        writable = [volume for volume in pod["volumes"] if "secret" not in volume]
        assert [volume["emptyDir"]["sizeLimit"] for volume in writable] == ["64Mi"]


@VARIANTS
def test_secrets_are_files_and_references(values: dict[str, Any]) -> None:
    objects = render_chart(values)
    assert of_kind(objects, "Secret") == []
    (settings,) = (item for item in of_kind(objects, "ConfigMap") if item["metadata"]["name"] == "runlane")
    assert settings["data"]["RUNLANE_DATABASE_URL_FILE"] == "/etc/runlane/database-url"
    assert "postgresql://" not in str(objects)


@VARIANTS
def test_the_grace_period_has_one_source(values: dict[str, Any]) -> None:
    given = {**values, "graceSeconds": 100, "cancelGraceSeconds": 7}
    objects = render_chart(given)
    (settings,) = (item for item in of_kind(objects, "ConfigMap") if item["metadata"]["name"] == "runlane")
    assert settings["data"]["RUNLANE_GRACE_SECONDS"] == "100"
    assert settings["data"]["RUNLANE_CANCEL_GRACE_SECONDS"] == "7"
    workers = [pod for component, pod in pods(objects) if component == "worker"]
    assert {pod["terminationGracePeriodSeconds"] for pod in workers} == {122}


def test_the_defaults_are_those_of_the_settings() -> None:
    fields, values = Settings.model_fields, default_values()
    assert values["graceSeconds"] == fields["grace_seconds"].default
    assert values["cancelGraceSeconds"] == fields["cancel_grace_seconds"].default
    assert values["workers"][0]["concurrency"] == fields["concurrency"].default


@VARIANTS
def test_probes_do_not_restart_processes_without_a_database(values: dict[str, Any]) -> None:
    for component, pod in pods(render_chart(values)):
        if component == "migrate":
            continue
        (container,) = pod["containers"]
        port = {"server": "http", "worker": "health"}[component]
        health, ready = {"path": "/health", "port": port}, {"path": "/ready", "port": port}
        assert container["livenessProbe"] == {
            "httpGet": health, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6,
        }  # fmt: skip
        assert container["startupProbe"] == {"httpGet": health, "periodSeconds": 1, "failureThreshold": 30}
        assert container["readinessProbe"] == {"httpGet": ready, "periodSeconds": 5, "timeoutSeconds": 5}
        if component == "server":
            # Load balancers remove the endpoint before streams end.
            assert container["lifecycle"] == {"preStop": {"sleep": {"seconds": 5}}}
            assert pod["terminationGracePeriodSeconds"] == 60
        else:
            assert "lifecycle" not in container, "SIGTERM begins the drain at once"


@VARIANTS
def test_rollouts_and_drains_keep_capacity(values: dict[str, Any]) -> None:
    objects = render_chart(values)
    for item in of_kind(objects, "Deployment"):
        component = item["metadata"]["labels"]["app.kubernetes.io/component"]
        surge = {"server": 1, "worker": "25%"}[component]
        assert item["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": surge}
        assert item["spec"]["minReadySeconds"] == 10
        constraints = item["spec"]["template"]["spec"]["topologySpreadConstraints"]
        assert {one["topologyKey"] for one in constraints} == {"topology.kubernetes.io/zone", "kubernetes.io/hostname"}
    budgets = {item["metadata"]["name"]: item["spec"] for item in of_kind(objects, "PodDisruptionBudget")}
    server = values.get("server", {})
    single = server.get("replicas") == 1 and not server.get("autoscaling")
    assert ("runlane-server" in budgets) is not single
    for name, spec in budgets.items():
        if name == "runlane-server":
            assert spec["minAvailable"] == 1
        else:
            assert spec["maxUnavailable"] == "25%"
            assert "minAvailable" not in spec


@pytest.mark.parametrize(
    ("replicas", "least", "budget"), [(2, None, True), (1, None, False), (2, 1, False), (1, 2, True)]
)
def test_a_single_server_has_no_budget_that_would_block_the_drain_of_its_node(
    replicas: int, least: int | None, budget: bool
) -> None:
    scaled = {"autoscaling": {"enabled": True, "minReplicas": least}} if least else {}
    objects = render_chart({"server": {"replicas": replicas, **scaled}})
    names = {item["metadata"]["name"] for item in of_kind(objects, "PodDisruptionBudget")}
    assert ("runlane-server" in names) is budget


@VARIANTS
def test_networks_are_closed_by_default(values: dict[str, Any]) -> None:
    policies = {item["metadata"]["name"]: item["spec"] for item in of_kind(render_chart(values), "NetworkPolicy")}
    deny = policies["runlane-default-deny"]
    assert deny["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in deny
    assert "egress" not in deny
    (internet,) = policies["runlane-internet"]["egress"]
    block = internet["to"][0]["ipBlock"]
    # Networks of clusters and of machines, and the addresses of metadata services (169.254.169.254, 100.100.100.200).
    assert {"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16"} == set(block["except"])
    assert internet["ports"] == [{"port": 443, "protocol": "TCP"}]
    for name in ("runlane-server", "runlane-worker"):
        assert all(rule["from"] for rule in policies[name]["ingress"])
    # Beside public addresses, pods reach the database, Redis and the resolver, and nothing else.
    storage, names = policies["runlane-storage"]["egress"]
    assert {port["port"] for port in storage["ports"]} == ({5432, 6379} if values.get("redis", True) else {5432})
    assert {port["port"] for port in names["ports"]} <= {53, 5353}
    outbound = {name for name, spec in policies.items() if spec.get("egress")}
    assert outbound == {"runlane-storage", "runlane-internet"} | (
        {"runlane-deletion-cost"} if values.get("deletionCost") else set()
    )


def test_pods_reach_the_resolver_of_openshift() -> None:
    policies = {item["metadata"]["name"]: item["spec"] for item in render_chart(example_values("openshift"))
                if item["kind"] == "NetworkPolicy"}  # fmt: skip
    names = policies["runlane-storage"]["egress"][1]
    # A policy sees the port of the pod, not that of the service.
    assert {port["port"] for port in names["ports"]} == {5353}
    (peer,) = names["to"]
    assert peer["podSelector"] == {"matchLabels": {"dns.operator.openshift.io/daemonset-dns": "default"}}


@VARIANTS
def test_the_dashboard_works_behind_the_ingress(values: dict[str, Any]) -> None:
    """A change must come from the origin that the browser sees, which only a trusted proxy can report."""
    objects = render_chart(values)
    (config,) = (item for item in of_kind(objects, "ConfigMap") if item["metadata"]["name"] == "runlane")
    networks = config["data"].get("RUNLANE_TRUSTED_PROXIES")
    assert (networks is not None) is bool(of_kind(objects, "Ingress"))
    headers = [(b"host", b"runs.example.com"), (b"x-forwarded-proto", b"https")]
    trust = ProxyTrust(load_settings(trusted_proxies=networks))
    side = trust.read({"type": "http", "scheme": "http", "client": ("10.128.2.7", 1), "headers": headers})
    assert side.origin == f"{'http' if networks is None else 'https'}://runs.example.com"


def test_servers_reach_the_internet_only_where_they_deliver_webhooks() -> None:
    def allowed(*, egress: bool) -> list[str]:
        objects = render_chart({"networkPolicy": {"serverEgress": egress}})
        (policy,) = (item for item in objects if item["metadata"]["name"] == "runlane-internet")
        return policy["spec"]["podSelector"]["matchExpressions"][0]["values"]

    assert (allowed(egress=True), allowed(egress=False)) == (["worker", "server"], ["worker"])


def test_a_pool_with_an_autoscaler_has_no_fixed_number() -> None:
    objects = render_chart(example_values("keda"))
    scaled = of_kind(objects, "ScaledObject")
    assert len(scaled) == 2
    for item in scaled:
        name = item["spec"]["scaleTargetRef"]["name"]
        (deployment,) = (one for one in of_kind(objects, "Deployment") if one["metadata"]["name"] == name)
        assert "replicas" not in deployment["spec"]
        (trigger,) = item["spec"]["triggers"]
        assert trigger["metadata"]["valueLocation"] == "wanted_slots"
        arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
        assert f"--concurrency={trigger['metadata']['targetValue']}" in arguments
        lanes = next(word for word in arguments if word.startswith("--lanes=")).removeprefix("--lanes=")
        assert trigger["metadata"]["url"].endswith(f"&lanes={lanes}")
        assert item["spec"]["fallback"]["replicas"] > 0
        assert item["spec"]["fallback"]["failureThreshold"] == 3
        assert (trigger["type"], trigger["metricType"], trigger["metadata"]["authMode"]) == (
            "metrics-api", "AverageValue", "bearer",
        )  # fmt: skip
        assert trigger["metadata"]["activationTargetValue"] == "0"
        assert "aggregateFromKubeServiceEndpoints" not in trigger["metadata"]


def test_deletion_cost_may_only_patch_pods() -> None:
    objects = render_chart(example_values("keda"))
    (role,) = of_kind(objects, "Role")
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}]
    assert of_kind(render_chart(), "Role", "RoleBinding") == []


def test_the_first_key_is_stored_before_servers_start() -> None:
    def command(values: dict[str, Any]) -> list[str]:
        (job,) = of_kind(render_chart(values), "Job")
        (container,) = job["spec"]["template"]["spec"]["containers"]
        return [*container.get("command", ["runlane"]), *container["args"]]

    assert command({}) == ["runlane", "db", "upgrade"]
    shell, option, script = command({"adminKey": True})
    assert (shell, option) == ("sh", "-ec")
    first, second = script.split(" && ")
    assert first == "runlane db upgrade"
    # A command of this version, with the file of the secret.
    with pytest.raises(SystemExit) as stopped:
        load_command("keys").main([*second.split()[2:], "--help"], prog_name="runlane keys")
    assert stopped.value.code == 0
    assert second.endswith("--key-file /etc/runlane/admin-key")


WRONG: list[dict[str, Any]] = [
    {"servers": {}},
    {"image": {"repositry": "a"}},
    {"graceSeconds": "30"},
    {"settings": {"RUNLANE_GRACE_SECONDS": "10"}},
    {"settings": {"RUNLANE_DATABASE_URL": "postgresql://app:pa55@db/runs"}},
    {"settings": {"CONCURRENCY": "10"}},
    {"settings": {"RUNLANE_TRUSTED_PROXIES": "10.0.0.0/8"}, "ingress": {"enabled": True}},
    {"workers": [{"name": "A B", "replicas": 1, "lanes": [], "concurrency": 1, "keda": {"enabled": False}}]},
    {"image": {"digest": "latest"}},
    # Left out, it would be 0: the pool would scale to zero.
    {"workers": [{"name": "a", "replicas": 1, "lanes": [], "concurrency": 1, "keda": {"enabled": True}}]},
]


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_values_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema_rs.ValidationError):
        render_chart(wrong)


def test_everything_that_policies_of_clusters_ask_for_can_be_set() -> None:
    extra = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "extra"}, "data": {"a": "b"}}
    objects = render_chart(
        {
            "app": "shop.tasks:app",
            "image": {"digest": "sha256:" + "0" * 64},
            "imagePullSecrets": [{"name": "registry"}],
            "extraEnv": [
                {"name": "OPENAI_API_KEY", "valueFrom": {"secretKeyRef": {"name": "models", "key": "openai"}}}
            ],
            "extraVolumes": [{"name": "data", "emptyDir": {"sizeLimit": "64Mi"}}],
            "extraVolumeMounts": [{"name": "data", "mountPath": "/data"}],
            "worker": {"priorityClassName": "batch", "nodeSelector": {"pool": "spot"}, "podAnnotations": {"a": "b"}},
            "server": {"tolerations": [{"key": "a", "operator": "Exists"}], "affinity": {"nodeAffinity": {}}},
            "migrate": {
                "extraEnv": [{"name": "PGSSLROOTCERT", "value": "/certificates/ca.crt"}],
                "extraVolumes": [{"name": "certificates", "configMap": {"name": "ca"}}],
                "extraVolumeMounts": [{"name": "certificates", "mountPath": "/certificates"}],
                "podAnnotations": {"sidecar.istio.io/inject": "false"},
                "nodeSelector": {"pool": "on-demand"},
                "tolerations": [{"key": "b", "operator": "Exists"}],
                "affinity": {"nodeAffinity": {}},
                "priorityClassName": "high",
            },
            "extraObjects": [extra],
        }
    )
    assert extra in objects
    (job,) = of_kind(objects, "Job")
    assert job["spec"]["template"]["metadata"]["annotations"] == {"sidecar.istio.io/inject": "false"}
    for component, pod in pods(objects):
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
        (container,) = pod["containers"]
        assert container["image"] == "runlane@sha256:" + "0" * 64
        if component == "migrate":
            # Where the database is reached by a certificate of its own, the job needs it, too.
            assert any(variable["name"] == "PGSSLROOTCERT" for variable in container["env"])
            assert any(mount["mountPath"] == "/certificates" for mount in container["volumeMounts"])
            assert any(volume["name"] == "certificates" for volume in pod["volumes"])
            assert (pod["priorityClassName"], pod["nodeSelector"]) == ("high", {"pool": "on-demand"})
            assert (pod["tolerations"], pod["affinity"]) == ([{"key": "b", "operator": "Exists"}], {"nodeAffinity": {}})
            continue
        assert container["args"][1] == "shop.tasks:app"
        assert any(variable["name"] == "OPENAI_API_KEY" for variable in container["env"])
        assert any(mount["mountPath"] == "/data" for mount in container["volumeMounts"])
        if component == "worker":
            assert (pod["priorityClassName"], pod["nodeSelector"]) == ("batch", {"pool": "spot"})
        else:
            assert pod["tolerations"] == [{"key": "a", "operator": "Exists"}]
