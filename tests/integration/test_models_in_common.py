"""Models that share operators, tuned one after the other in one state folder: the later ones take the first one's
schedules, although TVM names the operators' blocks otherwise in each.
"""

from pathlib import Path

import pytest

from tests.support.models_in_common import write_reductions
from tests.support.processes.cli_process import events, run_fractune
from tests.support.processes.fleet_processes import fleet_of_processes
from tests.support.processes.redis_process import running_redis

pytestmark = pytest.mark.long
MODELS = (0, 7)
"""operators before the shared ones: TVM counts names on by each; a unit test tries every pair of other models"""
WORKERS = [("--role", role) for role in ("compile", "tune", "build")]


@pytest.mark.parametrize("first", [MODELS[0], MODELS[-1]])
def test_each_model_is_tuned_after_each_other(tmp_path: Path, first: int) -> None:
    measurer = ("--role", "measure", "--share", "cpu:1")
    with running_redis() as url, fleet_of_processes(url, tmp_path, *WORKERS, measurer) as address:
        for number in sorted(MODELS, key=lambda number: number != first):
            model = write_reductions(tmp_path, number)
            args = ("--shares", "cpu:1", "--trials", "2", "--server", address, "--out-dir", str(tmp_path), "--json")
            ended = run_fractune("tune", str(model), *args)
            assert ended.returncode == 0, ended.stderr
            assert Path(events(ended)[-1]["bundle"]).is_file()
