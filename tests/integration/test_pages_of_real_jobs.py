"""The dashboard's pages of a real stack, after real tunings, competitions and pairs."""

import contextlib
import http.client
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fractune_core.served import is_disturbed
from tests.support.encoders import write_encoder
from tests.support.parts import write_middle
from tests.support.processes.cli_process import await_event, run_fractune, start_fractune, stopped_at_end, write_model
from tests.unit.client.dashboard.conftest import until

pytestmark = [pytest.mark.alone, pytest.mark.long]

Read = Callable[[str], Any]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages") / "state"


@pytest.fixture(scope="module")
def read(state: Path) -> Iterator[Read]:
    """The JSON of a page of a stack in `state`."""
    place = ("--state", str(state), "--listen", "127.0.0.1:0", "--json")
    with stopped_at_end(start_fractune("up", "--shares", "cpu:1", *place)) as stack:
        await_event(stack, event="ready")
        with stopped_at_end(start_fractune("dashboard", *place)) as dashboard:
            address = str(await_event(dashboard, event="ready")["address"]).split("/")[2]

            def answer(path: str) -> Any:
                with contextlib.closing(http.client.HTTPConnection(address, timeout=60)) as asked:
                    asked.request("GET", path, headers={"Accept": "application/json"})
                    return json.loads(asked.getresponse().read())

            yield answer


def tune(state: Path, model: Path, *options: str, compete: str = "none") -> Path:
    """Its bundle."""
    out = model.with_suffix(".fractune")
    command = ("tune", str(model), "--shares", "cpu:1", "--trials", "0", "--state", str(state), "--out", str(out))
    ended = run_fractune(*command, "--compete", compete, *options)
    assert ended.returncode == 0, ended.stderr
    return out


def jobs_of(read: Read, name: str, count: int = 1) -> list[Any]:
    """The newest first, as soon as there are so many: a page may be two seconds old."""
    found: list[Any] = []

    def are_there() -> bool:
        found[:] = [each for each in read("/")["jobs"] if each["model_name"] == name]
        return len(found) == count and all(each["state"] in ("done", "failed") for each in found)

    until(are_there)
    return found


def test_a_model_shows_the_runtimes_that_competed(read: Read, state: Path, tmp_path: Path) -> None:
    model = write_model(tmp_path / "small.onnx")
    tune(state, model, compete="onnxruntime")
    (job,) = jobs_of(read, "small.onnx")
    until(lambda: read(f"/{job['model']}")["runtimes"] != [])
    for path in (f"/{job['name']}", f"/{job['model']}"):
        timed = _of_onnxruntime(read(path))
        assert (timed["runtime"], timed["share"]) == ("onnxruntime", "cpu:1")
        assert timed["loop_ratio"]["median"] == pytest.approx(timed["bundle_loop_s"] / timed["loop_s"], rel=0.5)
    command = ("compete", str(tmp_path / "small.fractune"), "--model", str(model), "--repeats", "6")
    refused = run_fractune(*command, "--state", str(state))
    assert (refused.returncode, "are for --record" in refused.stderr) == (2, True)
    again = run_fractune(*command, "--record", "--state", str(state))
    assert again.returncode == 0, again.stderr
    until(lambda: _of_onnxruntime(read(f"/{job['model']}"))["measured_at"] > timed["measured_at"])


def _of_onnxruntime(page: Any) -> Any:
    (found,) = [each for each in page["runtimes"] if each["runtime"] == "onnxruntime"]
    return found


def test_a_limit_is_found_by_the_times_of_a_job(read: Read, state: Path, tmp_path: Path) -> None:
    tune(state, write_model(tmp_path / "fitted.onnx", seed=1))
    (job,) = jobs_of(read, "fitted.onnx")
    found = read(f"/fit?job={job['name']}&rate=5/s&p99=500ms")
    assert found["alternatives"][0]["limit_m"] <= 1000
    assert "limits:" in found["resources"]


def test_lengths_are_told_apart_and_another_file_of_the_name_is_shown(read: Read, state: Path, tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    for folder, mean_of_all in (("first", False), ("second", True)):
        tune(
            state, write_encoder(tmp_path / folder / "encoder.onnx", mean_of_all=mean_of_all), "--lengths", "ids:1=4,8"
        )
    jobs = jobs_of(read, "encoder.onnx", 4)
    assert sorted(each["inputs"]["ids"] for each in jobs) == [[1, 4], [1, 4], [1, 8], [1, 8]]
    found = read(f"/{jobs[0]['model']}")
    assert sorted(each["inputs"]["ids"] for each in found["jobs"]) == [[1, 4], [1, 8]]
    assert sorted(each["inputs"]["ids"] for each in found["other_files"]) == [[1, 4], [1, 8]]


def test_a_refused_job_names_the_jobs_of_its_parts(read: Read, state: Path, tmp_path: Path) -> None:
    tune(state, write_middle(tmp_path / "middle.onnx", ["n", 4]), "--input", "x=2,4", compete="onnxruntime")
    (refused,) = jobs_of(read, "middle.onnx")
    parts = [jobs_of(read, f"middle.part{number}.onnx")[0]["name"] for number in (1, 3)]
    assert read(f"/{refused['name']}")["parts"] == parts[::-1], "the newest first"
    until(lambda: read(f"/{refused['model']}")["runtimes"] != [])
    timed = _of_onnxruntime(read(f"/{refused['model']}"))
    assert (timed["runtime"], timed["inputs"]) == ("onnxruntime", {"x": [2, 4]})


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two models on one core have no cores of their own")
def test_a_recorded_pair_is_on_the_page_of_pairs(read: Read, state: Path, tmp_path: Path) -> None:
    bundle = tune(state, write_model(tmp_path / "paired.onnx", seed=3))
    ended = run_fractune("pair", str(bundle), str(bundle), "--rounds", "7", "--record", "--state", str(state))
    assert ended.returncode == 0, ended.stderr
    until(lambda: len(read("/pairs")["pairs"]) == 1)
    (pair,) = read("/pairs")["pairs"]
    assert [each["model_name"] for each in pair["models"]] == ["paired", "paired"]
    assert all(each["slowdown"]["median"] > 0 for each in pair["models"])
    (job,) = jobs_of(read, "paired.onnx")
    plan = read(f"/plan?job={job['name']}&rate=5/s&p99=500ms")["plan"]
    # This machine's other programs may disturb any measurement: a plan goes by no disturbed pair.
    known = [] if is_disturbed(pair["others_cores"]) else [(pair["pair_id"], "paired")]
    assert [(each["pair_id"], each["beside"]) for each in plan["slowdowns"]] == known
    (part,) = plan["devices"][0]
    basis = "at most, disturbed" if is_disturbed(job["results"][0]["others_cores"]) else "measured"
    assert (part["model"], part["share"], part["basis"]) == ("paired", "cpu:1", basis)
    assert part["latency_s"] == pytest.approx(job["results"][0]["tuned_s"] * part["slowdown"])
