"""Attention as one kernel in jobs for a GPU: a real server, tuner, builder and compiler; what measures is simulated."""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.support.transformer import Encoder
from fractune_core.files.bundles import Bundle
from fractune_core.operators import TRITON, implementation_of
from fractune_core.records import UNTUNED
from fractune_workers.cuda.compilers import find_compiler
from tests.support.hardware.simulated_gpu_measurer import simulated_gpu_measurers
from tests.support.processes.cli_process import events, run_fractune
from tests.support.processes.fleet_processes import fleet_of_processes
from tests.support.processes.redis_process import running_redis

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton; `make setup-triton` installs it"),
    pytest.mark.skipif(find_compiler() is None, reason="no CUDA compiler here; `make setup` installs NVRTC"),
    pytest.mark.timeout(300),
    pytest.mark.long,
]

FACTORS = {"mps:25": 0.5, "full": 2.0}
"""time of the whole model with attention as one kernel, relative to the one with separate operators, by share"""
TRIALS = 3


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path, str]]:
    """A folder, a model, and the server's address."""
    folder = tmp_path_factory.mktemp("gpu-attention")
    model = folder / "encoder.onnx"
    Encoder(layers=2, width=64, heads=2, inner=64, length=64, vocabulary=20).save(model)
    workers = [("--role", role) for role in ("compile", "tune", "build")]
    with (
        running_redis() as url,
        simulated_gpu_measurers(url, *FACTORS, with_attention=FACTORS),
        fleet_of_processes(url, folder, *workers, others=len(FACTORS)) as address,
    ):
        yield folder, model, address


def tuned(fleet: tuple[Path, Path, str], *more: str) -> tuple[dict[str, Any], Bundle]:
    folder, model, address = fleet
    asked = ("--shares", ",".join(FACTORS), "--trials", str(TRIALS), "--only", "attention", "--out-dir", str(folder))
    result: dict[str, Any] = events(run_fractune("tune", str(model), *asked, "--server", address, "--json", *more))[-1]
    return result, Bundle(Path(result["bundle"]))


def test_each_share_is_served_by_the_variant_that_was_faster_there(fleet: tuple[Path, Path, str]) -> None:
    result, bundle = tuned(fleet)
    (operator,) = result["operators"]
    assert (operator["name"], operator["weight"]) == ("attention", 0)
    assert set(operator["best_s"]) == set(FACTORS)
    plain = [*FACTORS, *(f"{share}+attention" for share in FACTORS)]
    names = [each["name"] for each in bundle.variants]
    assert [name for name in names if name != "robust"] == [
        *FACTORS,
        "untuned",
        *plain[len(FACTORS) :],
        *(f"{name}+graph" for name in plain),
    ]
    manifest = bundle.manifest
    served = {share: goals["latency"]["variant"] for share, goals in manifest["served"].items()}
    assert served == {"mps:25": "mps:25+attention", "full": "full"}
    (own,) = (each for each in manifest["operators"] if each["name"] == "attention")
    assert {name: each["implementation"] for name, each in own["by_variant"].items()} == {
        f"{share}+attention": TRITON for share in FACTORS
    }
    assert all(set(row) <= {*FACTORS, "robust", "untuned"} for row in manifest["measured"].values())
    traces = {record["trace"] for record in bundle.records() if record["workload_hash"] == own["workload_hash"]}
    assert {implementation_of(each) for each in traces} == {TRITON}
    bundle.verify()


def test_every_candidate_is_one_of_triton(fleet: tuple[Path, Path, str]) -> None:
    folder, _, address = fleet
    tuned(fleet)
    out = folder / "records.jsonl"
    done = run_fractune("log", "export", str(out), "--format", "jsonl", "--server", address)
    assert done.returncode == 0, done.stderr
    records = [line["record"] for line in map(json.loads, out.read_text().splitlines()) if "record" in line]
    traces = {record["trace"] for record in records} - {UNTUNED}
    assert len(traces) >= TRIALS
    assert {implementation_of(each) for each in traces} == {TRITON}
    assert {json.loads(each.partition(":")[2])[0]["kernel"] for each in traces} == {"attention/1"}


def test_an_exact_job_has_separate_operators_alone(fleet: tuple[Path, Path, str]) -> None:
    tuned(fleet)
    _, bundle = tuned(fleet, "--exact")
    assert not any("attention" in each["name"] for each in bundle.variants)
