"""A bundle that another runtime serves between its shapes, because it was faster there than a padded run."""

import importlib.metadata
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fractune
from fractune import BucketedModel
from fractune.cli import main
from fractune.features.compete.compete import bundle_use
from fractune.features.compete.results import held_contests
from fractune_core.errors import BadBundle, BadRequest
from fractune_core.files.bundles import Bundle
from fractune_core.files.compared import MODEL, Between, Compared, Runtime, Timed
from fractune_runtime import choosing
from fractune_runtime.bucketed_model import ServesUpTo, server_of
from fractune_runtime.sessions import RuntimeMissing
from tests.support.encoders import inputs_of
from tests.support.onnx_models import run_by_onnxruntime
from tests.support.processes.forked import succeeds_in_child
from tests.support.real_bundle import ENCODER, ENCODER_SHAPES, MEAN_OF_ALL

VERSION = importlib.metadata.version("onnxruntime")
WINS, LOSES = (2.0, 1.9, 2.1), (0.8, 0.7, 0.9)


def compared(ratio: tuple[float, float, float]) -> Compared:
    return Compared({"fractune": Timed(2e-3, 3e-3), "onnxruntime": Timed(1e-3, 1.5e-3, ratio, ratio)})


def between(length: int, ratio: tuple[float, float, float], batch: int = 1) -> dict[str, Any]:
    return Between({"batch": batch, "length": length}, compared(ratio)).to_json()


def served(
    encoders: Path, out: Path, points: list[Any], model: str = ENCODER, version: str = VERSION, **more: Any
) -> Path:
    """A joined bundle, as if ONNX Runtime had been compared at one core: at `points` beside the bucket of 1x16."""
    shapes = ENCODER_SHAPES[model]
    files = [encoders / f"{model}-{batch}x{length}.fractune" for batch, length in shapes]
    path = fractune.join(files, out=out / f"{model}.fractune", force=True).path
    opened = Bundle(path)
    members = [
        {
            **member,
            "compared": {"cpu:1": compared(LOSES).to_json()},
            "between": {"cpu:1": points if shape == (1, 16) else []},
        }
        for member, shape in zip(opened.written["members"], shapes, strict=True)
    ]
    runtime = Runtime(version, {"session.intra_op.allow_spinning": "0"})
    onnx = (encoders / f"{model}.onnx").read_bytes()
    fields: dict[str, Any] = {"members": members, "runtimes": {"onnxruntime": runtime.to_json()}, **more}
    file = io.BytesIO()
    opened.copy_to(file, extra={MODEL: onnx}, **fields)
    opened.close()
    path.write_bytes(file.getvalue())
    return path


def loaded(path: Path, **options: Any) -> BucketedModel:
    model = fractune.load(path, share="cpu:1", **options)
    assert isinstance(model, BucketedModel)
    return model


def server(model: BucketedModel, inputs: dict[str, Any]) -> str:
    found = model._way(inputs).server
    return found.runtime if found else ""


def agree(encoders: Path, model: BucketedModel, inputs: dict[str, Any], name: str = ENCODER) -> None:
    wanted = run_by_onnxruntime(encoders / f"{name}.onnx", inputs)
    for output, reference in zip(model.run(inputs), wanted, strict=True):
        np.testing.assert_allclose(output, reference, atol=1e-4)


def test_a_runtime_serves_the_sizes_up_to_the_largest_at_which_it_was_faster(encoders: Path, tmp_path: Path) -> None:
    path = served(encoders, tmp_path, [between(9, WINS), between(12, WINS), between(14, LOSES)])
    fractune.verify_bundle(path)
    model = loaded(path)
    for length in (5, 8, 9, 11, 12, 13, 16):
        inputs = inputs_of(length)
        assert server(model, inputs) == ("onnxruntime" if 8 < length <= 12 else ""), length
        for _ in range(2):
            agree(encoders, model, inputs)
        agree(encoders, model, inputs_of(length, padding=2))
    assert server(model, inputs_of(9, batch=2)) == ""
    outputs = model.run(inputs_of(9))
    assert all(output.flags.owndata for output in outputs)
    np.testing.assert_allclose(model.run(inputs_of(9), "untuned")[0], outputs[0], atol=1e-4)
    assert model.rematch() == model.choice
    agree(encoders, model, inputs_of(9))


def test_what_runs_a_request_is_said(
    encoders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = served(encoders, tmp_path, [between(12, WINS)])
    model = loaded(path)
    said = {length: model.choice_for(inputs_of(length)) for length in (9, 13, 16)}
    assert [each.variant for each in said.values()] == ["onnxruntime", "cpu:1", "cpu:1"]
    as_it_is = "it runs batch 1 length 9 as it is, because padding to batch 1 length 16 is slower"
    assert said[9].reason == as_it_is
    assert said[13].reason.startswith("batch 1 length 13 is padded to batch 1 length 16; it was tuned for 1 core")
    assert said[16].reason.startswith("it was tuned for 1 core")
    np.savez(tmp_path / "inputs.npz", **inputs_of(9))
    monkeypatch.setattr("fractune.cli.commands.models.run.confine", lambda _: None)
    assert main(["run", str(path), "--share", "cpu:1", "--inputs", str(tmp_path / "inputs.npz"), "--repeats", "3"]) == 0
    shown = capsys.readouterr().out
    assert f"variant:   onnxruntime ({as_it_is})" in shown
    assert "\nserved:  " in shown


def test_it_serves_where_and_as_it_won(encoders: Path, tmp_path: Path) -> None:
    path = served(encoders, tmp_path, [between(12, WINS)])
    assert server(loaded(path, runtimes=False), inputs_of(9)) == ""
    assert server(loaded(path, threads=1), inputs_of(9)) == ""
    model = fractune.load(path, share="cpu:2")
    assert isinstance(model, BucketedModel)
    assert server(model, inputs_of(9)) == ""
    with pytest.raises(BadRequest, match=r"takes ids int64\[1, 9\].* int32"):
        loaded(path).run({name: each.astype("int32") for name, each in inputs_of(9).items()})


def test_a_forked_child_gets_a_session_of_its_own(encoders: Path, tmp_path: Path) -> None:
    model = loaded(served(encoders, tmp_path, [between(12, WINS)]))
    before = model.run(inputs_of(9))[0].tolist()
    assert succeeds_in_child(lambda: np.allclose(model.run(inputs_of(9))[0], before))


def test_without_the_timed_version_inputs_are_padded(
    encoders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = served(encoders, tmp_path, [between(12, WINS)], version="9.7.1")
    assert [each.optional for each in bundle_use(path).findings if "onnxruntime 9.7.1" in each.what] == [True]
    monkeypatch.setattr(choosing, "installed", lambda _: "")
    with pytest.warns(RuntimeWarning, match=r"onnxruntime 9\.7\.1 was 2\.00 times .* between shapes, and is not inst"):
        model = loaded(path)
    assert server(model, inputs_of(9)) == ""
    agree(encoders, model, inputs_of(9))


def test_a_runtime_that_cannot_be_imported_does_not_end_a_request(
    encoders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded(served(encoders, tmp_path, [between(12, WINS)]))

    def missing(*_: Any) -> Any:
        raise RuntimeMissing("ONNX Runtime is installed here and cannot be imported")

    monkeypatch.setattr("fractune_runtime.bucketed_model.held_session", missing)
    with pytest.warns(RuntimeWarning, match="its own code runs, because ONNX Runtime is installed here and cannot be"):
        agree(encoders, model, inputs_of(9))
    agree(encoders, model, inputs_of(9))
    assert server(model, inputs_of(9)) == ""


def test_a_runtime_runs_what_may_not_be_padded(
    encoders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = served(encoders, tmp_path, [], MEAN_OF_ALL)
    model = loaded(path)
    assert not model.padding.proved
    for length in (1, 8, 9, 15, 16):
        inputs = inputs_of(length)
        assert server(model, inputs) == ("" if length in (8, 16) else "onnxruntime")
        agree(encoders, model, inputs, MEAN_OF_ALL)
    with pytest.raises(BadRequest, match="is above mean_of_all"):
        model.run(inputs_of(17))
    with pytest.raises(
        BadRequest, match=r"nothing may be padded: .*; or let another runtime run them \(fractune compete"
    ):
        loaded(path, runtimes=False).run(inputs_of(9))
    np.savez(tmp_path / "inputs.npz", **inputs_of(9))
    monkeypatch.setattr("fractune.cli.commands.models.run.confine", lambda _: None)
    assert main(["run", str(path), "--share", "cpu:1", "--inputs", str(tmp_path / "inputs.npz")]) == 2
    assert "onnxruntime runs these inputs, and the bundle's own code cannot" in capsys.readouterr().err
    assert [each.found for each in bundle_use(path).findings if each.what.startswith("onnxruntime")] == [VERSION]
    monkeypatch.setattr(choosing, "installed", lambda _: "1.0.0")
    with pytest.warns(
        RuntimeWarning, match=r"runs what lies between shapes .*, and 1\.0\.0 is installed here; install"
    ):
        model = loaded(path)
    with pytest.raises(BadRequest, match="nothing may be padded"):
        model.run(inputs_of(9))


def test_the_table_has_the_largest_size_at_which_a_runtime_was_faster(encoders: Path, tmp_path: Path) -> None:
    path = served(encoders, tmp_path, [between(9, WINS), between(12, WINS), between(14, LOSES)])
    shapes = [each.shape for each in held_contests(path).contests]
    assert shapes == ["ids 1x8, mask 1x8", "up to batch 1 length 12", "ids 1x16, mask 1x16", "ids 2x16, mask 2x16"]
    path = served(encoders, tmp_path, [between(9, LOSES)])
    assert held_contests(path).contests[1].shape == "up to batch 1 length 9"


@pytest.mark.parametrize(
    ("points", "says"),
    [
        ([3], "are not comparisons by share"),
        ([{**between(9, WINS), "sizes": {"width": 9}}], "'between' has sizes that are not those of its axes"),
        ([{**between(9, WINS), "sizes": {"batch": 1, "length": "9"}}], "are not comparisons by share"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(encoders: Path, tmp_path: Path, points: Any, says: str) -> None:
    with pytest.raises(BadBundle, match=says):
        Bundle(served(encoders, tmp_path, points))


def test_of_several_points_the_nearest_above_serves() -> None:
    points = [ServesUpTo({"batch": 4, "length": 40}, "openvino", 1), ServesUpTo({"batch": 1, "length": 40}, "ort", 1)]
    found = [server_of(points, {"batch": batch, "length": 30}) for batch in (1, 3, 5)]
    assert [each and each.runtime for each in found] == ["ort", "openvino", None]
