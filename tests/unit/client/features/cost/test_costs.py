"""What a job took, and what that is worth."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fractune
from fractune.cli import main
from fractune.errors import BadRequest
from fractune.features.cost import CostResult, JobCost, Prices, job_cost, read_prices
from fractune_core.pb import fractune_pb2 as pb
from tests.support.client_samples import job_script
from tests.support.processes.scripted_server import ScriptedServer, serving

PRICES = Prices("EUR", 0.36, {"cpu:1": 3.6, "cpu:2": 7.2})
TOML = 'currency = "EUR"\ncpu_hour = 0.36\n[share_hour]\n"cpu:1" = 3.6\n"cpu:2" = 7.2\n'


def a_cost(token: str = "", state: int = -1) -> pb.JobCost:
    spent = [
        pb.Spending(task="search", pieces=2, worked_s=9.0, cpu_s=6.0),
        pb.Spending(task="build", pieces=3, worked_s=5.0, cpu_s=4.0),
        pb.Spending(task="measure", share="cpu:1", pieces=4, worked_s=20.0, cpu_s=19.0),
        pb.Spending(task="measure", share="cpu:2", pieces=4, worked_s=10.0, cpu_s=19.0),
        pb.Spending(task="time_model", share="cpu:1", pieces=1, worked_s=1.0, cpu_s=1.0),
    ]
    return pb.JobCost(job=job_script()[state], spent=spent, token=token)


@pytest.fixture
def cost() -> JobCost:
    return job_cost(a_cost())


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    made = ScriptedServer()
    made.costs = [a_cost("aa"), a_cost("bb", state=1), a_cost("aa")]
    with serving(made):
        yield made


def test_shares_are_paid_for_measuring_and_processors_for_the_rest(cost: JobCost) -> None:
    assert cost.share_s == {"cpu:1": 21.0, "cpu:2": 10.0}
    assert cost.cpu_s == 10.0
    assert cost.money(PRICES) == pytest.approx(21 * 1e-3 + 10 * 2e-3 + 10 * 1e-4)


def test_what_a_percent_is_worth(cost: JobCost) -> None:
    gained = 1 - (2 / 4 * 1 / 3) ** 0.5  # of the latencies of the job at both shares
    assert cost.gained == pytest.approx(gained)
    assert cost.per_percent(PRICES) == pytest.approx(cost.money(PRICES) / gained / 100)
    begun = job_cost(a_cost(state=1))
    assert (begun.gained, begun.per_percent(PRICES)) == (None, None)


def test_a_share_without_a_price_is_named(cost: JobCost) -> None:
    with pytest.raises(BadRequest, match=r"prices: share_hour lacks cpu:2; write the price"):
        cost.money(Prices("EUR", 1.0, {"cpu:1": 1.0}))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"cpu_hour": -1.0}, "'cpu_hour' is -1.0; write a price of 0 or more"),
        ({"cpu_hour": "x"}, "'cpu_hour' is 'x', and not a number"),
        ({}, "'cpu_hour' is missing"),
        ({"cpu_hour": 1, "gpu": 1}, "unknown key 'gpu'"),
        ({"cpu_hour": 1, "share_hour": {"cpu:1": float("inf")}}, "'cpu:1' is inf"),
        ({"cpu_hour": 1, "share_hour": {"cpu": 1}}, "cpu"),
    ],
)
def test_prices_that_cannot_be_meant(content: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        read_prices(content)


def test_prices_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(TOML)
    assert read_prices(file) == PRICES
    for text in ("cpu_hour =", f"cpu_hour = {'9' * 5000}"):
        file.write_text(text)
        with pytest.raises(BadRequest, match="not a TOML file"):
            read_prices(file)
    with pytest.raises(BadRequest, match="cannot read the prices"):
        read_prices(tmp_path / "none")


def test_the_table_has_a_row_a_job_or_a_token() -> None:
    result = CostResult(tuple(map(job_cost, (a_cost("aa"), a_cost("bb"), a_cost("aa")))), PRICES)
    assert [row["token"] for row in result.table.rows] == ["aa", "bb", "aa"]
    assert "cpu:1=21.0, cpu:2=10.0" in str(result.table)
    assert "cost EUR" in str(result.table)
    assert [(row["token"], row["jobs"], row["cpu_s"]) for row in result.by_token.rows] == [
        ("aa", 2, 20.0),
        ("bb", 1, 10.0),
    ]
    assert sum(row["cost"] for row in result.by_token.rows) == pytest.approx(3 * result.jobs[0].money(PRICES))
    assert "cost" not in CostResult(result.jobs).table.rows[0]


def test_all_pages_are_asked_for_and_no_more_than_wanted(server: ScriptedServer) -> None:
    assert len(fractune.cost(server=server.address).jobs) == 3
    found = fractune.cost("j1", since=5.0, tokens=True, limit=2, server=server.address)
    assert len(found.jobs) == 2
    request = server.cost_requests[-1]
    assert (request.job, request.since.seconds, request.with_tokens) == ("jobs/j1", 5, True)


def test_the_command(server: ScriptedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(TOML)
    assert main(["cost", "--server", server.address, "--prices", str(file), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["state"] for row in rows] == ["done", "tuning", "done"]
    assert rows[0]["cost"] == pytest.approx(0.042)
    assert rows[0]["currency"] == "EUR"
    assert main(["cost", "--server", server.address, "--by-token", "--since", "30d"]) == 0
    assert "aa" in capsys.readouterr().out
    assert main(["cost", "--server", server.address, "--since", "soon"]) == 2
    assert "--since 'soon': write hours or days" in capsys.readouterr().err
