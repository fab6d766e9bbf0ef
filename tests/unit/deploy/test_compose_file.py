"""docker-compose.yml: what is promised of every service, of secrets and variables."""

import itertools
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fractune_core.fleet.redis_users import ROLES
from tests.support.compose_files import COMPOSE, GPU, POSTGRES, TLS, VARIABLE, dotenv, read, read_together
from tests.support.paths import REPOSITORY


def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = read(COMPOSE)["services"]
    return found


def all_services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = read_together(TLS, POSTGRES, GPU)["services"]
    return found


@pytest.mark.parametrize("name", all_services())
def test_every_service_is_hardened(name: str) -> None:
    service = all_services()[name]
    assert service["init"] is True
    assert service["read_only"] is True
    sockets = ["/run/postgresql:mode=1777"] if name == "postgres" else []
    assert service["tmpfs"] == ["/tmp", *sockets]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["restart"] == "unless-stopped"
    assert service["mem_limit"] == "8g"
    assert service["pids_limit"] == 4096
    assert not {"privileged", "cap_add", "network_mode", "ipc", "pid"} & service.keys()


def test_no_service_runs_as_root() -> None:
    users = [line.split()[1] for line in _dockerfile() if line.startswith("USER ")]
    assert users == ["fractune"]
    foreign = {name: service for name, service in all_services().items() if service["image"] != "fractune:local"}
    assert {name: service["user"] for name, service in foreign.items()} == {"redis": "valkey", "postgres": "postgres"}
    assert all(re.search(r":\d+\.\d+", service["image"]) for service in foreign.values()), "versions are told"


def test_one_service_builds_the_image_and_the_others_take_it() -> None:
    found = services()
    builders = {name for name, service in found.items() if "build" in service}
    assert builders == {"server"}
    others = {name: service["pull_policy"] for name, service in found.items() if name not in {"server", "redis"}}
    assert set(others.values()) == {"never"}


def test_the_version_is_said_in_pyproject_alone() -> None:
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    others = (REPOSITORY / "deploy" / "Dockerfile", REPOSITORY / "scripts" / "compose_test")
    for path in (COMPOSE, TLS, POSTGRES, GPU, *others):
        assert version not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", [COMPOSE, TLS, GPU], ids=["compose", "tls", "gpu"])
def test_no_command_needs_a_variable(path: Path) -> None:
    variables = VARIABLE.findall(path.read_text(encoding="utf-8"))
    assert variables
    assert [name for name, rest in variables if not rest.startswith(":-") or rest == ":-"] == []
    assert {name for name, _ in variables} <= dotenv().keys(), ".env names every variable"


def test_the_defaults_in_the_files_are_those_of_dotenv() -> None:
    written = dotenv()
    for path in (COMPOSE, TLS, GPU):
        for name, rest in VARIABLE.findall(path.read_text(encoding="utf-8")):
            assert written[name] in {rest.removeprefix(":-"), ""}


def test_secrets_are_files_and_each_service_has_its_own_alone() -> None:
    document = read(COMPOSE)
    assert all(list(secret) == ["file"] for secret in document["secrets"].values())
    assert all(secret["file"] == f"./secrets/{name}" for name, secret in document["secrets"].items())
    of_role = {"compiler": "compile", "tuner": "tune", "builder": "build", "node": "measure"}
    for name, service in document["services"].items():
        role = of_role.get(name, name)
        wanted = ["users.acl"] if name == "redis" else ["fleet.secret", f"{role}.password"]
        assert service["secrets"] == wanted
        assert not re.search(r"://[^@ ]*:[^@ ]*@", str(service["command"])), "a password in a list of processes"
    assert {f"{role}.password" for role in (*ROLES, "server")} < document["secrets"].keys()


def test_parts_start_in_order_each_when_the_one_before_is_healthy() -> None:
    found = services()
    assert {"redis", "server"} == {name for name, service in found.items() if "healthcheck" in service}
    assert found["server"]["depends_on"] == {"redis": {"condition": "service_healthy"}}
    assert found["server"]["healthcheck"]["test"][:3] == ["CMD", "fractune", "health"]
    healthy = {"condition": "service_healthy"}
    for name in found.keys() - {"redis", "server"}:
        assert found[name]["depends_on"] == {"redis": healthy, "server": healthy}


def test_the_node_measures_alone_and_keeps_the_locks_of_the_host() -> None:
    node = services()["node"]
    assert node["volumes"] == ["gate:/gate"]
    words = node["command"].split()
    assert words[:3] == ["node", "--shares", "cpu:1"]
    assert {"--builders 0", "--compilers 0", "--tuners 0", "--lock-dir /gate"} <= set(
        map(" ".join, itertools.pairwise(words))
    )


def test_only_the_node_gets_a_gpu_and_the_programs_of_the_driver() -> None:
    assert list(read(GPU)["services"]) == ["node"]
    node = all_services()["node"]
    assert node["environment"]["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility", "CUDA and MPS, and NVML"
    devices = node["deploy"]["resources"]["reservations"]["devices"]
    assert devices == [{"driver": "nvidia", "device_ids": ["0"], "capabilities": ["gpu"]}]


def test_what_has_no_tls_is_published_on_loopback_alone() -> None:
    published = {name: service["ports"] for name, service in services().items() if "ports" in service}
    assert published == {"server": ["127.0.0.1:50051:50051"]}
    assert "--insecure" in services()["server"]["command"]
    server = read(TLS)["services"]["server"]
    assert server["ports"] == ["50051:50051"]
    assert "--insecure" not in server["command"]
    assert {"--tls-cert", "--tls-key"} <= set(server["command"].split())


def test_the_image_has_the_runtime_lock_and_starts_fractune() -> None:
    lines = _dockerfile()
    assert "ARG LOCK=runtime" in lines
    assert 'ENTRYPOINT ["fractune"]' in lines
    assert {(REPOSITORY / "locks" / f"{lock}.lock").is_file() for lock in ("runtime", "gpu")} == {True}
    last_stage = lines[max(number for number, line in enumerate(lines) if line.startswith("FROM ")) :]
    assert not any("dev.lock" in line for line in last_stage)


def _dockerfile() -> list[str]:
    return (REPOSITORY / "deploy" / "Dockerfile").read_text(encoding="utf-8").splitlines()
