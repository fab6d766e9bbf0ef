"""A model in parts, compiled for real: its own code and ONNX Runtime in one run."""

import contextlib
import importlib.metadata
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fractune
from fractune import StagedModel
from fractune.features.compete.compete import bundle_use
from fractune_core.errors import BadBundle, BadRequest, FractuneError
from fractune_core.files.bundles import Bundle
from fractune_core.files.compared import MODEL, ONNX_RUNTIME, Compared, Runtime, Timed
from fractune_core.files.new_bundle import replacing_file
from fractune_runtime.sessions import settings_of
from tests.support.onnx_models import run_by_onnxruntime
from tests.support.processes.forked import succeeds_in_child
from tests.support.real_bundle import Small

_DEADLINE_S = 60


def installed_version() -> str:
    return importlib.metadata.version(ONNX_RUNTIME)


@pytest.fixture
def model(in_parts: Small) -> StagedModel:
    loaded = fractune.load(in_parts.bundle)
    assert isinstance(loaded, StagedModel)
    return loaded


def assert_right(in_parts: Small, inputs: dict[str, Any], outputs: list[Any]) -> None:
    (wanted,), (found,) = run_by_onnxruntime(in_parts.model, inputs), outputs
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_own_code_and_onnx_runtime_give_what_the_whole_model_gives(in_parts: Small, model: StagedModel) -> None:
    assert [step.member for step in model.stages.steps] == [0, None, 1]
    assert [str(each) for each in (*model.inputs, *model.outputs)] == ["x float32[2, 4]", "y float32[2, 3]"]
    for seed in range(3):
        inputs = model.random_inputs(seed)
        assert_right(in_parts, inputs, model.run(inputs))


def test_outputs_stay_when_the_model_runs_again(in_parts: Small, model: StagedModel) -> None:
    first, second = model.random_inputs(1), model.random_inputs(2)
    kept = model.run(first)
    model.run(second)
    assert_right(in_parts, first, kept)


def test_threads_may_call_it_at_once(in_parts: Small, model: StagedModel) -> None:
    inputs = [model.random_inputs(seed) for seed in range(20)]
    with ThreadPoolExecutor(4) as pool:
        for each, outputs in zip(inputs, pool.map(model.run, inputs), strict=True):
            assert_right(in_parts, each, outputs)


def test_a_forked_child_runs_it(in_parts: Small) -> None:
    model = fractune.load(in_parts.bundle)
    inputs = model.random_inputs()
    wanted = model.run(inputs)
    assert succeeds_in_child(lambda: np.allclose(model.run(inputs)[0], wanted[0], rtol=1e-6))


def test_a_forked_child_ends_as_usual(in_parts: Small) -> None:
    """With a code of its own, though ONNX Runtime's threads are not there to be ended."""
    script = (
        "import os, sys, fractune\n"
        f"model = fractune.load({str(in_parts.bundle)!r})\n"
        "model.run(model.random_inputs())\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    model.run(model.random_inputs())\n"
        "    del model\n"
        "    sys.exit(3)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=_DEADLINE_S, check=False).returncode == 3


def test_bound_memory_gets_the_outputs(in_parts: Small, model: StagedModel) -> None:
    bound = model.bind()
    inputs = model.random_inputs(4)
    bound.inputs["x"][...] = inputs["x"]
    bound.run()
    assert_right(in_parts, inputs, [bound.outputs["y"]])


def test_a_variant_is_that_of_every_own_part(in_parts: Small, model: StagedModel) -> None:
    inputs = model.random_inputs()
    assert_right(in_parts, inputs, model.run(inputs, "untuned"))
    with pytest.raises(BadRequest, match="no variant 'cpu:9'; it has cpu:1, cpu:2, untuned"):
        model.run(inputs, "cpu:9")


@pytest.mark.parametrize("inputs", [{}, {"x": np.ones((3, 4), np.float32)}, {"z": np.ones((2, 4), np.float32)}])
def test_wrong_inputs_are_named(model: StagedModel, inputs: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=r"the model takes x float32\[2, 4\]"):
        model.run(inputs)


def test_it_has_no_slots(model: StagedModel) -> None:
    with pytest.raises(BadRequest, match="without slots"):
        model.run(model.random_inputs(), slot=0)


def test_without_onnx_runtime_it_is_said_what_is_missing(in_parts: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(FractuneError, match="ONNX Runtime is not installed"):
        fractune.load(in_parts.bundle)


def test_what_needs_one_model_refuses_it(in_parts: Small) -> None:
    with pytest.raises(BadBundle, match="in parts, which ReplicaPool cannot take"):
        fractune.ReplicaPool(in_parts.bundle)


def test_a_shape_that_was_not_foreseen_is_said(in_parts: Small, tmp_path: Path) -> None:
    """A damaged bundle, whose part gives another shape than the next one takes."""
    with contextlib.closing(Bundle(in_parts.bundle)) as bundle:
        stages = json.loads(json.dumps(bundle.written["stages"]))
        stages["outputs"][0]["shape"] = stages["steps"][1]["outputs"][0]["shape"] = [2, 5]
        stages["steps"], stages["outputs"] = stages["steps"][:2], [stages["steps"][1]["outputs"][0]]
        path = tmp_path / "damaged.fractune"
        with replacing_file(path) as file:
            bundle.copy_to(file, stages=stages, members=bundle.written["members"][:1])
    loaded = fractune.load(path)
    with pytest.raises(BadBundle, match=r"ONNX Runtime gives 'c' as float32 of the shape \(2, 2\)"):
        loaded.run(loaded.random_inputs())


def test_a_part_that_is_of_another_model_is_said(in_parts: Small, tmp_path: Path) -> None:
    """A damaged bundle, whose steps name another value than its part."""
    with contextlib.closing(Bundle(in_parts.bundle)) as bundle:
        stages = json.loads(json.dumps(bundle.written["stages"]).replace('"c"', '"z"'))
        first = bundle.written["members"][0]
        stages["steps"], stages["outputs"] = stages["steps"][:2], stages["steps"][1]["outputs"]
        path = tmp_path / "damaged.fractune"
        with replacing_file(path) as file:
            bundle.copy_to(file, stages=stages, members=[first])
    with pytest.raises(BadBundle, match=r"parts/0\.onnx has c where the bundle says z; make the bundle again"):
        fractune.load(path)


def test_parts_for_a_gpu_are_refused(in_parts: Small, tmp_path: Path) -> None:
    path = tmp_path / "gpu.fractune"
    with contextlib.closing(Bundle(in_parts.bundle)) as bundle, replacing_file(path) as file:
        bundle.copy_to(file, device={**bundle.written["device"], "kind": "cuda"})
    with pytest.raises(BadBundle, match="tune it for CPU shares"):
        fractune.load(path)


def test_the_runtime_that_was_faster_runs_the_whole_model(in_parts: Small, tmp_path: Path) -> None:
    path = tmp_path / "won.fractune"
    won = Timed(1.0, 1.0, (2.0, 1.9, 2.1), (2.0, 1.9, 2.1))
    with contextlib.closing(Bundle(in_parts.bundle)) as bundle, replacing_file(path) as file:
        bundle.copy_to(
            file,
            extra={MODEL: in_parts.model.read_bytes()},
            compared={"cpu:1": Compared({"fractune": Timed(2.0, 2.0), ONNX_RUNTIME: won}).to_json()},
            runtimes={ONNX_RUNTIME: Runtime(installed_version(), settings_of(ONNX_RUNTIME)).to_json()},
        )
    loaded = fractune.load(path, share="cpu:1")
    assert loaded.choice.variant == ONNX_RUNTIME
    inputs = loaded.random_inputs()
    assert_right(in_parts, inputs, loaded.run(inputs))
    assert_right(in_parts, inputs, loaded.run(inputs, "cpu:1"))
    assert fractune.load(path, share="cpu:1", runtimes=False).choice.variant == "cpu:1"


def test_the_doctor_says_what_the_parts_need(in_parts: Small) -> None:
    finding = next(each for each in bundle_use(in_parts.bundle).findings if "parts of the model" in each.what)
    assert finding.found == installed_version()
    assert not finding.optional
