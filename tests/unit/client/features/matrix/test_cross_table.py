"""The table tuned-at x run-at: losses, ties, what its sentences say, and its picture."""

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from fractune.features.matrix.cross_table import (
    Cell,
    CrossTable,
    cell_text,
    cross_text,
    draw_table,
    model_table,
    operator_table,
    rows,
    sentences,
    signed,
    table_json,
)
from fractune.server.job_status import job_status, operator_records
from fractune.text.rendering import check_picture
from fractune_core.analysis.slowdown_ci import Slowdown
from fractune_core.codec.messages import to_proto
from fractune_core.errors import BadRequest
from fractune_core.pb import fractune_pb2 as pb
from tests.support.client_results import tuned_job
from tests.support.samples import validation

SHARES = ("cpu:1", "cpu:2")
NOISE = (0.99, 1.0, 1.01, 1.0, 0.995, 1.005, 1.0, 1.003, 0.997, 1.0, 1.0)


def cell(secs: float, timing: str = "j1") -> Cell:
    return Cell([secs * noise for noise in NOISE], timing)


TABLE = CrossTable(
    "m.onnx",
    1,
    SHARES,
    {
        "untuned": {"cpu:1": cell(4e-3), "cpu:2": cell(3e-3)},
        "cpu:1": {
            "cpu:1": cell(2e-3),
            "cpu:2": Cell([1.005e-3, 1.02e-3, 0.98e-3, 1.01e-3, 0.99e-3, 1.0e-3, 1.01e-3], "other"),
        },
        "cpu:2": {"cpu:1": cell(2.28e-3), "cpu:2": cell(1e-3)},
    },
)


def test_each_cell_says_time_and_loss_and_noise_is_a_tie() -> None:
    assert cell_text(TABLE, "cpu:1", "cpu:1") == "2.00 ms  fastest"
    assert cell_text(TABLE, "cpu:2", "cpu:1") == "2.28 ms  +14 % ± 0.0 %"
    assert cell_text(TABLE, "untuned", "cpu:1") == "4.00 ms  +100 % ± 0.0 %"
    assert [cell_text(TABLE, name, "cpu:2") for name in SHARES] == ["1.01 ms  tie", "1.00 ms  fastest"]


def test_a_disturbed_cell_is_marked_and_its_interval_reaches_down_by_the_lost_cores() -> None:
    kept = {variant: {at: replace(each, kept=0.6) for at, each in row.items()} for variant, row in TABLE.cells.items()}
    table = replace(TABLE, cells=kept)
    assert cell_text(table, "cpu:2", "cpu:1") == "<= 2.28 ms  tie"
    assert cell_text(table, "untuned", "cpu:1") == "<= 4.00 ms  +100 % (20 % .. 233 %)"
    lost = table.slowdown("cpu:2", "cpu:1")
    assert lost is not None
    assert (lost.median, lost.low, lost.high) == pytest.approx((0.14, 1.14 * 0.6 - 1, 1.14 / 0.6 - 1))


def test_the_table_of_a_disturbed_job_says_so() -> None:
    job = tuned_job()
    busy = replace(job, results=(replace(job.results[0], others_cores=0.4), *job.results[1:]))
    assert {cell.kept for cell in model_table(busy).cells["cpu:1"].values()} == {0.6, 1.0}
    assert any("0.40 cores at cpu:1" in note for note in cross_text(model_table(busy)).notes)
    assert table_json(model_table(busy))["at_load"]["cpu:1"]["disturbed"] is True


def test_what_another_beats_in_pairs_is_not_the_fastest() -> None:
    """The machine slowed down after four turns: by its median `cpu:1` is faster, next to each other it is not."""
    slower, faster = Cell([1.0] * 5 + [3.0] * 4, "j1"), Cell([0.9] * 4 + [1.05] + [2.7] * 4, "j1")
    table = CrossTable("m", 1, ("cpu:1",), {"cpu:1": {"cpu:1": slower}, "robust": {"cpu:1": faster}})
    assert slower.median_s < faster.median_s
    assert table.fastest("cpu:1") == "robust"
    assert [lost.median for *_, lost in table.all()] == [pytest.approx(1 / 0.9 - 1), 0.0]


def test_a_loss_whose_interval_is_not_known_is_no_tie() -> None:
    cells = {"cpu:1": {"cpu:1": cell(2e-3)}, "untuned": {"cpu:1": Cell([2.0], "j1")}}
    assert cell_text(CrossTable("m", 1, ("cpu:1",), cells), "untuned", "cpu:1") == "2.00 s  1000x, one timing"


def test_too_few_timings_for_an_interval_decide_nothing() -> None:
    slower, faster = Cell([1.1] * 3, "j1"), Cell([1.0] * 3, "j1")
    cells = {"cpu:1": {"cpu:1": faster, "cpu:2": slower}, "cpu:2": {"cpu:1": slower, "cpu:2": faster}}
    table = CrossTable("m", 1, SHARES, cells)
    assert cell_text(table, "cpu:2", "cpu:1") == "1.10 s  1.10x, 3 timings"
    assert sentences(table)[0] == (
        "served on 1 core, the times vary too much to tell whether the schedule tuned on 2 cores is as fast (+10 %, "
        "from too few timings for an interval); repeat it"
    )
    assert not any("?" in line for line in sentences(table))


def test_the_table_in_words() -> None:
    loses, ties, robust = sentences(TABLE)
    assert loses == "served on 1 core, the schedule tuned on 2 cores loses 14 % ± 0.0 %"
    assert ties.startswith("served on 2 cores, the schedule tuned on 1 core does as well as the one tuned there, ")
    assert "within the noise (+0.5 % ± " in ties
    told = "one variant for all of these shares: the schedules tuned on 1 core lose nothing beyond the noise at any of "
    assert robust.startswith(f"{told}these shares (+0.5 % ± ")
    assert robust.endswith(" % on 2 cores)")


def test_a_loss_beyond_the_noise_at_any_share_has_its_figure() -> None:
    """The worst share by the median is a tie there, and a smaller loss at the other share is none."""
    noisy = Cell([1.2e-3, 0.8e-3, 1.3e-3, 0.7e-3, 1.1e-3, 1.05e-3, 0.9e-3], "other")
    cells = {
        "cpu:1": {"cpu:1": cell(1e-3), "cpu:2": Cell([1.6e-3] * 7, "other")},
        "cpu:2": {"cpu:1": cell(1.02e-3), "cpu:2": noisy},
        "robust": {"cpu:1": cell(1.01e-3), "cpu:2": Cell([secs * 1.04 for secs in noisy.run_secs], "third")},
    }
    table = CrossTable("m", 1, SHARES, cells)
    at_worst = table.slowdown("robust", "cpu:2")
    assert at_worst is not None
    assert at_worst.is_tie
    assert not table.is_lossless("robust")
    assert " lose at most " in sentences(table)[-1]


def test_among_variants_that_lose_nothing_the_robust_one_is_named() -> None:
    cells = {
        "cpu:1": {"cpu:1": cell(1e-3), "cpu:2": cell(2e-3)},
        "cpu:2": {"cpu:1": cell(1.01e-3), "cpu:2": cell(1e-3)},
        "robust": {"cpu:1": cell(1e-3, "other"), "cpu:2": cell(1.001e-3, "other")},
    }
    table = CrossTable("m", 1, SHARES, cells)
    assert table_json(table)["robust"]["variant"] == "robust"
    assert sentences(table)[-1].startswith(
        "one variant for all of these shares: the schedules made for all ('robust') lose nothing beyond the "
        "noise at any of these shares"
    )


def test_a_range_has_a_sentence_of_its_own() -> None:
    """At `cpu:4` the variant of the range loses, which counts for all shares and not for the range."""
    cells = {
        "cpu:1": {"cpu:1": cell(1e-3), "cpu:2": cell(3e-3), "cpu:4": cell(3e-3)},
        "cpu:2": {"cpu:1": cell(3e-3), "cpu:2": cell(1e-3), "cpu:4": cell(1e-3)},
        "cpu:1..2": {"cpu:1": cell(1.1e-3), "cpu:2": cell(1.2e-3), "cpu:4": cell(9e-3)},
    }
    shares = ("cpu:1", "cpu:2", "cpu:4")
    table = CrossTable("m", 1, shares, cells, ranges=("cpu:1..2",))
    *_, within, over_all = sentences(table)
    assert within.startswith("one variant for all of cpu:1..2: the schedules made for cpu:1..2 lose at most 20 % ± ")
    assert over_all.startswith("one variant for all of these shares: the schedules tuned on 1 core lose at most 200 % ")
    assert table_json(table)["ranges"] == {
        "cpu:1..2": {"variant": "cpu:1..2", "worst_at": "cpu:2", "loss": pytest.approx(0.2)}
    }
    whole = CrossTable("m", 1, ("cpu:1", "cpu:2"), cells, ranges=("cpu:1..2",))
    assert sum(each.startswith("one variant") for each in sentences(whole)) == 1


def test_a_schedule_that_beats_the_one_tuned_there_is_told() -> None:
    cells = {"cpu:1": {"cpu:1": cell(2e-3)}, "cpu:2": {"cpu:1": cell(1e-3)}}
    (told,) = sentences(CrossTable("m", 1, ("cpu:1", "cpu:2"), cells))
    assert told.startswith("served on 1 core, the schedule tuned on 2 cores is 50 % ± 0.0 % faster")


def test_what_was_not_measured_is_shown_as_such() -> None:
    table = CrossTable("m", 1, SHARES, {"cpu:1": {"cpu:1": cell(2e-3)}, "cpu:2": {"cpu:2": cell(1e-3)}})
    assert cell_text(table, "cpu:1", "cpu:2") == "-"
    assert len(rows(table)) == 2
    assert table.robust() is None
    assert table_json(table)["robust"] is None
    assert sentences(table) == []


def test_the_robust_variant_is_the_tuned_one_that_loses_least_at_its_worst() -> None:
    told = table_json(TABLE)["robust"]
    assert told["variant"] == "cpu:1"
    robust = {**TABLE.cells, "robust": {"cpu:1": cell(2e-3), "cpu:2": cell(0.9e-3)}}
    found = CrossTable("m", 1, SHARES, robust).robust()
    assert found is not None
    assert found[0] == "robust"


def test_a_jobs_result_and_published_records_become_tables() -> None:
    runs = {"cpu:1": pb.Repeats(secs=[2.0, 2.0, 2.0]), "untuned": pb.Repeats(secs=[3.0, 3.0, 3.0])}
    job = pb.Job(
        name="jobs/j1",
        state=pb.JOB_STATE_DONE,
        model_display_name="m.onnx",
        spec=pb.JobSpec(model="models/m", shares=["cpu:1"]),
        result=pb.JobResult(shares=[pb.ShareResult(share="cpu:1", run_secs=runs)]),
    )
    assert list(model_table(job_status(job)).cells) == ["untuned", "cpu:1"]
    answer = pb.OperatorTable(
        operator=pb.Operator(display_name="conv2d", weight=3),
        cells=[
            pb.TableCell(
                tuned_at="cpu:1",
                run_at=f"cpu:{units}",
                record=to_proto(validation("a", units, 1.0 / units, record_id=f"{units:032x}"), pb.Record),
            )
            for units in (1, 2)
        ],
    )
    table = operator_table(operator_records(answer), SHARES)
    assert (table.name, table.weight) == ("conv2d", 3)
    assert table.cells["cpu:1"]["cpu:2"].median_s == 0.5


def test_the_table_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "table.png"
    check_picture(path)
    draw_table(TABLE, path)
    assert path.stat().st_size > 5_000
    with pytest.raises(BadRequest):
        check_picture(tmp_path / "table.gif")


def test_cells_that_were_not_measured_say_so_in_the_picture(tmp_path: Path) -> None:
    part = {name: dict(row) for name, row in TABLE.cells.items()}
    del part["untuned"]["cpu:2"]
    for table, count in ((TABLE, 0), (replace(TABLE, cells=part), 1)):
        draw_table(table, tmp_path / "table.svg")
        text = (tmp_path / "table.svg").read_text()
        assert text.count("<!-- not measured -->") == count
        assert "<!-- time against the fastest of the column -->" in text


def same_everywhere(
    rng: random.Random, variants: int, repeats: int, shares: tuple[str, ...] = SHARES, *, is_heavy: bool = False
) -> CrossTable:
    """Timings in turn of one program under several names."""

    def repeat_secs() -> float:
        return 1.0 + 0.1 * rng.paretovariate(1.5) if is_heavy else math.exp(rng.gauss(0.0, 0.05))

    names = ["robust", *shares, "untuned"][:variants]
    cells = {name: {share: Cell([repeat_secs() for _ in range(repeats)], share) for share in shares} for name in names}
    return CrossTable("m", 1, shares, cells)


def says_a_difference(table: CrossTable) -> bool:
    """In a cell, or in the words below."""
    words = any(" loses " in sentence or " faster than " in sentence for sentence in sentences(table))
    return words or any(not lost.is_tie for *_, lost in table.all())


@pytest.mark.parametrize("variants", [2, 4])
def test_a_table_of_one_program_seldom_says_that_something_loses(variants: int) -> None:
    rng, tables = random.Random(0), 600
    alarms = sum(says_a_difference(same_everywhere(rng, variants, repeats=11)) for _ in range(tables))
    assert alarms <= 0.05 * tables


@pytest.mark.parametrize("is_heavy", [False, True])
def test_so_does_a_table_of_many_shares(is_heavy: bool) -> None:  # noqa: FBT001
    rng, shares, tables = random.Random(0), ("cpu:1", "cpu:2", "cpu:3", "cpu:4"), 150
    alarms = sum(
        says_a_difference(same_everywhere(rng, 6, repeats=11, shares=shares, is_heavy=is_heavy)) for _ in range(tables)
    )
    assert alarms <= 0.05 * tables


def test_a_loss_is_still_seen() -> None:
    rng = random.Random(0)
    table = same_everywhere(rng, 3, repeats=11)
    slow = {share: Cell([1.3 * secs for secs in cell.run_secs], share) for share, cell in table.cells["cpu:1"].items()}
    found = CrossTable("m", 1, SHARES, {**table.cells, "cpu:1": slow})
    assert all(lost is not None and not lost.is_tie for lost in (found.slowdown("cpu:1", share) for share in SHARES))


def test_a_wide_interval_without_zero_is_shown_by_its_ends_and_is_no_tie() -> None:
    """60.0 us against 12.8 us: 5.46 times as much more, and no interval by ± says so."""
    assert signed(Slowdown(5.46, 1.43, 16.1)) == "+546 % (143 % .. 1610 %)"
    assert signed(Slowdown(-0.3, -0.9, -0.01)) == "-30 % (-90 % .. -1.0 %)"
    assert signed(Slowdown(0.01, -0.02, 0.04)) == "+1.0 % ± 3.0 %"


def test_a_tie_whose_interval_is_wide_decides_nothing() -> None:
    wide = Cell([secs * 1e-3 for secs in (0.2, 0.3, 0.5, 0.9, 1.0, 1.1, 2.0, 4.0, 9.0)], "j1")
    cells = {"cpu:1": {"cpu:1": cell(2e-3), "cpu:2": wide}, "cpu:2": {"cpu:1": cell(2e-3), "cpu:2": cell(1e-3)}}
    said = sentences(CrossTable("m.onnx", 1, SHARES, cells))
    assert any("the times vary too much to tell whether the schedule tuned on 1 core" in line for line in said)


def test_a_sentence_for_each_share_has_the_latencies_at_30_percent_load() -> None:
    table = model_table(tuned_job())
    assert sentences(table)[-3] == (
        "at cpu:2, p50 / p99 at 30 % load: 'robust' (made for all shares) with 1 thread 4.69 ms / 5.98 ms, 'cpu:2' "
        "with 2 threads 5.30 ms / 6.76 ms"
    )
    assert table_json(table)["at_load"]["cpu:2"]["served"]["latency"]["threads"] == 1
