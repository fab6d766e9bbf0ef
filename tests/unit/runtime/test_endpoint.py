"""`Endpoint`, which servers put between their protocol and a bundle, and the file of Triton's backend around it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from fractune.features.join import join
from fractune_core.errors import BadRequest
from fractune_runtime.endpoint import Busy, Endpoint, described
from fractune_runtime.loading import interface_of, load, open_bundle
from fractune_runtime.serving import metadata
from tests.support.real_bundle import Small


@pytest.fixture(scope="session")
def batches(encoders: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = [encoders / f"encoder-{batch}x16.fractune" for batch in (1, 2)]
    return join(made, out=tmp_path_factory.mktemp("batches") / "batches.fractune").path


def text(seed: int) -> dict[str, np.ndarray[Any, Any]]:
    ids = np.random.default_rng(seed).integers(0, 10, (1, 16))
    return {"ids": ids, "mask": np.ones_like(ids)}


def test_what_waits_runs_in_one_batch_and_is_counted_by_its_bucket(
    batches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = load(batches)
    expected = [alone.run(text(seed)) for seed in range(5)]
    registry = CollectorRegistry()
    may_run, rows = threading.Event(), []
    with Endpoint(batches) as endpoint:
        endpoint.register(registry)
        run = endpoint._runs._model.run  # type: ignore[union-attr]

        def waiting(inputs: Any) -> Any:
            may_run.wait()
            rows.append(len(inputs["ids"]))
            return run(inputs)

        monkeypatch.setattr(endpoint._runs._model, "run", waiting)  # type: ignore[union-attr]
        futures = [endpoint.submit(text(seed)) for seed in range(5)]
        may_run.set()
        answers = [future.result() for future in futures]
    assert rows in ([1, 2, 2], [2, 2, 1])
    for answer, outputs in zip(answers, expected, strict=True):
        for one, other in zip(answer.values(), outputs, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    shown = generate_latest(registry).decode()
    assert 'fractune_request_seconds_count{bucket="batch=1"} 5.0' in shown
    assert f'variant="{endpoint.choice.variant}"' in shown


def test_it_ends_when_all_that_it_took_is_answered(small: Small) -> None:
    endpoint = Endpoint(small.bundle)
    inputs = load(small.bundle).random_inputs()
    futures = [endpoint.submit(inputs) for _ in range(20)]
    was_ready = endpoint.is_ready
    endpoint.close()
    assert (was_ready, endpoint.is_ready) == (True, False)
    assert all(future.done() and future.result() for future in futures)
    with pytest.raises(Busy, match="the server ends"):
        endpoint.submit(inputs)


def test_a_request_is_answered_though_a_watcher_fails(small: Small) -> None:
    with Endpoint(small.bundle) as endpoint:
        endpoint.watch(lambda *_: 1 / 0)
        assert endpoint.submit(load(small.bundle).random_inputs()).result(60)


def test_more_than_may_wait_is_refused(batches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_run = threading.Event()
    with Endpoint(batches, most_waiting=2) as endpoint:
        run = endpoint._runs._model.run  # type: ignore[union-attr]
        monkeypatch.setattr(endpoint._runs._model, "run", lambda one: may_run.wait() and run(one))  # type: ignore[union-attr]
        taken = [endpoint.submit(text(0)) for _ in range(2)]
        with pytest.raises(Busy, match="2 requests wait already"):
            endpoint.submit(text(0))
        may_run.set()
        assert all(each.result() for each in taken)
        assert endpoint.submit(text(0)).result()


@pytest.mark.parametrize(
    ("request_json", "complaint"),
    [
        ([], "no list 'inputs'"),
        ({"inputs": [{}]}, "no 'name'"),
        ({"inputs": [{"name": "x", "datatype": "FP33", "shape": [1]}]}, "'datatype'"),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1], "data": [1]}]}, "what 'shape' says"),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": ["a"]}]}, "not numbers"),
        ({"inputs": [{"name": "x", "datatype": "INT8", "shape": [1], "data": [1 << 70]}]}, "not numbers"),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1]}]}, "has 1 numbers"),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [10**30, 0], "data": []}]}, "has 0 numbers"),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1] * 33, "data": [1]}]}, "'shape'"),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [None]}]}, "not numbers"),
        ({"inputs": [{"name": "x", "datatype": "INT64", "shape": [1], "data": [1.5]}]}, "not numbers"),
        ({"inputs": [{"name": "x", "datatype": "UINT8", "shape": [1], "data": [-1]}]}, "not numbers"),
        ({"inputs": [{"name": "x", "datatype": "BOOL", "shape": [1], "data": ["no"]}]}, "not numbers"),
        ({"inputs": [{"name": "x", "datatype": "FP16", "shape": [1], "data": [1e9]}]}, "float16 does not hold"),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}] * 2}, "two inputs of one name"),
        ({"inputs": [], "id": 7}, "'id' is not a text"),
        ({"inputs": [], "id": "\ud800"}, "'id' is not a text"),
        ({"inputs": [], "outputs": [{"name": "other"}]}, "outputs of the model, which are"),
        ({"inputs": [], "outputs": "all"}, "outputs of the model, which are"),
        ({"inputs": [{"name": "strange", "datatype": "FP32", "shape": [1], "data": [1]}]}, "strange"),
    ],
)
def test_a_wrong_request_is_named(small: Small, request_json: Any, complaint: str) -> None:
    with Endpoint(small.bundle) as endpoint, pytest.raises(BadRequest, match=complaint):
        asyncio.run(endpoint.infer(request_json))


def test_an_answer_has_the_id_of_its_request_and_the_outputs_that_it_names(encoders: Path) -> None:
    given = [described(name, array) for name, array in text(0).items()]
    with Endpoint(encoders / "encoder-1x16.fractune") as endpoint:
        name = endpoint.outputs[-1].name
        whole = asyncio.run(endpoint.infer({"inputs": given}))
        answer = asyncio.run(endpoint.infer({"id": "seven", "inputs": given, "outputs": [{"name": name}]}))
    assert [each["name"] for each in whole["outputs"]] == [spec.name for spec in endpoint.outputs]
    assert answer == {"model_name": "model", "id": "seven", "outputs": whole["outputs"][-1:]}


@pytest.mark.parametrize(
    ("body", "complaint"), [(b"[" * 5000, "nested too deeply"), (b"{", "not JSON"), (b"[NaN]", "not JSON")]
)
def test_a_body_that_is_not_json_is_named(small: Small, body: bytes, complaint: str) -> None:
    with Endpoint(small.bundle) as endpoint, pytest.raises(BadRequest, match=complaint):
        asyncio.run(endpoint.infer_json(body))


def test_the_metadata_of_a_bundle_are_those_of_its_loaded_model(small: Small, in_parts: Small, batches: Path) -> None:
    for path in (small.bundle, in_parts.bundle, batches):
        with contextlib.closing(open_bundle(path)) as bundle:
            model = load(path)
            assert interface_of(bundle) == (model.inputs, model.outputs)
    assert [each["shape"] for each in metadata(str(batches))["inputs"]] == [[-1, 16]] * 2


def test_a_wrong_request_fails_none_that_wait_beside_it(batches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by its type, nor by having no rows."""
    right, may_run = text(0), threading.Event()
    wrong = [{**right, "ids": right["ids"].astype("float64")}, {name: array[:0] for name, array in right.items()}]
    with Endpoint(batches) as endpoint:
        run = endpoint._runs._model.run  # type: ignore[union-attr]
        monkeypatch.setattr(endpoint._runs._model, "run", lambda one: may_run.wait() and run(one))  # type: ignore[union-attr]
        answers = [endpoint.submit(each) for each in (right, right, *(one for each in wrong for one in (each, right)))]
        may_run.set()
        failed = [isinstance(each.exception(60), BadRequest) for each in answers]
    assert failed == [False, False, True, False, True, False]


def test_triton_answers_by_the_interface_of_its_backend(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", triton_stub())
    model = import_module("fractune_runtime.serving.triton").TritonPythonModel()
    folder, version = small.bundle.parent.parent, small.bundle.parent.name
    config = {"parameters": {"bundle": {"string_value": small.bundle.name}}}
    place = {"model_repository": str(folder), "model_version": version}
    model.initialize({"model_config": json.dumps(config), **place})
    own = load(small.bundle)
    right, wrong = own.random_inputs(), {"other": np.zeros(1)}
    good, bad = model.execute([right, wrong])
    model.finalize()
    assert [each.array.tolist() for each in good.outputs] == [each.tolist() for each in own.run(right)]
    assert str(bad.error)


def triton_stub() -> SimpleNamespace:
    """The part of `triton_python_backend_utils` that the file uses: requests are dictionaries of arrays here."""

    class Metric:
        def increment(self, value: float) -> None: ...
        def set(self, value: float) -> None: ...

    class MetricFamily:
        COUNTER, GAUGE = "counter", "gauge"

        def __init__(self, name: str, description: str, kind: str) -> None: ...
        def Metric(self, labels: dict[str, str]) -> Metric:  # noqa: N802  Triton's name
            del labels
            return Metric()

    def tensor_of(request: dict[str, Any], name: str) -> Any:
        return SimpleNamespace(as_numpy=lambda: request[name]) if name in request else None

    return SimpleNamespace(
        MetricFamily=MetricFamily,
        get_input_tensor_by_name=tensor_of,
        Tensor=lambda name, array: SimpleNamespace(name=name, array=array),
        TritonError=RuntimeError,
        InferenceResponse=lambda outputs, error=None: SimpleNamespace(outputs=outputs, error=error),
    )
