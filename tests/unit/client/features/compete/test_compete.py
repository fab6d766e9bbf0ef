from pathlib import Path

import pytest

from fractune.features.compete.compete import check_runtimes
from fractune.features.compete.results import CompeteResult, Contest, runtimes_table
from fractune_core.errors import BadRequest
from fractune_core.files.compared import OURS, Compared, Timed
from tests.support.measured_pairs import runtime_time


def test_an_empty_list_names_no_runtime() -> None:
    with pytest.raises(BadRequest, match="no runtime is named; name one of onnxruntime, openvino"):
        check_runtimes([])


def test_a_disturbed_contest_is_marked_and_its_wider_interval_decides() -> None:
    theirs = Timed(0.8, 0.8, (1.25, 1.2, 1.3), (1.25, 1.2, 1.3), 0.0)
    quiet = Compared({OURS: Timed(1.0, 1.0), "onnxruntime": theirs}).beside(0.1, 1)
    busy = quiet.beside(0.4, 1)
    assert (quiet.winner("latency"), busy.winner("latency")) == ("onnxruntime", OURS)
    assert busy.times["onnxruntime"].loop == pytest.approx((1.25, 1.2 * 0.6, 1.3 / 0.6))
    table = CompeteResult(Path("m.fractune"), (Contest("", "cpu:1", busy),)).table
    assert [row[2] for row in table.cells] == ["<= 1.00 s", "<= 800 ms"]
    assert any("0.40 cores at cpu:1" in note for note in table.notes)
    assert not any("cores at" in note for note in CompeteResult(Path("m"), (Contest("", "cpu:1", quiet),)).table.notes)


def test_a_disturbed_time_of_the_log_is_marked() -> None:
    table = runtimes_table([runtime_time(others_cores=0.5)])
    assert [table.cells[0][at][:3] for at in (3, 4, 6, 7)] == ["<= "] * 4
    assert any("0.50 cores at cpu:1" in note for note in table.notes)
