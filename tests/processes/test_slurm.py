"""A fleet as a job of a real Slurm: it ends with its command, and goes on after kills, `scancel` and its time limit."""

import json
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import REPOSITORY
from tests.support.processes.cli_process import run_fractune, write_model
from tests.support.processes.redis_process import wait_until
from tests.support.processes.slurm_cluster import SlurmCluster, slurm_cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

TRIALS = 32
COMMAND = """
import collections, json, os, subprocess, sys
from pathlib import Path
import fractune
from benchmarks.chaos.audit import Audit, check_audit
model, out, trials = sys.argv[1:]
tune = ["tune", model, "--shares", "cpu:1", "--trials", trials, "--out", out + ".fractune", "--force"]
code = subprocess.run([sys.executable, "-m", "fractune.cli", *tune]).returncode
with fractune.connect() as client:
    records = client.log.query(limit=100_000).records
    cpus = [len(os.sched_getaffinity(worker.pid)) for worker in client.workers()]
audit = Audit()
for path in Path(os.environ["FRACTUNE_AUDIT"]).glob("*.jsonl"):
    audit.read(path.read_text().splitlines())
found = check_audit(audit, records)
failures = collections.Counter(record.status for record in records if record.status != "ok")
Path(out).write_text(json.dumps({"records": len(records), "lost": len(found.lost), "doubled": len(found.doubled),
    "invented": len(found.invented), "cpus": cpus, "failures": failures}))
sys.exit(code)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as started:
        yield started


class Fleet:
    """A batch file with a shared folder of its own, and the books of its measurers."""

    def __init__(self, cluster: SlurmCluster, folder: Path, *command: str, time: str) -> None:
        self.cluster = cluster
        self.state, self.audit, self.out = folder / "fleet", folder / "audit", folder / "out.json"
        words = ["--state", str(self.state), "--nodes", "2", "--cpus-per-node", "1", "--time", time]
        said = run_fractune("slurm", "script", *words, "--host", "127.0.0.1", "--", *command)
        assert said.returncode == 0, said.stderr
        self.script = folder / "job.sh"
        self.script.write_text(said.stdout)

    def submit(self) -> str:
        # A short folder for what is local, since a socket lies in it; its locks are this fleet's alone.
        paths = {"FRACTUNE_AUDIT": str(self.audit), "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(self.cluster.local)}
        return self.cluster.say("sbatch", "--parsable", str(self.script), **paths)

    def measured(self) -> int:
        return sum(path.read_text().count("\n") for path in self.audit.glob("*.jsonl"))

    def log(self, job: str) -> str:
        return (self.state / f"slurm-{job}.log").read_text(errors="replace")

    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out.read_text())
        return found


def test_a_fleet_outlives_a_killed_node_and_scancel_and_the_next_job_goes_on(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    words = [str(write_model(tmp_path / "m.onnx")), str(tmp_path / "out.json"), str(TRIALS)]
    fleet = Fleet(cluster, tmp_path, sys.executable, "-c", COMMAND, *words, time="30:00")
    first = fleet.submit()
    wait_until(lambda: fleet.measured() > 8, 180)
    stranger_gets_nothing(fleet)
    cluster.kill_node("n2")
    before = fleet.measured()
    wait_until(lambda: fleet.measured() > before + 4, 120)
    cluster.say("scancel", first)
    wait_until(lambda: cluster.state(first)["JobState"] == "CANCELLED" and (fleet.state / "fleet.tar").exists(), 60)
    cluster.start("n2")
    wait_until(lambda: cluster.idle_nodes() == 2, 90)
    second = fleet.submit()
    wait_until(lambda: cluster.state(second)["JobState"] not in {"PENDING", "RUNNING", "COMPLETING"}, 300)
    assert cluster.state(second)["JobState"] == "COMPLETED", fleet.log(second)
    assert "going on with what" in fleet.log(second)
    result = fleet.result()
    assert (result["lost"], result["doubled"], result["invented"], result["failures"]) == (0, 0, 0, {})
    assert result["records"] > TRIALS
    assert set(result["cpus"]) == {1}, "as Slurm allots"


def stranger_gets_nothing(fleet: Fleet) -> None:
    """Another user can neither read the secrets nor call Redis, whose port everybody can reach."""
    kept = fleet.state / "secrets"
    read = subprocess.run(["cat", str(kept / "fleet.secret")], user="nobody", capture_output=True, check=False)
    assert read.returncode == 1
    (port,) = {int(number) for number in re.findall(r"redis: .*port=(\d+)", fleet.log(_only_job(fleet)))}
    with socket.create_connection(("127.0.0.1", port), 10) as link:
        link.sendall(b"KEYS *\r\n")
        assert link.recv(64).startswith(b"-NOAUTH")
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    secrets = [path.read_text().strip().encode() for path in kept.iterdir() if path.suffix != ".acl"]
    assert not [each for each in commands if any(secret in each for secret in secrets)]
    assert not any(secret in fleet.script.read_bytes() for secret in secrets)


def _only_job(fleet: Fleet) -> str:
    (log,) = fleet.state.glob("slurm-*.log")
    return log.stem.removeprefix("slurm-")


def test_at_its_time_limit_a_job_is_queued_again_with_all_that_it_has(cluster: SlurmCluster, tmp_path: Path) -> None:
    tune = ["tune", str(write_model(tmp_path / "m.onnx")), "--shares", "cpu:1", "--trials", "2000"]
    fleet = Fleet(cluster, tmp_path, sys.executable, "-m", "fractune.cli", *tune, time="1")
    fleet.script.write_text(fleet.script.read_text().replace("TERM@180", "TERM@20"))
    job = fleet.submit()
    wait_until(lambda: cluster.state(job)["Restarts"] == "1", 240)
    wait_until(lambda: "going on with what" in fleet.log(job), 120)
    cluster.say("scancel", job)
    assert "the work in hand has 15 s" in fleet.log(job), "the nodes were asked to end, and not killed"


def test_slurm_takes_a_file_that_asks_for_gpus(cluster: SlurmCluster, tmp_path: Path) -> None:
    words = ["--state", str(tmp_path / "fleet"), "--nodes", "2", "--gpus-per-node", "1", "--time", "4:00:00"]
    said = run_fractune("slurm", "script", *words, "--shares", "mps:25,mps:50", "--partition", "main")
    (tmp_path / "job.sh").write_text(said.stdout)
    cluster.say("sbatch", "--test-only", str(tmp_path / "job.sh"))
    assert shlex.split(said.stdout.splitlines()[-1])[4:6] == ["slurm", "head"]
