"""The chart: least rights, hardened pods, values that are checked, a definition that stays."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from chart.rendering import CHART, Refused, Rendered
from everstep_operator.core.model import Settings as Timers
from everstep_operator.settings import TIMER_PREFIX, VARIABLES, parse_settings
from everstep_protocol import codec

Render = Callable[..., Rendered]
TIMERS = {field.name: field.default for field in dataclasses.fields(Timers) if field.name != "api_port"}
ROOT = CHART.parents[1]
CRD = "trainingjobs.everstep.dev.yaml"


def rules_of(rendered: Rendered) -> list[dict[str, Any]]:
    return [rule for kind in ("ClusterRole", "Role") for role in rendered.of(kind) for rule in role["rules"]]


def pod_of(rendered: Rendered) -> dict[str, Any]:
    pod: dict[str, Any] = rendered.one("Deployment")["spec"]["template"]["spec"]
    return pod


def environment_of(rendered: Rendered) -> dict[str, Any]:
    return {variable["name"]: variable.get("value") for variable in pod_of(rendered)["containers"][0]["env"]}


def test_lint(helm: Callable[..., str]) -> None:
    helm("lint", "--strict", str(CHART))


# Rights


def test_no_wildcard_in_any_rule(render: Render) -> None:
    for rule in rules_of(render()):
        for words in (rule["apiGroups"], rule["resources"], rule["verbs"]):
            assert "*" not in words


def test_secrets_are_written_and_never_read_but_for_the_root_key(render: Render) -> None:
    rules = [rule for rule in rules_of(render()) if "secrets" in rule["resources"]]
    assert [rule["resourceNames"] for rule in rules if "get" in rule["verbs"]] == [["es-everstep-root-key"]]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"create", "get"}
    own = render(rootKey={"existingSecret": "mine"})
    assert [rule["verbs"] for rule in rules_of(own) if "secrets" in rule["resources"]] == [["create"]]


def test_nothing_grants_more_rights_or_runs_in_pods(render: Render) -> None:
    forbidden = {
        "pods/exec",
        "pods/ephemeralcontainers",
        "roles",
        "clusterroles",
        "rolebindings",
        "clusterrolebindings",
    }
    forbidden |= {"serviceaccounts/token", "nodes/proxy", "customresourcedefinitions"}
    assert not forbidden & {resource for rule in rules_of(render()) for resource in rule["resources"]}


def test_only_one_namespace_is_looked_at(render: Render) -> None:
    (rule,) = (rule for rule in rules_of(render()) if "namespaces" in rule["resources"])
    assert rule["verbs"] == ["get"]
    assert rule["resourceNames"] == ["kube-system"]


def test_leases_only_of_nodes_and_its_own(render: Render) -> None:
    roles = [role for role in render().of("Role") if any("leases" in rule["resources"] for rule in role["rules"])]
    assert {role["metadata"]["namespace"] for role in roles} == {"kube-node-lease", "ns"}
    assert not [
        role for role in render().of("ClusterRole") if any("leases" in rule["resources"] for rule in role["rules"])
    ]


def test_with_a_list_of_namespaces_rights_on_pods_are_given_in_those_only(render: Render) -> None:
    rendered = render(watchNamespaces=["team-a", "team-b"])
    bound = {binding["roleRef"]["name"]: [] for binding in rendered.of("RoleBinding")}
    for binding in rendered.of("RoleBinding"):
        bound[binding["roleRef"]["name"]].append(binding["metadata"]["namespace"])
    assert bound["es-everstep-jobs"] == ["team-a", "team-b"]
    assert [binding["roleRef"]["name"] for binding in rendered.of("ClusterRoleBinding")] == ["es-everstep-cluster"]
    assert environment_of(rendered)["EVERSTEP_WATCH_NAMESPACES"] == "team-a,team-b"


def test_every_binding_names_the_operators_account(render: Render) -> None:
    rendered = render(serviceAccount={"create": False, "name": "given"})
    subjects = [binding["subjects"] for kind in ("RoleBinding", "ClusterRoleBinding") for binding in rendered.of(kind)]
    assert subjects
    assert all(subject == [{"kind": "ServiceAccount", "name": "given", "namespace": "ns"}] for subject in subjects)
    assert rendered.of("ServiceAccount") == []
    assert pod_of(rendered)["serviceAccountName"] == "given"


# The pod


def test_the_pod_is_hardened(render: Render) -> None:
    pod = pod_of(render())
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "command" not in container  # the image's entry point: no shell is needed
    assert not [volume for volume in pod["volumes"] if "hostPath" in volume]


def test_probes_and_metrics_share_a_port(render: Render) -> None:
    rendered = render(metrics={"port": 9000})
    (container,) = pod_of(rendered)["containers"]
    assert container["ports"] == [{"name": "metrics", "containerPort": 9000}]
    paths = {
        probe: container[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert paths == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    assert rendered.one("Service")["spec"]["ports"] == [{"name": "metrics", "port": 9000, "targetPort": "metrics"}]
    assert environment_of(rendered)["EVERSTEP_METRICS_PORT"] == "9000"


def test_a_digest_wins_over_a_tag_for_operator_and_sidecar(render: Render) -> None:
    digest = "sha256:" + "0" * 64
    rendered = render(image={"repository": "registry.example.com/everstep", "tag": "1", "digest": digest})
    image = f"registry.example.com/everstep@{digest}"
    assert pod_of(rendered)["containers"][0]["image"] == image
    assert environment_of(rendered)["EVERSTEP_IMAGE"] == image


def test_the_default_tag_is_the_charts_version(render: Render) -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = (ROOT / "pyproject.toml").read_text()
    assert pod_of(render())["containers"][0]["image"] == f"everstep:{chart['appVersion']}"
    assert f'\nversion = "{chart["appVersion"]}"\n' in project


def test_two_replicas_and_a_budget_by_default_one_replica_and_none(render: Render) -> None:
    assert render().one("Deployment")["spec"]["replicas"] == 2
    assert render().one("PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    assert render(replicas=1).of("PodDisruptionBudget") == []


def test_the_rest_of_the_pods_placement_is_the_users(render: Render) -> None:
    tolerations = [{"key": "control", "operator": "Exists"}]
    pod = pod_of(
        render(
            nodeSelector={"role": "control"},
            tolerations=tolerations,
            priorityClassName="high",
            affinity={"nodeAffinity": {}},
        )
    )
    assert pod["nodeSelector"] == {"role": "control"}
    assert pod["tolerations"] == tolerations
    assert pod["priorityClassName"] == "high"
    assert pod["affinity"] == {"nodeAffinity": {}}


# Names and labels


def test_every_object_has_the_standard_labels(render: Render) -> None:
    for document in render(metrics={"serviceMonitor": {"enabled": True}}).documents:
        labels = document["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "everstep", document["kind"]
        assert labels["app.kubernetes.io/instance"] == "es"
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert labels["app.kubernetes.io/version"] == "0.1.0"
        assert labels["helm.sh/chart"] == "everstep-0.1.0"


def test_selectors_hold_only_labels_that_never_change(render: Render) -> None:
    selector = render().one("Deployment")["spec"]["selector"]["matchLabels"]
    assert set(selector) == {f"app.kubernetes.io/{word}" for word in ("name", "instance", "component")}


def test_namespaced_objects_name_their_namespace(render: Render) -> None:
    cluster_wide = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
    for document in render().documents:
        assert ("namespace" in document["metadata"]) != (document["kind"] in cluster_wide), document["kind"]


# The definition


def test_the_charts_copy_is_the_generated_definition() -> None:
    copy = CHART / "files" / CRD
    assert copy.read_bytes() == (ROOT / "crds" / CRD).read_bytes(), "make generate"


def test_the_definition_is_rendered_whole_and_kept(render: Render) -> None:
    rendered = render().one("CustomResourceDefinition")
    generated = yaml.safe_load((ROOT / "crds" / CRD).read_text())
    assert rendered["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert rendered["metadata"].pop("labels")["app.kubernetes.io/instance"] == "es"
    assert rendered == generated


def test_the_definition_can_be_left_to_others(render: Render) -> None:
    assert render(crds={"install": False}).of("CustomResourceDefinition") == []


# The root key


def variables(rendered: Any) -> dict[str, str]:
    return {item["name"]: item.get("value", "") for item in pod_of(rendered)["containers"][0]["env"]}


def test_two_renderings_are_equal_and_hold_no_key(render: Render) -> None:
    """Without a cluster, as GitOps renders it. The operator makes the key, and keeps it."""
    first, second = render(), render()
    assert first.documents == second.documents
    assert first.of("Secret") == []
    assert variables(first)["EVERSTEP_ROOT_KEY_SECRET"] == "es-everstep-root-key"
    assert "root-key" not in {volume["name"] for volume in pod_of(first)["volumes"]}


def test_a_root_key_of_the_users_own(render: Render) -> None:
    rendered = render(rootKey={"existingSecret": "mine"})
    assert rendered.of("Secret") == []
    assert pod_of(rendered)["volumes"][0]["secret"]["secretName"] == "mine"
    assert "EVERSTEP_ROOT_KEY_SECRET" not in variables(rendered)
    assert variables(rendered)["EVERSTEP_ROOT_KEY_FILE"] == "/etc/everstep/root-key/key"


# Values


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"replica": 2}, "replica"),
        ({"replicas": "two"}, "replicas"),
        ({"replicas": -1}, "replicas"),
        ({"image": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"image": {"repository": ""}}, "repository"),
        ({"metrics": {"port": 80}}, "port"),
        ({"sidecar": {"resources": {"cpu": "a lot"}}}, "cpu"),
        ({"sidecar": {"limits": {"cpu": "a lot"}}}, "cpu"),
        ({"sidecar": {"apiPort": "7471"}}, "apiPort"),
        ({"sidecar": {"silenceSeconds": 5}}, "silenceSeconds"),
        ({"timers": {"hangDeadline": 0}}, "hangDeadline"),
        ({"timers": {"hangdeadline": 10}}, "hangdeadline"),
        ({"watchNamespaces": ["Team_A"]}, "watchNamespaces"),
        ({"logLevel": "loud"}, "logLevel"),
        ({"serviceAccount": {"create": False}}, "serviceAccount.name"),
    ],
)
def test_wrong_values_are_refused_by_name(render: Render, values: dict[str, Any], told: str) -> None:
    with pytest.raises(Refused) as refused:
        render(**values)
    assert told in str(refused.value)


def test_the_defaults_are_all_known_to_the_schema(render: Render) -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    render(**values)
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    assert set(schema["properties"]) - {"global"} == set(values)


def test_the_operator_knows_every_variable_that_it_is_given(render: Render) -> None:
    every_timer = dict.fromkeys(timers_in_schema(), 7)
    environment = environment_of(render(timers=every_timer, watchNamespaces=["a"]))
    told = {name: value or "given" for name, value in environment.items()}
    settings = parse_settings(told, identity="")
    assert set(told) <= set(VARIABLES) | {name for name in told if name.startswith(TIMER_PREFIX)}
    assert {getattr(settings.timers, name) for name in TIMERS} == {7}


def test_the_chart_has_every_timer_and_its_default(render: Render) -> None:
    text = (CHART / "values.yaml").read_text()
    defaults = {codec.camel(name): default for name, default in TIMERS.items()}
    shown = {name: float(value) for name, value in re.findall(r"^#  (\w+): ([\d.]+) +#", text, re.MULTILINE)}
    assert shown == defaults
    assert timers_in_schema() == set(defaults)
    assert not [name for name in environment_of(render()) if name.startswith(TIMER_PREFIX)]


def test_the_readme_has_every_timer_and_its_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", (CHART / "README.md").read_text(), re.MULTILINE)
    assert {name: float(value) for name, value in rows} == {
        codec.camel(name): default for name, default in TIMERS.items()
    }


def timers_in_schema() -> set[str]:
    schema = json.loads((CHART / "values.schema.json").read_text())
    return set(schema["properties"]["timers"]["properties"])


def test_defaults_are_the_operators_own(render: Render) -> None:
    given = parse_settings({name: value or "" for name, value in environment_of(render()).items()}, identity="x")
    own = parse_settings({}, identity="x")
    same = {"image": given.pods.image, "image_pull_policy": given.pods.image_pull_policy}
    assert given.pods == dataclasses.replace(own.pods, **same)
    assert given.lease.seconds == own.lease.seconds
    assert given.timers == own.timers
    assert given.root_key_file == own.root_key_file
