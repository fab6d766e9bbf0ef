"""Both calls on a lent GPU, whole, on a host that stands in for one: kernels compute on the processor."""

import json
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import packs, storm
from benchmarks.gpu.packs import Content, pack_all, pack_second
from benchmarks.gpu.plan import SHARES
from benchmarks.gpu.table.operations import Operation
from benchmarks.gpu.table_of_times import records_in
from benchmarks.support.transformer import Encoder
from fractune_core.records import UNTUNED, Kind, Status
from fractune_workers import builder_process
from tests.support.executing import MISSING
from tests.support.executing.child import in_place_of
from tests.support.executing.gpu_host import end_daemons, make_host
from tests.support.paths import REPOSITORY

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(MISSING), reason=MISSING),
    pytest.mark.timeout(1200),
]

SCALE = 0.5
"""of the times on a GPU"""
CONTENT = Content(
    (Operation("product", "made up", (32, 48), (48, 16)), Operation("window", "made up", (1, 8, 6, 6), (8, 8, 3, 3))),
    Encoder(layers=1, width=32, heads=2, inner=64, length=8, vocabulary=20),
    "erf",
    candidates=4,
    second=2,
    has_wheels=False,
)


@dataclass(frozen=True)
class Host:
    carried: Path
    environ: dict[str, str]


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with tempfile.TemporaryDirectory(prefix="gd-", dir="/tmp") as short, pytest.MonkeyPatch.context() as patch:
        folder = Path(short)
        patch.setenv("PYTHONPATH", str(REPOSITORY))
        for module in (builder_process, packs, storm):
            patch.setattr(module, "Child", in_place_of)
        pack_all(folder / "carried", CONTENT)
        try:
            yield Host(folder / "carried", {**make_host(folder / "host"), "PYTHON": sys.executable})
        finally:
            end_daemons(folder)


def called(host: Host, name: str, out: Path, limit_s: float) -> dict[str, dict[str, Any]]:
    """The lines of a call by step."""
    command = [str(REPOSITORY / "scripts" / "gpu_day"), name, "--carried", str(host.carried), "--out", str(out)]
    command += ["--scale", str(SCALE), "--peer", "simulated"]
    began_s = time.monotonic()
    ended = subprocess.run(command, env=host.environ, capture_output=True, text=True, check=False)
    assert time.monotonic() - began_s < SCALE * limit_s, ended.stdout
    assert ended.stderr == ""
    lines = [json.loads(line) for line in (out / f"{name}.jsonl").read_text().splitlines()]
    return {line["step"]: line for line in lines}


def test_both_calls_come_to_their_results_in_time(host: Host, tmp_path: Path) -> None:
    lines = called(host, "A", tmp_path, 420)
    assert {name: each["ended"] for name, each in lines.items()} == dict.fromkeys(lines, "done")
    with tarfile.open(tmp_path / "A.tar.gz") as archive:
        archive.extractall(tmp_path / "A", filter="data")
    found = tmp_path / "A"
    records = records_in(found / "table.times")
    assert {each.status for each in records} == {Status.OK}
    trials = [(each.candidate_id, each.share) for each in records if each.kind is Kind.TRIAL]
    assert len(set(trials)) == len(trials) == len(SHARES) * len({candidate for candidate, _ in trials})
    assert "| untuned |" in (found / "table.md").read_text()
    sides = [each["contestants"] for each in json.loads((found / "peers.json").read_text()).values()]
    assert len(sides) == len(SHARES) * len(CONTENT.operations)
    assert {each["status"] for named in sides for each in named.values()} == {"right"}
    crowd = json.loads((found / "crowd.json").read_text())["measurers"]
    assert {count: each["candidates"] for count, each in crowd.items()} == dict.fromkeys(
        "124", crowd["1"]["candidates"]
    )
    fault = json.loads((found / "fault.json").read_text())["verdict"]
    assert (fault["accounted"], fault["guilty_named"], fault["innocent_blamed"]) == (fault["candidates"], 1, 0)

    pack_second(host.carried, tmp_path / "A.tar.gz", CONTENT)
    lines = called(host, "B", tmp_path, 360)
    assert {name: each["ended"] for name, each in lines.items()} == dict.fromkeys(lines, "done")
    with tarfile.open(tmp_path / "B.tar.gz") as archive:
        archive.extractall(tmp_path / "B", filter="data")
    for share in json.loads((tmp_path / "B" / "whole.json").read_text()).values():
        assert share["contestants"]["fractune"]["status"] == "right"
        assert share["contestants"]["torch.compile"]["status"] == "missing"
    known = {each.candidate_id for each in records}
    second = [each for each in records_in(tmp_path / "B" / "second.times") if each.trace != UNTUNED]
    assert second
    assert not known & {each.candidate_id for each in second}
