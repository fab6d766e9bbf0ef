"""TVMScript that would run Python, given to a real server and its worker: nothing runs, and one line says why."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fractune.server.rpc import RpcClient
from fractune_core.errors import BadModel
from fractune_core.files.fused import write_fused
from fractune_core.files.scripts import REFUSAL
from fractune_core.pb import fractune_pb2 as pb
from tests.support.hostile_scripts import NAMES, hostile_script
from tests.support.processes.cli_process import error_line, run_fractune, write_model
from tests.support.processes.fleet_processes import fleet_of_processes
from tests.support.processes.fleet_simulated import SimulatedWorker
from tests.support.processes.redis_process import running_redis
from tests.support.processes.server_process import Client

TARGET = '{"kind":"llvm","mcpu":"x86-64-v3","num-cores":1}'

SCRIPT = """
import sys
from tvm.script import ir as I
from tvm.script import relax as R
print("the script says hello")
__import__("pathlib").Path(sys.argv[0]).with_name("ran").touch()

@I.ir_module
class Net:
    @R.function
    def main(x: R.Tensor((2, 8), "float32")) -> R.Tensor((2, 8), "float32"):
        y: R.Tensor((2, 8), "float32") = R.nn.relu(x)
        return y

if __name__ == "__main__":
    raise SystemExit("this is for python3 net.py alone")
"""


@dataclass(frozen=True)
class Place:
    """A server with a compile worker, and clients that do not look at what they send."""

    address: str
    rpc: RpcClient
    stubs: Client

    def sneak_in(self, payload: bytes, name: str) -> str:
        """Upload byte by byte at first, so that the server does not see what it gets; the model's resource name."""
        digest = hashlib.sha256(payload).hexdigest()
        header = pb.ModelHeader(display_name=name, sha256=digest, size_bytes=len(payload))
        parts = [pb.UploadModelRequest(header=header)]
        parts += [pb.UploadModelRequest(data=part) for part in (payload[:1], payload[1:])]
        return self.stubs.models.UploadModel(iter(parts)).name

    def refusal_by_the_worker(self, model: str) -> str:
        """What a call says for which a worker reads the model."""
        with pytest.raises(BadModel) as refused:
            self.rpc.match_model(pb.MatchModelRequest(model=model, share="cpu:1", loosest="robust"))
        assert refused.value.exit_code == 3
        return str(refused.value)


@contextlib.contextmanager
def measurer(url: str) -> Iterator[None]:
    """Somebody who offers the share that is asked for."""
    worker = SimulatedWorker(url, "measure", "measure-1", "cpu:1")
    worker.target = TARGET
    worker.start()
    try:
        yield
    finally:
        worker.stop()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("fleet")
    with (
        running_redis() as url,
        measurer(url),
        fleet_of_processes(url, folder, ("--role", "compile"), others=1) as address,
        RpcClient(address) as client,
        Client(address) as stubs,
    ):
        yield Place(address, client, stubs)


def test_there_are_as_many_scripts_as_were_tried() -> None:
    assert len(NAMES) == 22


@pytest.mark.parametrize("name", NAMES)
def test_a_script_runs_neither_in_the_server_nor_in_a_worker(place: Place, tmp_path: Path, name: str) -> None:
    canary, script = tmp_path / "canary", tmp_path / "m.py"
    script.write_text(hostile_script(name, canary))
    with pytest.raises(BadModel) as refused:
        place.rpc.upload_model(script)
    assert (str(refused.value), refused.value.exit_code) == (f"m.py: {REFUSAL}", 3)
    model = place.sneak_in(script.read_bytes(), script.name)
    said = place.refusal_by_the_worker(model)
    assert not canary.exists()
    assert said == f"m.py: {REFUSAL}"


def test_a_script_in_a_fused_model_does_not_run(place: Place, tmp_path: Path) -> None:
    canary, script, fused = (tmp_path / name for name in ("canary", "script.onnx", "all.fused"))
    script.write_text(hostile_script(NAMES[0], canary))
    with fused.open("wb") as file:
        write_fused(file, ["good", "bad"], [write_model(tmp_path / "good.onnx"), script], 2)
    model = place.rpc.upload_model(fused).name
    assert place.refusal_by_the_worker(model) == f"all.fused: variant 'bad': {REFUSAL}"
    assert not canary.exists()


def test_the_command_asks_for_consent_before_it_runs_a_script(place: Place, tmp_path: Path) -> None:
    script, ran = tmp_path / "net.py", tmp_path / "ran"
    script.write_text(SCRIPT)
    asked = ("match", str(script), "--share", "cpu:1", "--server", place.address, "--json")
    refused = run_fractune(*asked)
    assert (refused.returncode, "--run-script" in error_line(refused), ran.exists()) == (3, True, False)

    done = run_fractune(*asked, "--run-script")
    assert done.returncode == 0, done.stderr
    announced, said = done.stderr.splitlines()
    assert announced == "net.py: running this file's Python code on this machine, to get its IRModule"
    assert said == "the script says hello"
    assert ran.exists()
    assert "relu" in json.loads(done.stdout)["operator"]
