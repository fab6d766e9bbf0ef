"""What the one-machine stack consists of: which cores go to which share."""

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from fractune.cli.commands.fleet.up import default_shares
from fractune.local.stack import measurer_label, plan_builders, plan_cores, plan_measurers, work_cores
from fractune_core.host.cpus import CpuTopology
from fractune_core.shares import Share, parse_shares
from tests.support.hardware.cpu_tree import cpus_of


@pytest.mark.parametrize(
    ("shares", "cores", "plan"),
    [
        ("cpu:1,cpu:2", 2, {"cpu:1": [0], "cpu:2": [0, 1]}),
        ("cpu:1,cpu:2", 3, {"cpu:1": [0], "cpu:2": [0, 1]}),
        ("cpu:1,cpu:2", 4, {"cpu:1": [0], "cpu:2": [1, 2]}),
        ("cpu:8", 2, {}),
        ("mps:25,cpu:1", 2, {"mps:25": [0], "cpu:1": [0]}),
        ("mps:25,cpu:1", 4, {"mps:25": [0], "cpu:1": [1]}),
        ("full,mps:50,cpu:8", 4, {"full": [0], "mps:50": [1]}),
    ],
)
def test_shares_get_cores_of_their_own_while_one_is_left(shares: str, cores: int, plan: dict[str, list[int]]) -> None:
    assert plan_cores(parse_shares(shares), range(cores)) == plan


@given(st.lists(st.integers(1, 12), unique=True, max_size=5), st.integers(1, 16))
def test_every_share_that_fits_gets_as_many_cores_as_it_says(sizes: list[int], cores: int) -> None:
    plan = plan_cores([Share("cpu", str(size)) for size in sizes], range(cores))
    assert {name: len(set(given)) for name, given in plan.items()} == {f"cpu:{s}": s for s in sizes if s <= cores}
    assert all(set(given) <= set(range(cores)) for given in plan.values())
    owned = [core for given in plan.values() for core in given]
    if sum(s for s in sizes if s <= cores) < cores:
        assert len(set(owned)) == len(owned)


@pytest.mark.parametrize(
    ("shares", "cores", "builders"), [("cpu:4", 2, 2), ("cpu:4", 60, 8), ("mps:25", 12, 12), ("full", 60, 16)]
)
def test_builders_get_the_cores_that_are_left(shares: str, cores: int, builders: int) -> None:
    assert plan_builders(parse_shares(shares), range(cores)) == builders


def test_the_default_shares_are_shares() -> None:
    assert parse_shares(default_shares())[0] == Share("cpu", "1")


@pytest.mark.parametrize(
    ("shares", "cores", "rest"),
    [
        ("cpu:1,cpu:2", 4, [3]),
        ("cpu:4", 16, list(range(4, 16))),
        ("cpu:4", 4, [0, 1, 2, 3]),
        ("cpu:1", 2, [0, 1]),
        ("cpu:1", 3, [0, 1, 2]),
        ("mps:25", 2, [1]),
        ("mps:25,cpu:1", 3, [1, 2]),
    ],
)
def test_search_and_builds_stay_off_the_measured_cores_unless_a_measurement_stops_them_on_all(
    shares: str, cores: int, rest: list[int]
) -> None:
    available = list(range(cores))
    measurers = plan_measurers(parse_shares(shares), dict.fromkeys(shares.split(","), 1), available)
    assert work_cores(measurers, available, cores) == rest


def test_fewer_cores_than_the_host_has_leave_one_for_builds() -> None:
    """A measurement stops what is on its own cores only where it has all of the host's."""
    measurers = plan_measurers(parse_shares("cpu:1"), {}, [4, 5])
    assert work_cores(measurers, [4, 5], 16) == [5]


@pytest.mark.parametrize(
    ("wanted", "cores", "found"),
    [
        ({}, 8, [("cpu:1", [0]), ("cpu:2", [1, 2])]),
        ({"cpu:1": 3}, 8, [("cpu:1", [0]), ("cpu:2", [1, 2]), ("cpu:1", [3]), ("cpu:1", [4])]),
        ({"cpu:2": 3}, 8, [("cpu:1", [0]), ("cpu:2", [1, 2]), ("cpu:2", [3, 4]), ("cpu:2", [5, 6])]),
        ({"cpu:2": 4}, 7, [("cpu:1", [0]), ("cpu:2", [1, 2]), ("cpu:2", [3, 4])]),
        ({"cpu:1": 4}, 2, [("cpu:1", [0]), ("cpu:2", [0, 1])]),
    ],
)
def test_more_measurers_while_one_core_is_left_for_builds(
    wanted: dict[str, int], cores: int, found: list[tuple[str, list[int]]]
) -> None:
    measurers = plan_measurers(parse_shares("cpu:1,cpu:2"), wanted, range(cores))
    assert [(str(share), list(of)) for share, of in measurers] == found


@pytest.mark.parametrize(
    ("shares", "wanted", "cores", "found"),
    [
        ("mps:25", {}, 16, [("mps:25", [0]), ("mps:25", [1]), ("mps:25", [2]), ("mps:25", [3])]),
        ("mps:25", {"mps:25": 2}, 16, [("mps:25", [0]), ("mps:25", [1])]),
        ("mps:25", {}, 4, [("mps:25", [0]), ("mps:25", [1]), ("mps:25", [2])]),
        ("mps:25", {}, 2, [("mps:25", [0])]),
        ("mps:25", {}, 1, [("mps:25", [0])]),
        ("full,green:32,none", {}, 16, [("full", [0]), ("green:32", [1]), ("none", [2])]),
        ("mps:50,mps:100", {}, 16, [("mps:50", [0]), ("mps:100", [1]), ("mps:50", [2])]),
        ("mig:3g.71gb,mps-sm:9", {}, 8, [("mig:3g.71gb", [0]), ("mps-sm:9", [1]), ("mig:3g.71gb", [2])]),
    ],
)
def test_every_measurer_of_a_gpu_launches_from_a_core_of_its_own_while_one_is_left_for_builds(
    shares: str, wanted: dict[str, int], cores: int, found: list[tuple[str, list[int]]]
) -> None:
    measurers = plan_measurers(parse_shares(shares), wanted, range(cores))
    assert [(str(share), list(of)) for share, of in measurers] == found
    assert work_cores(measurers, range(cores), cores) == (list(range(len(found), cores)) or [0])


def test_measurers_and_builds_are_on_different_physical_cores(tmp_path: Path) -> None:
    """Two CPUs a core: a build on the other CPU would slow a measurement down."""
    machine = CpuTopology.read(cpus_of(tmp_path, "0,1", "2,3", "4,5", "6,7"))
    measurers = plan_measurers(parse_shares("cpu:1,cpu:2"), {"cpu:1": 3}, range(8), machine)
    assert [cores for _, cores in measurers] == [[0], [2, 4]], "the last core is left for builds"
    assert work_cores(measurers, range(8), 8, machine) == [6, 7]
    measurers = plan_measurers(parse_shares("cpu:1"), {"cpu:1": 3}, range(8), machine)
    assert [cores for _, cores in measurers] == [[0], [2], [4]]


def test_a_measurer_of_any_limit_has_a_log_file() -> None:
    labels = {measurer_label(Share.parse(share)) for share in ("cpu:1", "cpu:500m", "cpu:500m/10ms")}
    assert labels == {"measure-cpu-1", "measure-cpu-500m", "measure-cpu-500m-10ms"}
