"""CPU limits for real: proved by busy processes, in a cgroup that takes precedence over other programs."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fractune_core.cpu_limits import GrantedLimit
from fractune_core.shares import Share
from fractune_workers.confinement.limit_cgroups import LimitCgroups
from fractune_workers.inventory.shares import machine_shares
from tests.support.hardware.cgroup_tree import a_host
from tests.support.hardware.real_cgroup import capped_cgroup
from tests.support.real_bundle import Small

pytestmark = pytest.mark.alone

ALLOWED = sorted(os.sched_getaffinity(0))
_PROVE = """
import sys
from fractune.cli import main
sys.exit(main(["shares", {share!r}, "--prove", "--json"]))
"""


@pytest.mark.parametrize(
    ("share", "limit_m", "span", "period_us"),
    [
        ("cpu:250m", 250, len(ALLOWED), 100_000),
        ("cpu:500m@1/10ms", 500, 1, 10_000),
        ("cpu:500m..1500m", 1500, len(ALLOWED), 100_000),
    ],
)
def test_a_limit_is_proved_by_what_busy_processes_get(share: str, limit_m: int, span: int, period_us: int) -> None:
    if limit_m > 1000 * len(ALLOWED):
        pytest.skip("this machine has fewer cores")
    with capped_cgroup(cores=None) as cgroup:
        device = json.loads(cgroup.run(_PROVE.format(share=share)))
    (offer,) = device["offers"]
    limit = GrantedLimit.from_json(offer["limit"])
    assert (offer["units"], offer["unit"], offer["refusal"]) == (limit_m, "millicore", "")
    assert (limit.quota_m, limit.span, limit.period_us) == (limit_m, span, period_us)
    assert limit.request_m == (500 if ".." in share else 0)
    assert limit.burned_m == pytest.approx(limit_m, rel=0.1)


_STAND_IN = """#!{python}
# Stands in for systemd-run: no systemd runs here. The cgroup is real, and it becomes the command as the real one does.
import os, sys
sys.path[:] = {path!r}
from fractune_core.cpu_limits import LimitSize
from fractune_workers.confinement.limit_cgroups import LimitCgroups
cgroups = LimitCgroups()
cgroups.join(cgroups.make(LimitSize.parse("500m")))
words = sys.argv[1:]
assert "CPUQuota=50%" in words, words
command = words[words.index("--") + 1:]
os.execvp(command[0], command)
"""


def test_a_process_that_may_make_no_cgroup_is_started_in_a_scope_of_systemd(tmp_path: Path) -> None:
    program = tmp_path / "systemd-run"
    program.write_text(_STAND_IN.format(python=sys.executable, path=sys.path))
    program.chmod(0o755)
    code = f"""
import os
os.environ["PATH"] = {str(tmp_path)!r} + ":" + os.environ["PATH"]
from fractune_workers.confinement.limit_cgroups import LimitCgroups
LimitCgroups.lacks = lambda _: "it is not allowed"
"""
    with capped_cgroup(cores=None) as cgroup:
        device = json.loads(cgroup.run(code + _PROVE.format(share="cpu:500m")))
    (offer,) = device["offers"]
    assert (offer["units"], offer["refusal"]) == (500, "")
    assert GrantedLimit.from_json(offer["limit"]).burned_m == pytest.approx(500, rel=0.1)


def test_a_limit_that_holds_already_is_accepted() -> None:
    code = """
from fractune_core.shares import Share
from fractune_workers.confinement import confinement_for
confinement = confinement_for(Share.parse("cpu:500m"))
confinement.probe()
confinement.enter()
print(confinement.environment()["FRACTUNE_LIMIT_CGROUP"] or "none made", confinement.verify().units)
"""
    with capped_cgroup(cores=0.5) as cgroup:
        assert cgroup.run(code) == "none made 500"


@pytest.mark.long
def test_a_lower_quota_that_no_file_shows_is_found(tmp_path: Path) -> None:
    """The process reads a made-up tree with a limit of 900m, and is under a real one of 500m."""
    root = a_host(tmp_path, cgroup="0::/box", box__cpu_max="90000 100000")
    code = f"""
from pathlib import Path
from fractune_core.errors import ShareUnavailable
from fractune_core.shares import Share
from fractune_workers.confinement.cpu_limit import CpuLimitConfinement
from fractune_workers.confinement.limit_cgroups import LimitCgroups
confinement = CpuLimitConfinement(Share.parse("cpu:900m"), cgroups=LimitCgroups(Path({str(root)!r})))
try:
    confinement.enter()
    confinement.verify()
except ShareUnavailable as error:
    print(error)
"""
    with capped_cgroup(cores=0.5) as cgroup:
        said = cgroup.run(code)
    assert re.search(r"go on about every (9[5-9]|10[0-5]) ms: a container or slice above has a lower quota", said)


def test_the_cgroup_of_a_killed_worker_is_removed_by_the_next_command() -> None:
    if lacks := LimitCgroups().lacks():
        pytest.skip(f"no cgroup can be made here: {lacks}")
    code = """
from fractune_core.shares import Share
from fractune_workers.confinement import confinement_for
print(confinement_for(Share.parse("cpu:500m")).environment()["FRACTUNE_LIMIT_CGROUP"], flush=True)
input()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        folder = Path(worker.stdout.readline().decode().strip())
        list(machine_shares([Share.parse("cpu:1")], prove=False))
        assert folder.is_dir()
        worker.send_signal(signal.SIGKILL)
    assert folder.is_dir()
    list(machine_shares([Share.parse("cpu:1")], prove=False))
    assert not folder.exists()


_TIME_MODEL = """
import json, sys
from pathlib import Path
from fractune_core.shares import Share
from fractune_workers.measuring.session import MeasurementSession
from fractune_workers.sandboxes import MeasurerLimits
limits = MeasurerLimits(readable=[Path({path!r}).parent])
session = MeasurementSession(Share.parse({share!r}), {cores}, limits=limits)
try:
    session.handshake()
    print(json.dumps({{**session.time_model(Path({path!r})), "granted": session.device_info["granted"]}}))
finally:
    session.stop()
"""


@pytest.mark.long
def test_a_whole_model_is_timed_under_a_limit_with_each_number_of_threads(small: Small) -> None:
    if len(ALLOWED) < 2:
        pytest.skip("this machine has one core")
    with capped_cgroup(cores=None) as cgroup:
        timed = json.loads(
            cgroup.run(_TIME_MODEL.format(share="cpu:500m@2/10ms", cores=ALLOWED[:2], path=str(small.bundle)))
        )
    assert [(each["variant"], each["threads"]) for each in timed["at_load"]] == [("cpu:1", 1), ("cpu:2", 2)]
    assert timed["run_secs"].keys() == timed["max_error"].keys() == {"untuned", "cpu:1", "cpu:2"}
    limit = GrantedLimit.from_json(timed["granted"]["limit"])
    assert (limit.quota_m, limit.span) == (500, 2)
