"""The oldest protobuf and gRPC that pyproject.toml allows: clients, servers and workers run with them."""

import filecmp
import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support.paths import REPOSITORY
from tests.support.processes.server_environments import target_folder

GENERATED = REPOSITORY / "tuner_core" / "fractune_core" / "pb"
PROCESSES = "tests/processes/test_simulated_workers.py"
"""a server, workers and clients as processes of their own"""


@pytest.fixture(scope="module")
def oldest() -> Mapping[str, str]:
    """The environment of processes that import the oldest protobuf and gRPC in place of those of the tests."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["server"]]
    pins = {each.name: each.specifier for each in map(Requirement, lines)}
    least = {
        name: next(one.version for one in specifier if one.operator == ">=")
        for name, specifier in pins.items()
        if name == "protobuf" or name.startswith("grpcio")
    }
    wanted = [f"{name}=={version}" for name, version in {**least, "grpcio-tools": least["grpcio"]}.items()]
    return {**os.environ, "PYTHONPATH": str(target_folder("oldest", wanted))}


@pytest.mark.long
def test_the_generated_code_is_that_of_the_oldest_generator(oldest: Mapping[str, str], tmp_path: Path) -> None:
    kinds = [f"--{kind}_out={tmp_path}" for kind in ("python", "grpc_python")]
    command = [sys.executable, "-m", "grpc_tools.protoc", "--proto_path=protos", *kinds]
    protos = [str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "protos").rglob("*.proto")]
    subprocess.run([*command, *protos], env=oldest, cwd=REPOSITORY, check=True)
    written = [path.name for path in (tmp_path / "fractune_core" / "pb").glob("*.py")]
    assert len(written) == 2
    assert filecmp.cmpfiles(tmp_path / "fractune_core" / "pb", GENERATED, written, shallow=False)[0] == written


@pytest.mark.long
def test_processes_talk_with_the_oldest_libraries(oldest: Mapping[str, str]) -> None:
    names = "import google.protobuf, grpc; print(google.protobuf.__version__, grpc.__version__)"
    shown = subprocess.run([sys.executable, "-c", names], env=oldest, capture_output=True, text=True, check=True)
    assert shown.stdout.split()[0].startswith("6.")
    tests = [sys.executable, "-m", "pytest", "-q", "-m", "not long", "-p", "no:cacheprovider", PROCESSES]
    ended = subprocess.run(tests, env=oldest, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout
