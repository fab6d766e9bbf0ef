"""The chart in deploy/helm: it renders, Kubernetes's schemas take it, everything refers to something that is there, and
what its pods would run does a job on this machine.
"""

import copy
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fractune.local.embedded_redis import redis_binary, write_redis_users
from tests.support.chart import CHART, EXAMPLES, TOOLS, faults, helm, render, workloads
from tests.support.processes.cli_process import write_model
from tests.support.processes.networks import Network
from tests.support.processes.redis_process import wait_until

Documents = list[dict[str, Any]]
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

CHOICES = {"defaults": [], **{name: [path] for name, path in EXAMPLES.items()}}
OLDEST_WITH_CLAIMS = "1.34"
VERSIONS = ("1.29", "1.32", "1.35")
FOREIGN = ("keda.sh", "monitoring.coreos.com")
VALIDATE = """
import json, sys
import kubernetes_validate
documents, versions = json.load(sys.stdin)
for version in versions:
    for document in documents:
        kubernetes_validate.validate(document, version, strict=True)
"""


@pytest.mark.parametrize("name", CHOICES)
def test_the_chart_renders_to_what_kubernetes_takes(name: str) -> None:
    linted = subprocess.run(
        [helm(), "lint", CHART, "--strict", *(f"--values={path}" for path in CHOICES[name])],
        capture_output=True,
        text=True,
        check=False,
    )
    assert linted.returncode == 0, linted.stdout
    documents = render(*CHOICES[name])
    own = [each for each in documents if each["apiVersion"].split("/")[0] not in FOREIGN]
    versions = [OLDEST_WITH_CLAIMS, VERSIONS[-1]] if name == "mig" else VERSIONS
    checked = subprocess.run(
        [sys.executable, "-c", VALIDATE],
        input=json.dumps([own, versions]),
        env={**os.environ, "PYTHONPATH": str(TOOLS / "python")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr[-2000:]
    assert faults(documents) == []


@pytest.mark.parametrize(
    "wrong",
    ["nodes=[]", "nodes[0].cpus=1.5", "nodes[0].name=Not a name", "valkey.address=redis://host", "secret="],
)
def test_values_that_cannot_work_are_refused(wrong: str) -> None:
    words = ["--set-json", "nodes=[]"] if wrong == "nodes=[]" else ["--set", wrong]
    said = subprocess.run([helm(), "template", CHART, *words], capture_output=True, text=True, check=False)
    assert said.returncode != 0
    assert "schema" in said.stderr


def _one(documents: Documents, kind: str, name: str) -> dict[str, Any]:
    (found,) = (each for each in documents if (each["kind"], each["metadata"]["name"]) == (kind, f"r-{name}"))
    return found


def _pod(documents: Documents, name: str) -> dict[str, Any]:
    return dict(workloads(documents))[f"r-{name}"]


def _container(documents: Documents, name: str) -> dict[str, Any]:
    found: dict[str, Any] = _pod(documents, name)["containers"][0]
    return found


def _word(documents: Documents, name: str, old: str, new: str) -> None:
    args = _container(documents, name)["args"]
    args[:] = [word.replace(old, new) for word in args]


def _drop(documents: Documents, kind: str, name: str) -> None:
    documents.remove(_one(documents, kind, name))


SEEDED: list[Callable[[Documents], object]] = [
    lambda d: _drop(d, "Service", "valkey"),
    lambda d: _drop(d, "Service", "node-cpu"),
    lambda d: _drop(d, "NetworkPolicy", "deny"),
    lambda d: _word(d, "build", "r-valkey", "r-redis"),
    lambda d: _word(d, "tune", ":6379", ":6380"),
    lambda d: _word(d, "compile", "compile.password", "build.password"),
    lambda d: _word(d, "server", "tls.crt", "cert.pem"),
    lambda d: _word(d, "node-cpu", "170", "200"),
    lambda d: _pod(d, "node-cpu")["volumes"].pop(),
    lambda d: _pod(d, "server")["volumes"][-1]["secret"].update(secretName="tls"),
    lambda d: _pod(d, "tune")["volumes"][-1]["secret"]["items"][1].update(key="tuner.password"),
    lambda d: _pod(d, "build")["securityContext"].pop("runAsNonRoot"),
    lambda d: _container(d, "valkey")["securityContext"].pop("capabilities"),
    lambda d: _container(d, "server")["securityContext"].update(readOnlyRootFilesystem=False),
    lambda d: _container(d, "node-cpu")["resources"]["requests"].update(cpu="3"),
    lambda d: _container(d, "server")["ports"].pop(),
    lambda d: _container(d, "valkey")["readinessProbe"].update(tcpSocket={"port": 6380}),
    lambda d: _one(d, "Service", "server")["spec"]["selector"].update({"app.kubernetes.io/component": "servers"}),
    lambda d: _one(d, "Deployment", "build")["spec"].update(replicas=4),
    lambda d: _one(d, "PodDisruptionBudget", "nodes")["spec"]["selector"]["matchExpressions"][0].update(values=["x"]),
    lambda d: _one(d, "StatefulSet", "server")["spec"]["selector"]["matchLabels"].update(a="b"),
    lambda d: _one(d, "NetworkPolicy", "valkey")["spec"]["podSelector"]["matchLabels"].update(a="b"),
    lambda d: _one(d, "ServiceMonitor", "server")["spec"]["endpoints"][0].update(port="http"),
]


def test_seeded_faults_are_found() -> None:
    rendered = render(EXAMPLES["scaled"])
    missed = []
    for number, seed in enumerate(SEEDED):
        documents = copy.deepcopy(rendered)
        seed(documents)
        if not faults(documents):
            missed.append(number)
    assert missed == []


PROBE = """
import sys, grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
with grpc.insecure_channel(f"127.0.0.1:{sys.argv[1]}") as channel:
    said = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=sys.argv[2]), timeout=5)
sys.exit(said.status != health_pb2.HealthCheckResponse.SERVING)
"""


class Rehearsal:
    """The containers of the chart as processes in one network of their own, where each listens at its own port."""

    def __init__(self, folder: Path, documents: Documents) -> None:
        self.network = Network()
        self.run("ip", "link", "set", "lo", "up")
        self._pods = {name.removeprefix("r-"): pod for name, pod in workloads(documents)}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._log = (folder / "log").open("wb")
        write_redis_users(folder / "secrets")
        (folder / "secrets" / "fleet.secret").write_text("s" * 64)
        for name in ("state", "data"):
            (folder / name).mkdir()
        self._tmp = tempfile.TemporaryDirectory(prefix="chart-")
        self._places = {"/run/secrets/fractune": f"{folder}/secrets", "/state": f"{folder}/state"}
        self._places |= {"/data": f"{folder}/data", "r-valkey:": "127.0.0.1:"}

    def run(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        with self.network:
            return subprocess.run(words, capture_output=True, text=True, check=False, **options)

    def start(self, name: str) -> None:
        """Start the container of the pod, and wait until its startup probe, if it has one, is content."""
        (container,) = self._pods[name]["containers"]
        program = [str(redis_binary())] if container.get("command") else [sys.executable, "-m", "fractune.cli"]
        env = {each["name"]: self._here(each["value"]) for each in container.get("env", [])}
        with self.network:
            self._running[name] = subprocess.Popen(
                [*program, *map(self._here, container["args"])],
                env={**os.environ, **env, "TMPDIR": self._tmp.name},
                stdout=self._log,
                stderr=self._log,
            )
        probe = container.get("startupProbe")
        if probe:
            wait_until(lambda: self.content(probe), probe["periodSeconds"] * probe["failureThreshold"], 0.5)

    def content(self, probe: dict[str, Any]) -> bool:
        if "grpc" in probe:
            words = [sys.executable, "-c", PROBE, str(probe["grpc"]["port"]), probe["grpc"].get("service", "")]
        else:
            words = ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/6379"]
        return self.run(*words).returncode == 0

    def is_live(self, name: str) -> bool:
        (container,) = self._pods[name]["containers"]
        return all(self.content(container[kind]) for kind in ("readinessProbe", "livenessProbe"))

    def end(self, name: str) -> int:
        """The exit code after SIGTERM, within the grace time."""
        process = self._running.pop(name)
        process.terminate()
        return process.wait(self._pods[name]["terminationGracePeriodSeconds"])

    def close(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()
        self._log.close()
        self._tmp.cleanup()
        self.network.close()

    def _here(self, word: str) -> str:
        for there, here in self._places.items():
            word = word.replace(there, here)
        return word


def test_what_the_pods_would_run_does_a_job_and_ends_in_time(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    node = {"name": "cpu", "replicas": 1, "shares": ["cpu:1"], "cpus": 1, "memory": "4Gi"}
    values.write_text(json.dumps({"nodes": [node]}))
    rehearsal = Rehearsal(tmp_path, render(EXAMPLES["plain"], values))
    pods = ("valkey", "server", "compile", "tune", "build", "node-cpu")
    try:
        for name in pods:
            rehearsal.start(name)
        assert rehearsal.is_live("valkey")
        assert rehearsal.is_live("server")
        workers = [sys.executable, "-m", "fractune.cli", "workers", "--server", "127.0.0.1:50051"]
        wait_until(lambda: rehearsal.run(*workers).stdout.count("│ workers/") == 4, 120, 1.0)
        tune = ["tune", str(write_model(tmp_path / "m.onnx")), "--shares", "cpu:1", "--trials", "4"]
        words = [*tune, "--server", "127.0.0.1:50051", "--out", str(tmp_path / "m.fractune")]
        said = rehearsal.run(sys.executable, "-m", "fractune.cli", *words)
        assert said.returncode == 0, said.stderr + (tmp_path / "log").read_text()
        assert (tmp_path / "m.fractune").exists()
        assert {name: rehearsal.end(name) for name in reversed(pods)} == dict.fromkeys(pods, 0)
    finally:
        rehearsal.close()
