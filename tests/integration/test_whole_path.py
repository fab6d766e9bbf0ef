"""The whole path through the command line: a server, with every worker a process that was started by hand."""

import hashlib
import json
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import onnx
import pytest

import fractune
from benchmarks.support.models import find_model
from benchmarks.support.reference import expected_outputs
from fractune_core.files.bundles import Bundle
from tests.support.models_in_common import write_reductions
from tests.support.paths import REPOSITORY
from tests.support.processes.cli_process import (
    error_line,
    events,
    run_fractune,
    start_fractune,
    stopped_at_end,
    write_model,
)
from tests.support.processes.fleet_processes import fleet_of_processes
from tests.support.processes.redis_process import running_redis

ONLY = "conv2d"
SHARES = ("cpu:1", "cpu:2")


@dataclass(frozen=True)
class Fleet:
    address: str
    folder: Path
    """where bundles go"""
    model: Path

    def tune(self, *more: str) -> subprocess.CompletedProcess[str]:
        trials = () if "--extra-trials" in more else ("--trials", "4")
        return run_fractune(
            *("tune", str(self.model), "--shares", ",".join(SHARES), *trials, "--only", ONLY),
            *("--server", self.address, "--out-dir", str(self.folder), "--json", *more),
        )


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    workers = [("--role", role) for role in ("compile", "tune", "build")]
    measurers = [("--role", "measure", "--share", share) for share in SHARES]
    with running_redis() as url, fleet_of_processes(url, folder, *workers, *measurers) as address:
        yield Fleet(address, folder, write_model(folder / "small.onnx"))


@pytest.fixture(scope="module")
def tuned(fleet: Fleet) -> list[dict[str, Any]]:
    """The events of a first run. Its bundle is moved: a later run may time the model again, and write a new one."""
    found = events(fleet.tune())
    bundle = Path(found[-1]["bundle"])
    found[-1]["bundle"] = str(bundle.rename(bundle.with_name("first.fractune")))
    return found


def test_the_result_tells_trials_shares_operators_and_the_bundle(tuned: list[dict[str, Any]]) -> None:
    result = tuned[-1]
    assert set(result) == {
        *("event", "job", "wall_s", "trials", "trials_shared", "trials_saved", "trials_per_s", "phases_s", "busy_s"),
        *("failures", "shares", "layout_transforms", "operators", "bundle", "checked"),
        *("answer", "not_compared", "gained", "skipped_shares"),
    }
    assert result["event"] == "result"
    assert result["trials"] == {"cpu:1": 4, "cpu:2": 4}
    assert [(each["share"], each["granted"]["units"]) for each in result["shares"]] == [("cpu:1", 1), ("cpu:2", 2)]
    assert all(each["untuned_s"] > 0 < each["tuned_s"] for each in result["shares"])
    assert len(result["operators"]) == 2
    assert all(ONLY in operator["name"] for operator in result["operators"])
    assert all(set(operator["best_s"]) == set(SHARES) for operator in result["operators"])
    assert Path(result["bundle"]).is_file()
    assert sum(result["phases_s"].values()) == pytest.approx(result["wall_s"])
    assert set(result["busy_s"]) == {"ingest", "search", "build", "measure", "compile", "time_model"}
    assert 0 < result["busy_s"]["compile"] <= result["phases_s"]["compiling"]


def test_the_events_follow_the_job_through_its_states(tuned: list[dict[str, Any]]) -> None:
    assert {event["event"] for event in tuned} == {"job", "operator", "progress", "result"}
    states = list(dict.fromkeys(event["state"] for event in tuned if event["event"] == "job"))
    order = ["queued", "ingesting", "tuning", "validating", "compiling", "timing", "done"]
    assert states == [state for state in order if state in states]
    assert states[-1] == "done"
    done = [event["candidates_done"] for event in tuned if event["event"] == "progress"]
    assert done == sorted(done)


def test_more_goes_on_from_there_and_measures_nothing_again(
    fleet: Fleet, tuned: list[dict[str, Any]], tmp_path: Path
) -> None:
    options = ("--shares", "cpu:1", "--extra-trials", "2", "--compete", "none", "--out-dir", str(tmp_path))
    further = events(fleet.tune(*options))[-1]
    assert further["trials"] == {"cpu:1": 2}
    assert sum(each["trials"] for each in further["operators"]) == 2 + sum(
        each["trials"] for each in tuned[-1]["operators"]
    )


@pytest.mark.parametrize("share", SHARES)
def test_the_bundle_runs_at_each_share_with_that_shares_variant(
    tuned: list[dict[str, Any]], tmp_path: Path, share: str
) -> None:
    inputs, outputs = tmp_path / "in.npz", tmp_path / "out.npz"
    np.savez(inputs, x=np.ones((1, 4, 16, 16), "float32"))
    args = ["--share", share, "--repeats", "3", "--inputs", str(inputs), "--save-outputs", str(outputs)]
    (report,) = events(run_fractune("run", tuned[-1]["bundle"], *args, "--json"))
    # The model is so small that one thread or another variant may be as good, by the times in the bundle.
    by_times = report["reason"].startswith(("one thread runs it", "no faster variant was timed"))
    assert report["variant"] in ({*SHARES, "robust"} if by_times else {share})
    assert (report["exact"], report["units"]) == (True, int(share[-1]))
    assert report["max_rel_difference"] < 1e-3
    assert len(report["tuned_run_secs"]) == len(report["untuned_run_secs"]) == 3
    assert np.load(outputs)["y"].shape == tuple(report["outputs"][0]["shape"])


def test_one_variant_serves_a_range_wherever_its_process_is(
    fleet: Fleet, tuned: list[dict[str, Any]], two_cpus: list[int], tmp_path: Path
) -> None:
    """Of what the first run measured: a match and a bundle for the range `cpu:1..2`, without a search."""
    wide, at = ("--shares", "cpu:1..2"), ("--server", fleet.address)
    told = events(run_fractune("match", str(fleet.model), "--share", "cpu:1..2", *at, "--json"))
    matched = [each for each in told if "operator" in each]
    assert {each["operator"] for each in matched} > {each["name"] for each in tuned[-1]["operators"]}
    assert {each["how"] for each in matched} <= {"robust", "none"}
    path = tmp_path / "range.fractune"
    assert run_fractune("bundle", str(fleet.model), *wide, *at, "--out", str(path)).returncode == 0
    code = (
        "import fractune, os, sys\n"
        f"os.sched_setaffinity(0, {two_cpus})\n"
        f"model = fractune.load({str(path)!r}, share='cpu:1..2')\n"
        "before = model.choice\n"
        f"os.sched_setaffinity(0, {two_cpus[:1]})\n"
        "after = model.rematch()\n"
        "print(before.variant == after.variant, after.threads, model.share.units, after.how, after.reason)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.stdout.startswith("True 1 1 robust it is at most "), ended.stdout + ended.stderr


@pytest.mark.long
def test_every_variant_of_a_model_with_trained_weights_agrees_with_onnx(fleet: Fleet, tmp_path: Path) -> None:
    model = find_model("magika")
    args = ["--shares", ",".join(SHARES), "--trials", "2", "--only", "conv2d", *model.options]
    told = events(
        run_fractune("tune", str(model.path), *args, "--server", fleet.address, "--out-dir", str(tmp_path), "--json")
    )
    loaded = fractune.load(told[-1]["bundle"])
    inputs = {"bytes": np.random.default_rng(1).integers(0, 256, model.inputs["bytes"]).astype(np.int32)}
    (expected,) = expected_outputs(model.path, inputs)
    names = [variant["name"] for variant in loaded.bundle.variants]
    assert {*SHARES, "untuned"} <= set(names)
    for name in names:
        (output,) = loaded.run(inputs, name)
        np.testing.assert_allclose(output, expected, rtol=1e-3, atol=1e-5 * float(np.abs(expected).max()))


def test_wrong_inputs_of_a_bundle_are_told(tuned: list[dict[str, Any]], tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.ones((1, 3), "float32"))
    ended = run_fractune("run", tuned[-1]["bundle"], "--inputs", str(tmp_path / "in.npz"))
    assert ended.returncode == 2
    assert "the model takes x float32[1, 4, 16, 16]; given: x float32[1, 3]" in error_line(ended)


def test_match_names_the_record_that_was_published(fleet: Fleet, tuned: list[dict[str, Any]]) -> None:
    told = events(run_fractune("match", str(fleet.model), "--share", "cpu:1", "--server", fleet.address, "--json"))
    matches = [each for each in told if "operator" in each]  # the others are the whole model's, by goal
    names = {operator["name"] for operator in tuned[-1]["operators"]}
    assert names < {match["operator"] for match in matches}
    for match in matches:
        if match["operator"] not in names:
            assert (match["how"], match["record"]) == ("none", None)
        elif match["how"] == "exact":
            assert (match["record"]["kind"], match["record"]["share"]) == ("validation", "cpu:1")
        else:
            assert match["reason"] == "the untuned default is the fastest measured at 1 core"
            assert match["untuned_s"] > 0


def test_what_was_never_tuned_has_no_matrix_and_no_bundle(fleet: Fleet, tmp_path: Path) -> None:
    """The two models share an operator, the copy at their ends, which tells nothing of what it is the end of. Before it
    stands another copy on processors that keep few channels in blocks.
    """
    stranger = write_model(tmp_path / "stranger.onnx", channels=48)
    options = ("--shares", "cpu:1", "--only", "from_blocks", "--trials", "1", "--compete", "none")
    shared = events(fleet.tune(*options, "--out-dir", str(tmp_path)))[-1]["operators"]
    assert shared
    assert all(operator["name"].startswith("from_blocks") for operator in shared)
    for command in ("matrix", "bundle"):
        ended = run_fractune(command, str(stranger), "--shares", "cpu:1", "--server", fleet.address)
        assert ended.returncode == 9
        assert "only of from_blocks" in error_line(ended)
        assert "tune it first" in error_line(ended)


@pytest.mark.usefixtures("tuned")
def test_the_log_goes_out_and_comes_back(fleet: Fleet, tmp_path: Path) -> None:
    at = ("--server", fleet.address)
    shown = events(run_fractune("log", "show", "--share", "cpu:1", "--kind", "trial", "--limit", "99", "--json", *at))
    assert len(shown) >= 4
    assert all(record["granted"]["ids"] == [0] for record in shown)
    path = tmp_path / "log.jsonl"
    (exported,) = events(run_fractune("log", "export", str(path), "--json", *at))
    (answer,) = events(run_fractune("log", "import", str(path), "--json", *at))
    assert answer == {"added": 0, "already_there": exported["records"]}


@pytest.mark.usefixtures("tuned")
def test_the_log_of_one_fleet_serves_another(fleet: Fleet, tmp_path: Path) -> None:
    path, state = tmp_path / "log.jsonl", tmp_path / "state"
    (exported,) = events(run_fractune("log", "export", str(path), "--json", "--server", fleet.address))
    (answer,) = events(run_fractune("log", "import", str(path), "--json", "--state", str(state)))
    assert answer == {"added": exported["records"], "already_there": 0}


_STOCK_TVM = """
import json, sys
import tvm
from tvm import relax
from tvm.s_tir import meta_schedule as ms
import onnx
from tvm.relax.frontend.onnx import from_onnx

folder, model = sys.argv[1:]
database = ms.database.JSONDatabase(work_dir=folder, allow_missing=False)
target = database.get_all_tuning_records()[0].target
mod = from_onnx(onnx.load(model))
with target, tvm.transform.PassContext(opt_level=3):
    mod = relax.get_pipeline("zero")(mod)
with target, database, tvm.transform.PassContext(opt_level=3):
    applied = relax.transform.MetaScheduleApplyDatabase()(mod)
    print(sum(bool(f.attrs and f.attrs.get("tirx.is_scheduled", False)) for f in applied.functions.values()))
ms.relax_integration.compile_relax(database, mod, target, params=None)
"""


def _write_product(path: Path) -> Path:
    shapes = {"a": [16, 24], "b": [24, 32], "y": [16, 32]}
    a, b, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims) for name, dims in shapes.items())
    graph = onnx.helper.make_graph([onnx.helper.make_node("MatMul", ["a", "b"], ["y"])], "product", [a, b], [y])
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


@pytest.mark.long
@pytest.mark.usefixtures("tuned")
def test_stock_tvm_uses_an_exported_jsondatabase(fleet: Fleet, tmp_path: Path) -> None:
    """A product of two inputs is the same operator there: weights, and images, are kept in blocks here."""
    at, folder = ("--server", fleet.address), tmp_path / "db"
    model = _write_product(tmp_path / "product.onnx")
    options = ("--shares", "cpu:2", "--trials", "4", "--compete", "none", "--out-dir", str(tmp_path))
    tuned = run_fractune("tune", str(model), *options, *at)
    assert tuned.returncode == 0, tuned.stderr
    refused = run_fractune("log", "export", str(folder), "--format", "jsondatabase", *at)
    assert (refused.returncode, "pass --share" in error_line(refused)) == (2, True)
    (exported,) = events(
        run_fractune("log", "export", str(folder), "--format", "jsondatabase", "--share", "cpu:2", "--json", *at)
    )
    assert exported["records"] > 0
    command = [sys.executable, "-I", "-c", _STOCK_TVM, str(folder), str(model)]
    stock = subprocess.run(command, capture_output=True, text=True, check=False)
    assert stock.returncode == 0, stock.stderr
    assert int(stock.stdout.split()[0]) > 0
    assert error_line(run_fractune("log", "import", str(folder), *at)).endswith("--device-from-this-host")
    args = ("log", "import", str(folder), "--share", "cpu:2", "--device-from-this-host", "--json", *at)
    assert events(run_fractune(*args)) == [{"added": exported["records"], "already_there": 0}]
    assert events(run_fractune(*args)) == [{"added": 0, "already_there": exported["records"]}]


def test_a_second_model_takes_the_schedules_of_the_first(fleet: Fleet, tmp_path: Path) -> None:
    """Of operators that both have."""
    results = []
    for number in (1, 4):
        model = write_reductions(tmp_path, number)
        args = ("--shares", "cpu:1", "--trials", "1", "--only", "layer_norm", "--compete", "none")
        ended = run_fractune("tune", str(model), "--out-dir", str(tmp_path), *args, "--server", fleet.address, "--json")
        assert ended.returncode == 0, ended.stderr
        results.append(events(ended)[-1])
    first, second = results
    assert [each["workload_hash"] for each in first["operators"]] == [
        each["workload_hash"] for each in second["operators"]
    ]
    assert (first["trials"], second["trials"]) == ({"cpu:1": 1}, {"cpu:1": 0})
    for result in results:
        manifest = Bundle(Path(result["bundle"])).manifest
        (operator,) = (each for each in manifest["operators"] if each["name"] == "layer_norm")
        assert operator["by_variant"]["cpu:1"]["record"] is not None


def test_a_cancelled_job_ends_its_watchers_with_code_six(fleet: Fleet) -> None:
    at = ("--server", fleet.address)
    watcher = start_fractune(*("tune", str(fleet.model), "--shares", "cpu:1", "--trials", "5000", "--json", *at))
    with stopped_at_end(watcher):
        assert watcher.stdout is not None
        job = json.loads(watcher.stdout.readline())["job"]
        (cancelled,) = events(run_fractune("cancel", job, "--json", *at))
        assert cancelled["state"] == "cancelled"
        _, said = watcher.communicate(timeout=30)
        assert watcher.returncode == 6
        assert said.splitlines() == [f"fractune: {said.removeprefix('fractune: ').strip()}"]
    open_jobs = events(run_fractune("jobs", "--open", "--json", *at))
    assert job not in {each["job"] for each in open_jobs}


def test_ctrl_c_cancels_the_job(fleet: Fleet) -> None:
    at = ("--server", fleet.address)
    tuning = start_fractune("tune", str(fleet.model), "--shares", "cpu:1", "--trials", "5000", "--json", *at)
    with stopped_at_end(tuning):
        assert tuning.stdout is not None
        job = json.loads(tuning.stdout.readline())["job"]
        tuning.send_signal(2)
        _, said = tuning.communicate(timeout=30)
        assert (tuning.returncode, said) == (130, f"fractune: stopped; {job} is cancelled\n")
    (state,) = [each["state"] for each in events(run_fractune("jobs", "--json", *at)) if each["job"] == job]
    assert state == "cancelled"


def test_a_generic_client_that_knows_only_reflection_tunes_a_model(fleet: Fleet) -> None:
    """Messages and methods come from the server's reflection service; nothing of ours is imported for them."""
    import grpc
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

    with grpc.insecure_channel(fleet.address) as channel:
        known = ProtoReflectionDescriptorDatabase(channel)
        assert "fractune.v1.JobService" in known.get_services()
        pool = DescriptorPool(known)

        def message(kind: str, /, **fields: Any) -> Any:
            return GetMessageClass(pool.FindMessageTypeByName(f"fractune.v1.{kind}"))(**fields)

        def method(service: str, name: str) -> dict[str, Any]:
            described = pool.FindServiceByName(f"fractune.v1.{service}").methods_by_name[name]
            return {
                "method": f"/fractune.v1.{service}/{name}",
                "request_serializer": GetMessageClass(described.input_type).SerializeToString,
                "response_deserializer": GetMessageClass(described.output_type).FromString,
            }

        payload = fleet.model.read_bytes()
        header = message("ModelHeader", display_name="m.onnx", size_bytes=len(payload))
        header.sha256 = hashlib.sha256(payload).hexdigest()
        parts = [message("UploadModelRequest", header=header)]
        step = 1 << 20
        parts += [message("UploadModelRequest", data=payload[i : i + step]) for i in range(0, len(payload), step)]
        model = channel.stream_unary(**method("ModelService", "UploadModel"))(iter(parts), timeout=60)
        assert model.name == f"models/{header.sha256}"
        spec = message("JobSpec", model=model.name, shares=["cpu:1"], trials=4, only=ONLY)
        created = channel.unary_unary(**method("JobService", "CreateJob"))(
            message("CreateJobRequest", spec=spec), timeout=30
        )
        watch = channel.unary_stream(**method("JobService", "WatchJob"))
        seen = list(watch(message("WatchJobRequest", name=created.name), timeout=240))
        states = pool.FindEnumTypeByName("fractune.v1.JobState").values_by_name
        assert seen[-1].state == states["JOB_STATE_DONE"].number
        assert seen[-1].result.bundle.startswith("bundles/")
        health: Any = channel.unary_unary("/grpc.health.v1.Health/Check", lambda _: b"", lambda answer: answer)
        assert health(None, timeout=10) == b"\x08\x01"  # status: SERVING


def lasting(result: dict[str, Any]) -> dict[str, Any]:
    """A result without what is read from its bundle, without roofs, which a later job may have raised, and without what
    is known to those only who followed the search.
    """
    of_roofs = ("roof", "roof_part", "memory_bound")
    shares, operators = (
        [{name: value for name, value in each.items() if name not in of_roofs} for each in result[key]]
        for key in ("shares", "operators")
    )
    followed = dict.fromkeys(("answer", "not_compared", "gained"))
    return {**result, **followed, "bundle": "", "checked": [], "shares": shares, "operators": operators}


def test_a_finished_job_can_be_watched_and_its_bundle_fetched(
    fleet: Fleet, tuned: list[dict[str, Any]], tmp_path: Path
) -> None:
    job, at = tuned[-1]["job"], ("--server", fleet.address)
    watched = events(run_fractune("watch", job, "--json", *at))[-1]
    assert lasting(watched) == lasting(tuned[-1])
    path = tmp_path / "again.fractune"
    events(run_fractune("bundle", job, "--out", str(path), "--json", *at))
    assert without_times(path) == without_times(Path(tuned[-1]["bundle"]))


def without_times(path: Path) -> dict[str, Any]:
    """What a bundle holds. A later job times the whole model again if other programs had disturbed the first one."""
    with zipfile.ZipFile(path) as archive:
        entries: dict[str, Any] = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(entries["manifest.json"])
    times = {"timed", "others_cores", "served"}
    return {**entries, "manifest.json": {name: manifest[name] for name in manifest if name not in times}}


def test_the_matrix_measures_winners_only_and_says_what_it_means(
    fleet: Fleet, tuned: list[dict[str, Any]], tmp_path: Path
) -> None:
    assert tuned
    table, picture = tmp_path / "m.csv", tmp_path / "m.svg"
    asked = ("--shares", "cpu:1..2", "--only", ONLY, "--server", fleet.address)
    where = ("--csv", str(table), "--picture", str(picture))
    told = events(run_fractune("matrix", str(fleet.model), *asked, *where, "--operators", "--json"))
    assert all(event["candidates_done"] == 0 for event in told if event["event"] == "progress")
    model, *operators = told[-1]["tables"]
    assert model["ranges"]["cpu:1..2"]["variant"] in {each["tuned_at"] for each in model["cells"]} - {"untuned"}
    assert {each["run_at"] for each in model["cells"]} == set(SHARES)
    assert {(cell["tuned_at"], cell["run_at"]) for cell in model["cells"]} >= {
        (variant, share) for variant in ("untuned", *SHARES) for share in SHARES
    }
    for share in SHARES:
        column = [cell for cell in model["cells"] if cell["run_at"] == share]
        assert 0.0 in [cell["loss"] for cell in column]
        assert all(len(cell["run_secs"]) >= 3 for cell in column)
    assert len(model["sentences"]) == 3 + len(SHARES)
    assert len(operators) == 2
    assert all(len(each["cells"]) == 6 for each in operators)
    assert table.read_text().count("\n") == 1 + len(model["cells"]) + sum(len(each["cells"]) for each in operators)
    assert picture.read_text().startswith("<?xml")


def test_the_knee_of_two_shares_is_a_bound(fleet: Fleet, tuned: list[dict[str, Any]]) -> None:
    assert tuned
    asked = ("--shares", ",".join(SHARES), "--only", ONLY, "--server", fleet.address, "--slack", "10%")
    curve = events(run_fractune("knee", str(fleet.model), *asked, "--json"))[-1]["curves"][0]
    assert [each["units"] for each in curve["measured"]] == [1, 2]
    assert curve["knee_units"] in (1, 2)
    ended = run_fractune("knee", str(fleet.model), *asked[:-1], "a lot")
    assert ended.returncode == 2
    assert "--slack 'a lot'" in error_line(ended)


@pytest.mark.long
def test_jobs_at_the_same_time_build_once_and_measure_once_at_each_share(fleet: Fleet) -> None:
    with fractune.connect(fleet.address) as client:
        jobs = [
            client.submit(fleet.model, shares, trials=8, only=ONLY, namespace="together")
            for shares in ("cpu:1", SHARES, "cpu:2")
        ]
        ended = [job.wait() for job in jobs]
        trials = list(client.log.query(namespace="together", kind="trial", limit=1000))
    candidates = {record.candidate_id for record in trials}
    assert len({(record.candidate_id, record.build_secs) for record in trials}) == len(candidates)
    assert set(Counter((record.candidate_id, record.share) for record in trials).values()) == {1}
    assert len(candidates) == sum(each.progress.candidates_done for each in ended) == 8
    assert [each.progress.candidates_had for each in ended] == [8, 8, 8]


def test_a_bundle_for_all_shares_is_one_variant(fleet: Fleet, tuned: list[dict[str, Any]], tmp_path: Path) -> None:
    assert tuned
    path = tmp_path / "one.fractune"
    asked = ("--shares", ",".join(SHARES), "--policy", "robust", "--server", fleet.address, "--out", str(path))
    told = events(run_fractune("bundle", str(fleet.model), *asked, "--json"))[-1]
    assert told["bundle"] == str(path)
    manifest = Bundle(path).manifest
    assert [variant["name"] for variant in manifest["variants"]] == ["robust", "untuned"]
    assert set(manifest["measured"]) == set(SHARES)
    (report,) = events(run_fractune("run", str(path), "--share", "cpu:1", "--repeats", "3", "--json"))
    assert report["variant"] == "robust"


@pytest.mark.long
def test_a_build_pipeline_releases_and_gates(fleet: Fleet, tuned: list[dict[str, Any]], tmp_path: Path) -> None:
    assert tuned
    script = REPOSITORY / "examples" / "pipeline" / "release.py"
    asked = ("--server", fleet.address, "--shares", ",".join(SHARES), "--serve", "cpu:1", "--trials", "8")
    first, report = tmp_path / "first.fractune", tmp_path / "report.xml"

    def release(*more: str) -> tuple[int, ET.Element]:
        command = [sys.executable, str(script), str(fleet.model), *asked, "--junit", str(report), *more]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert report.is_file(), ended.stderr
        return ended.returncode, ET.parse(report).getroot()  # noqa: S314  - we wrote it

    code, suite = release("--out", str(first))
    assert (code, suite.get("tests"), suite.get("failures")) == (0, "1", "0")
    # The same bundle is not slower than itself by more than the noise, or than half.
    code, suite = release("--out", str(tmp_path / "next.fractune"), "--last", str(first), "--tolerance", "0.5")
    assert (code, suite.get("tests"), suite.get("failures")) == (0, "3", "0")
    code, suite = release("--out", str(tmp_path / "next.fractune"), "--last", str(tmp_path / "none.fractune"))
    assert (code, suite.get("failures")) == (8, "2")
    assert "none.fractune: no such file" in str(ET.tostring(suite))
