import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fractune
from fractune.cli import main
from fractune.features.diff import MODEL, Side, bundle_side, compared
from fractune_core.errors import BadBundle, BadRequest
from fractune_core.files.buckets import Buckets, Padding, open_axes
from fractune_core.files.bundles import RECORDS, Bundle
from fractune_core.files.compared import Runtime
from fractune_core.files.joined import join_bundles, join_stages
from fractune_core.files.new_bundle import replacing_file
from fractune_core.files.staged import Stages, Step, Tensor, part_entry
from fractune_core.records import VALIDATION_POLICY, Kind, TuningRecord
from tests.support.client_samples import bundle_bytes, record
from tests.support.processes.scripted_server import ScriptedServer

BEFORE = Side(
    "a", {"": {"cpu:1": 4.0, "cpu:2": 2.0}}, {"x": {"cpu:1": 3.0}, "y": {"cpu:1": 1.0}}, {"x": "conv", "y": "relu"}
)
AFTER = Side("b", {"": {"cpu:1": 2.0}}, {"x": {"cpu:1": 1.0}, "z": {"cpu:1": 5.0}}, {"x": "conv", "z": "new"})


def test_the_model_comes_first_and_then_what_changed_most() -> None:
    changes = compared(BEFORE, AFTER).changes
    assert [(each.what, each.share, each.speed_up) for each in changes] == [
        (MODEL, "cpu:1", 2.0),
        (MODEL, "cpu:2", None),
        ("conv", "cpu:1", 3.0),
        ("relu", "cpu:1", None),
        ("new", "cpu:1", None),
    ]
    assert [(each.before_s, each.after_s) for each in changes[-2:]] == [(1.0, None), (None, 5.0)]


def test_two_sides_with_nothing_in_common_are_refused() -> None:
    other = Side("c", {"": {"cpu:4": 1.0}}, model_name="n.onnx", model="cd" * 32)
    with pytest.raises(BadRequest, match=r"no time is on both sides: .* c is of n.onnx \(SHA-256 cdcdcdcdcdcd\)"):
        compared(BEFORE, other)


def test_a_time_of_zero_has_no_speed_up() -> None:
    change = compared(
        Side("a", {"": {"cpu:1": 0.0, "cpu:2": 1.0}}), Side("b", {"": {"cpu:1": 1.0, "cpu:2": 1.0}})
    ).changes[0]
    assert change.speed_up is None


def bundle(path: Path, secs: float, *records: TuningRecord, **fields: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bundle_bytes(timed={"cpu:1": secs}, **fields))
    return with_records(path, *records)


def with_records(path: Path, *records: TuningRecord) -> Path:
    lines = "\n".join(json.dumps(each.to_json()) for each in records)
    with contextlib.closing(Bundle(path)) as opened, replacing_file(path) as file:
        opened.copy_to(file, extra={RECORDS: lines.encode()})
    return path


def test_jobs_are_compared_by_the_command(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "j1", "jobs/j1", "--server", server.address, "--json"]) == 0
    sides, *said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (sides["before"]["model_name"], sides["after"]["model"], sides["notes"]) == ("m.onnx", "ab", [])
    assert {each["what"] for each in said} == {MODEL, "fused_conv2d"}
    assert {each["speed_up"] for each in said} == {1.0}
    assert main(["diff", "j1", "missing.fractune", "--server", server.address]) == 8
    assert "no such file" in capsys.readouterr().err


def test_operators_are_compared_by_the_record_that_was_chosen(tmp_path: Path) -> None:
    """The first repeats choose; a record that looks faster in the others was not chosen."""
    divided = replace(VALIDATION_POLICY, repeats=2, choosing=1)
    chosen = record("aa", kind=Kind.VALIDATION, policy=divided, run_secs=(1.0, 3.0))
    other = record("bb", kind=Kind.VALIDATION, policy=divided, run_secs=(2.0, 2.0))
    before = bundle(tmp_path / "a.fractune", 1.0, chosen, other)
    found = fractune.diff(before, bundle(tmp_path / "b.fractune", 1.0, other))
    assert [(each.before_s, each.after_s) for each in found.changes[1:]] == [(chosen.median_s, other.median_s)]


def test_records_of_another_version_are_said(tmp_path: Path) -> None:
    path = bundle(tmp_path / "a.fractune", 1.0, record())
    with contextlib.closing(Bundle(path)) as opened, replacing_file(path) as file:
        opened.copy_to(file, extra={RECORDS: b'{"record_id": 5}'})
    with pytest.raises(BadBundle, match="a record that this version cannot read; upgrade"):
        fractune.diff(path, path)


def test_different_models_are_said_with_names_and_hashes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = bundle(tmp_path / "a.fractune", 2e-3)
    other = bundle(tmp_path / "b.fractune", 1e-3, model={"name": "n.onnx", "sha256": "cd" * 32})
    assert main(["diff", str(before), str(other)]) == 0
    assert (
        "note: the models differ: a.fractune is of m.onnx (SHA-256 ab), "
        "and b.fractune is of n.onnx (SHA-256 cdcdcdcdcdcd)"
    ) in capsys.readouterr().out
    assert fractune.diff(before, before).notes == ()


def test_files_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    before, after = (bundle(tmp_path / folder / "m.fractune", 1e-3) for folder in ("old", "new"))
    assert fractune.diff(before, after).table.title == "old/m.fractune -> new/m.fractune"


def text(length: int) -> list[dict[str, Any]]:
    return [{"name": "ids", "dtype": "int64", "shape": [1, length]}]


def joined(path: Path, *secs: float) -> Path:
    """For the lengths 8 and 16: an operator of each, and one of both."""
    operators = [[{"name": "conv", "workload_hash": each} for each in (own, "both")] for own in ("w8", "w16")]
    one = [
        Bundle(bundle_bytes(inputs=text(length), timed={"cpu:1": timed_s}, operators=own))
        for length, timed_s, own in zip((8, 16), secs, operators, strict=True)
    ]
    records = (record(each, workload_hash=each, kind=Kind.VALIDATION) for each in ("w8", "w16", "both"))
    axes = open_axes([each.manifest for each in one])
    with path.open("wb") as file:
        join_bundles(file, one, Buckets(axes, {}, Padding(proved=False, reason="")))
    return with_records(path, *records)


def test_times_of_several_shapes_have_their_shape(tmp_path: Path) -> None:
    before, after = joined(tmp_path / "a.fractune", 2e-3, 4e-3), joined(tmp_path / "b.fractune", 1e-3, 1e-3)
    found = fractune.diff(before, after)
    assert [(each.what, each.place, each.speed_up) for each in found.changes] == [
        (MODEL, "ids 1x8", 2.0),
        (MODEL, "ids 1x16", 4.0),
        ("fused_conv2d", "ids 1x8", 1.0),
        ("fused_conv2d", "ids 1x16", 1.0),
        ("fused_conv2d", "", 1.0),
    ]
    assert [row[:2] for row in found.table.cells][-2:] == [("fused_conv2d", "ids 1x16"), ("fused_conv2d", "all")]


def test_a_bundle_for_one_shape_is_compared_with_that_shape_of_several(tmp_path: Path) -> None:
    one = bundle(tmp_path / "one.fractune", 2e-3, inputs=text(16))
    found = fractune.diff(one, joined(tmp_path / "several.fractune", 1e-3, 1e-3))
    assert [(each.place, each.speed_up) for each in found.changes[:2]] == [("ids 1x16", 2.0), ("ids 1x8", None)]


def test_two_shapes_of_one_model_are_said(tmp_path: Path) -> None:
    short, long = (bundle(tmp_path / f"{length}.fractune", 1e-3, inputs=text(length)) for length in (8, 16))
    assert fractune.diff(short, long).notes == ("note: the shapes differ: ids 1x8 before, and ids 1x16 after",)


def staged(path: Path, secs: float) -> Path:
    """Two parts of our own, and one of ONNX Runtime between them."""
    x, a, b, y = (Tensor(name, "float32", [1, 3]) for name in "xaby")
    own = [
        Bundle(
            bundle_bytes(
                inputs=[of.to_json()],
                outputs=[to.to_json()],
                timed={"cpu:1": secs},
                operators=[{"workload_hash": name}],
            )
        )
        for of, to, name in ((x, a, "w1"), (b, y, "w2"))
    ]
    steps = [Step([x], [a], 0), Step([a], [b], part=part_entry(0), operators={"NonZero": 1}), Step([b], [y], 1)]
    model, files = {"name": "m.onnx", "sha256": "ab"}, {part_entry(0): b"onnx"}
    with path.open("wb") as file:
        join_stages(file, own, Stages([x], [y], steps), files, model, Runtime("1.31.1", {}))
    return with_records(path, *(record(each, workload_hash=each, kind=Kind.VALIDATION) for each in ("w1", "w2")))


def test_bundles_of_a_model_in_parts_are_compared_by_part(tmp_path: Path) -> None:
    before, after = staged(tmp_path / "a.fractune", 2e-3), staged(tmp_path / "b.fractune", 1e-3)
    found = fractune.diff(before, after)
    assert [(each.what, each.place, each.speed_up) for each in found.changes] == [
        (MODEL, "part 1", 2.0),
        (MODEL, "part 3", 2.0),
        ("fused_conv2d", "part 1", 1.0),
        ("fused_conv2d", "part 3", 1.0),
    ]
    assert "a.fractune is of a model in parts; its times are those of each part" in found.notes[0]


def test_operators_that_are_none_are_said(tmp_path: Path) -> None:
    path = bundle(tmp_path / "a.fractune", 1.0, operators=[{"name": "conv"}])
    with pytest.raises(BadBundle, match="'operators' is not a list of operators; make the bundle again"):
        fractune.diff(path, path)


def test_disturbed_times_are_bounds(tmp_path: Path) -> None:
    quiet = bundle_side(bundle(tmp_path / "a" / "m.fractune", 2.0), "a")
    busy = bundle_side(bundle(tmp_path / "b" / "m.fractune", 1.0, others_cores={"cpu:1": 0.8}), "b")
    after, before = (compared(*sides).table for sides in ((quiet, busy), (busy, quiet)))
    assert after.cells[0][2:] == ("2.00 s", "<= 1.00 s", ">= 2.00x")
    assert before.cells[0][2:] == ("<= 1.00 s", "2.00 s", "<= 0.50x")
    assert any("<= marks times that other" in note for note in after.notes)
    assert not any("<=" in note for note in compared(quiet, quiet).table.notes)
