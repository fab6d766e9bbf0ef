"""What the chart in deploy/helm renders, and a check that everything in it refers to something that is there."""

import re
import subprocess
import unittest
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from fractune_core.fleet.redis_users import USERS
from tests.support.paths import REPOSITORY

CHART = REPOSITORY / "deploy" / "helm" / "fractune"
EXAMPLES = {path.stem: path for path in sorted((CHART / "examples").iterdir())}
RELEASE = "r"
TOOLS = REPOSITORY / "build" / "chart-tools"
_WORKLOADS = ("StatefulSet", "Deployment")
_SECRET_KEYS = {"fleet.secret", "users.acl", "database.password", *(f"{user}.password" for user in USERS)}
_SECRETS = {"fractune": _SECRET_KEYS, "fractune-tls": {"tls.crt", "tls.key", "ca.crt"}}
_ONLY_DENIES = {"podSelector", "policyTypes"}
_FILES = re.compile(r"^/(?:run/secrets|state|data|tmp)/?\S*")


@cache
def helm() -> Path:
    """The program, fetched once. Skips the test where it cannot be had."""
    fetched = subprocess.run([REPOSITORY / "scripts" / "chart_tools"], capture_output=True, text=True, check=False)
    if fetched.returncode:
        raise unittest.SkipTest(f"scripts/chart_tools: {fetched.stderr.strip().splitlines()[-1:]}")
    return TOOLS / "helm"


def render(*values: Path) -> list[dict[str, Any]]:
    chosen = [word for path in values for word in ("--values", str(path))]
    said = subprocess.run([helm(), "template", RELEASE, CHART, *chosen], capture_output=True, text=True, check=True)
    return [document for document in yaml.safe_load_all(said.stdout) if document]


def workloads(documents: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name and the pod of each."""
    for document in documents:
        if document["kind"] in _WORKLOADS:
            yield document["metadata"]["name"], document["spec"]["template"]["spec"]


def faults(documents: Sequence[Mapping[str, Any]]) -> list[str]:
    """What refers to nothing, breaks the restricted profile of pods, or contradicts what a node needs."""
    by_kind: dict[str, dict[str, Any]] = {}
    for document in documents:
        by_kind.setdefault(document["kind"], {})[document["metadata"]["name"]] = document
    owners = [each for kind in _WORKLOADS for each in by_kind.get(kind, {}).values()]
    pods = {each["metadata"]["name"]: each["spec"]["template"] for each in owners}
    found = [fault for each in owners for fault in _workload_faults(each, by_kind)]
    for name, service in by_kind.get("Service", {}).items():
        found += _service_faults(name, service["spec"], pods)
    found += _policy_faults(by_kind.get("NetworkPolicy", {}), pods)
    nodes = {name for name in pods if name.startswith(f"{RELEASE}-node-")}
    for name, budget in by_kind.get("PodDisruptionBudget", {}).items():
        if _selected(budget["spec"]["selector"], pods) != nodes:
            found.append(f"budget {name} does not select the nodes")
    for name, scaled in by_kind.get("ScaledObject", {}).items():
        target = by_kind["Deployment"].get(scaled["spec"]["scaleTargetRef"]["name"])
        if target is None or "replicas" in target["spec"]:
            found.append(f"{name} scales what is not there, or has a number of its own")
    for monitor in by_kind.get("ServiceMonitor", {}).values():
        found += _monitor_faults(monitor, by_kind["Service"])
    return found


def _policy_faults(policies: Mapping[str, Any], pods: Mapping[str, Any]) -> Iterator[str]:
    for name, policy in policies.items():
        selectors = [policy["spec"]["podSelector"], *_peers(policy["spec"])]
        yield from (f"policy {name} selects nothing" for each in selectors if not _selected(each, pods))
    denied = [each["spec"]["podSelector"] for each in policies.values() if set(each["spec"]) == _ONLY_DENIES]
    if not any(_selected(each, pods) == set(pods) for each in denied):
        yield "no policy denies what is not allowed"


def _monitor_faults(monitor: Mapping[str, Any], services: Mapping[str, Any]) -> Iterator[str]:
    labels = monitor["spec"]["selector"]["matchLabels"].items()
    chosen = [each for each in services.values() if labels <= each["metadata"].get("labels", {}).items()]
    ports = {port["name"] for each in chosen for port in each["spec"]["ports"]}
    if not {each["port"] for each in monitor["spec"]["endpoints"]} <= ports:
        yield f"{monitor['metadata']['name']} scrapes a port that is not there"


def _workload_faults(document: Mapping[str, Any], by_kind: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    name, spec = document["metadata"]["name"], document["spec"]
    pod, labels = spec["template"]["spec"], spec["template"]["metadata"]["labels"]
    if not spec["selector"]["matchLabels"].items() <= labels.items():
        yield f"{name} does not select its own pods"
    if document["kind"] == "StatefulSet" and spec["serviceName"] not in by_kind.get("Service", {}):
        yield f"{name} has no service"
    claimed = {each["metadata"]["name"] for each in spec.get("volumeClaimTemplates", [])}
    volumes = claimed | {each["name"] for each in pod.get("volumes", [])}
    for volume in pod.get("volumes", []):
        if secret := volume.get("secret"):
            known = _SECRETS.get(secret["secretName"], set())
            keys = {item["key"] for item in secret.get("items", [])}
            if not known or not keys <= known:
                yield f"{name} mounts a secret that is not there: {secret['secretName']} {keys - known}"
    for template in {each["resourceClaimTemplateName"] for each in pod.get("resourceClaims", [])}:
        if template not in by_kind.get("ResourceClaimTemplate", {}):
            yield f"{name} claims {template}, which is not there"
    restricted = pod.get("securityContext", {})
    if restricted.get("runAsNonRoot") is not True or restricted.get("seccompProfile") != {"type": "RuntimeDefault"}:
        yield f"{name} is not restricted"
    for container in pod["containers"]:
        yield from _container_faults(name, container, pod, volumes, by_kind.get("Service", {}))


def _container_faults(
    name: str, container: Mapping[str, Any], pod: Mapping[str, Any], volumes: set[str], services: Mapping[str, Any]
) -> Iterator[str]:
    own = container.get("securityContext", {})
    if own.get("allowPrivilegeEscalation") is not False or own.get("capabilities") != {"drop": ["ALL"]}:
        yield f"{name} is not restricted"
    if own.get("readOnlyRootFilesystem") is not True:
        yield f"{name} writes to its root"
    mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    yield from (f"{name} mounts {each}, which is not there" for each in set(mounts.values()) - volumes)
    files = _mounted_files(mounts, pod)
    for word in [*container["args"], *(each["value"] for each in container.get("env", []))]:
        if _FILES.match(word) and word not in files and not any(word.startswith(f"{path}/") for path in files):
            yield f"{name} names {word}, which no volume has"
        for host, port in re.findall(rf"@({RELEASE}-[a-z-]+):(\d+)", word):
            if int(port) not in {each["port"] for each in services.get(host, {"spec": {}})["spec"].get("ports", [])}:
                yield f"{name} calls {host}:{port}, which is not there"
    yield from _probe_faults(name, container)
    if container["args"][0] == "node":
        yield from _node_faults(name, container, pod)


def _probe_faults(name: str, container: Mapping[str, Any]) -> Iterator[str]:
    ports = {key for each in container.get("ports", []) for key in (each["name"], each["containerPort"])}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        for kind in ("grpc", "httpGet", "tcpSocket"):
            port = container.get(probe, {}).get(kind, {}).get("port")
            if port is not None and port not in ports:
                yield f"{name} is probed at {port}, where nothing listens"


def _node_faults(name: str, container: Mapping[str, Any], pod: Mapping[str, Any]) -> Iterator[str]:
    resources = container["resources"]
    if resources["requests"] != resources["limits"] or not str(resources["limits"]["cpu"]).isdecimal():
        yield f"{name} does not own its cores"
    if float(container["args"][container["args"].index("--grace") + 1]) >= pod["terminationGracePeriodSeconds"]:
        yield f"{name} is killed before its grace time is over"
    claimed = {each["name"] for each in pod.get("resourceClaims", [])}
    if not {each["name"] for each in resources.get("claims", [])} <= claimed:
        yield f"{name} uses a claim that is not there"


def _mounted_files(mounts: Mapping[str, str], pod: Mapping[str, Any]) -> set[str]:
    """The paths that a container may name: files of secrets, and folders of other volumes."""
    secrets = {each["name"]: each["secret"] for each in pod.get("volumes", []) if "secret" in each}
    found = set()
    for path, volume in mounts.items():
        secret = secrets.get(volume)
        if secret is None:
            found.add(path)
            continue
        keys = {item["path"] for item in secret.get("items", [])} or _SECRETS.get(secret["secretName"], set())
        found |= {f"{path}/{key}" for key in keys}
    return found


def _service_faults(name: str, spec: Mapping[str, Any], pods: Mapping[str, Any]) -> Iterator[str]:
    selected = _selected({"matchLabels": spec["selector"]}, pods)
    if not selected:
        yield f"service {name} selects nothing"
    for port in spec.get("ports", []):
        for pod in selected:
            containers = pods[pod]["spec"]["containers"]
            if port["targetPort"] not in {each["name"] for one in containers for each in one.get("ports", [])}:
                yield f"service {name} has no port {port['targetPort']} to go to"


def _selected(selector: Mapping[str, Any], pods: Mapping[str, Any]) -> set[str]:
    return {name for name, pod in pods.items() if _matches(selector, pod["metadata"]["labels"])}


def _matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    chosen: bool = selector.get("matchLabels", {}).items() <= labels.items()
    for rule in selector.get("matchExpressions", []):
        chosen &= (labels.get(rule["key"]) in rule["values"]) is (rule["operator"] == "In")
    return chosen


def _peers(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    rules = [*spec.get("ingress", []), *spec.get("egress", [])]
    for rule in rules:
        for peer in [*rule.get("from", []), *rule.get("to", [])]:
            if "podSelector" in peer:
                yield peer["podSelector"]
