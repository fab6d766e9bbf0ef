"""What starts with each choice of files on top of docker-compose.yml fits together."""

import re
from pathlib import Path
from typing import Any

import pytest

from fractune.cli import main
from fractune.local.node import NodeOptions, node_parts
from fractune_core.fleet.options import ServerOptions, WorkerOptions
from fractune_core.fleet.redis_users import ROLES
from tests.support.compose_files import GPU, POSTGRES, TLS, dotenv, read_together

ON_TOP = [(), (TLS,), (POSTGRES,), (TLS, POSTGRES), (POSTGRES, TLS, GPU)]
CHOICES = pytest.mark.parametrize(
    "on_top", ON_TOP, ids=["+".join(["plain", *(path.suffixes[0][1:] for path in each)]) for each in ON_TOP]
)
SHARES = "cpu:1,mps:25,mps:25,mps:50"


def services(on_top: tuple[Path, ...]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = read_together(*on_top, variables={**dotenv(), "FRACTUNE_SHARES": SHARES})[
        "services"
    ]
    return found


class Started:
    """What our commands would start, and the files that they read their secrets from."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files: set[str] = set()
        self.worked: list[tuple[str, str]] = []
        """role and address of Redis"""
        self.served: list[ServerOptions] = []

        def read(_option: str, path: Path) -> str:
            self.files.add(str(path))
            return "word"

        def run_worker(options: WorkerOptions) -> None:
            self.worked.append((options.role, options.redis_url))

        def run_node(options: NodeOptions) -> None:
            assert options.shares == tuple(SHARES.split(","))
            for part in node_parts(options, gpus=["GPU-1"]):
                assert main(part.command()[3:]) == 0

        monkeypatch.setattr("signal.signal", lambda *_: None)
        monkeypatch.setattr("fractune.cli.options._read", read)
        monkeypatch.setattr("fractune.cli.commands.fleet.launch.run_worker", run_worker)
        monkeypatch.setattr("fractune.cli.commands.fleet.launch.run_node", run_node)
        monkeypatch.setattr("fractune.cli.commands.fleet.launch.run_server", self.served.append)


@CHOICES
def test_every_worker_is_one_that_our_command_line_starts(
    on_top: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    roles = set()
    for service in services(on_top).values():
        if service["image"] != "fractune:local" or service["command"].startswith("server "):
            continue
        found = Started(monkeypatch)
        assert main(service["command"].split()) == 0
        ((role, redis),) = set(found.worked)
        assert redis == f"redis://{role}:word@redis:6379/0"
        assert found.files == {f"/run/secrets/{name}" for name in service["secrets"]}
        roles.add(role)
    assert roles == set(ROLES)


@CHOICES
def test_the_server_is_one_that_our_command_line_starts(
    on_top: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = services(on_top)["server"]
    for name, value in service["environment"].items():
        monkeypatch.setenv(name, value)
    found = Started(monkeypatch)
    assert main(service["command"].split()) == 0
    (options,) = found.served
    assert options.redis_url == "redis://server:word@redis:6379/0"
    assert options.database_url == ("postgresql://fractune:word@postgres:5432/fractune" if POSTGRES in on_top else None)
    assert options.insecure is (TLS not in on_top)
    assert (options.tls is not None) is (TLS in on_top)
    tls = {str(path) for path in (options.tls.cert, options.tls.key)} if options.tls else set()
    assert found.files | tls == {f"/run/secrets/{name}" for name in service["secrets"]}
    checked = service["healthcheck"]["test"][-1]
    listens = {f"unix:{options.local_socket}", f"127.0.0.1:{options.listen.rpartition(':')[2]}"}
    assert checked in listens


@CHOICES
def test_what_a_service_needs_is_there(on_top: tuple[Path, ...]) -> None:
    document = read_together(*on_top)
    found = services(on_top)
    assert ("postgres" in found) is (POSTGRES in on_top)
    for service in found.values():
        assert set(service["secrets"]) <= document["secrets"].keys()
        volumes = {volume.partition(":")[0] for volume in service.get("volumes", [])}
        assert volumes <= document["volumes"].keys()
        for needed in service.get("depends_on", {}):
            assert "healthcheck" in found[needed]
        said = f"{service.get('command')} {service.get('environment')}"
        hosts = set(re.findall(r"@([a-z]+):[0-9]+/", said))
        assert hosts <= service.get("depends_on", {}).keys(), "who is called has started before"
    used = {name for service in document["services"].values() for name in service["secrets"]}
    assert used == document["secrets"].keys()


@CHOICES
def test_without_tls_nothing_is_published_but_on_loopback(on_top: tuple[Path, ...]) -> None:
    published = {name: service["ports"] for name, service in services(on_top).items() if "ports" in service}
    assert published == {"server": ["50051:50051" if TLS in on_top else "127.0.0.1:50051:50051"]}


def test_postgresql_is_made_for_the_user_that_the_server_is() -> None:
    found = services((POSTGRES,))["postgres"]
    made = found["environment"]
    assert (made["POSTGRES_USER"], made["POSTGRES_DB"]) == ("fractune", "fractune")
    assert made["POSTGRES_PASSWORD_FILE"] == "/run/secrets/database.password"
    test = found["healthcheck"]["test"]
    assert test[:2] == ["CMD", "pg_isready"]
    assert "127.0.0.1" in test, "while the database is made, PostgreSQL answers at its socket alone"
