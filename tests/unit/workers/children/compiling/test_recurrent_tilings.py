"""From a recurrent model to a bundle: its recurrences are operators, and their tilings the candidates."""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import helper
from tvm import relax

import fractune
from fractune_core.errors import FractuneError
from fractune_core.files.bundles import Bundle
from fractune_core.operators import NO_DECISIONS, implementation_of, text_of
from fractune_core.records import UNTUNED
from fractune_workers.children.building.child import BuilderChild
from fractune_workers.children.compiling.child import ingest
from fractune_workers.children.measuring.child import MeasurerChild, confined
from fractune_workers.children.recurrent.kernel import TILING, recurrence_kernel
from fractune_workers.children.recurrent.packing import UNITS, Tiling, pack, unpack, with_plain_weights
from fractune_workers.children.recurrent.recurrence import Activation, Recurrence
from fractune_workers.children.recurrent.tilings import recurrence_in, tiling_for, tilings, with_tilings
from fractune_workers.children.searching.child import SearcherChild
from fractune_workers.children.tvm_api.target import default_target, host_cpu, parse_target
from fractune_workers.children.tvm_api.traces import read_workload
from tests.support.onnx_models import onnx_model, run_by_onnxruntime
from tests.support.real_bundle import compile_model

# TVM's timer calls what TVM has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:build is deprecated:DeprecationWarning")

STEPS, WIDTH, UNITS_OF_LSTM = 6, 5, 40
QUANTIZED = "DynamicQuantizeLSTM"
KINDS = ("lstm", "gru", "lstm of whole numbers")
BYTES = Tiling(16, packed=True, dots=16)
OTHER_TARGET = '{"kind": "llvm", "mcpu": "x86-64"}'


def nodes_of(kind: str, rng: np.random.Generator) -> tuple[list[onnx.NodeProto], dict[str, npt.NDArray[Any]]]:
    gates = 3 if kind == "gru" else 4
    options: dict[str, Any] = {"hidden_size": UNITS_OF_LSTM, "direction": "bidirectional"}
    shapes = {"w": (2, gates * UNITS_OF_LSTM, WIDTH), "r": (2, gates * UNITS_OF_LSTM, UNITS_OF_LSTM)}
    weights = {name: (rng.standard_normal(shape) / 6).astype("float32") for name, shape in shapes.items()}
    if kind != KINDS[2]:
        names = ["x", "w", "r", "", "lengths"]
        return [helper.make_node(kind.upper(), names, ["y"], **options)], weights
    whole = {name: np.round(each * 100).astype("int8").transpose(0, 2, 1) for name, each in weights.items()}
    scales = {f"{name}_scale": np.full(2, 0.01, "float32") for name in weights}
    zeros = {f"{name}_zero": np.zeros(2, "int8") for name in weights}
    names = ["x", "w", "r", "", "", "", "", "", "w_scale", "w_zero", "r_scale", "r_zero"]
    return [helper.make_node(QUANTIZED, names, ["y"], domain="com.microsoft", **options)], whole | scales | zeros


class Case:
    """A model of one recurrence with constant weights, what ingest tells of it, and its candidates."""

    def __init__(self, kind: str, path: Path) -> None:
        rng = np.random.default_rng(0)
        nodes, weights = nodes_of(kind, rng)
        self.path = path
        # ONNX Runtime quantizes the state of each row by its own range, or all by one: as its threads are.
        self.batch = 1 if kind == KINDS[2] else 2
        self.inputs = {"x": rng.standard_normal((STEPS, self.batch, WIDTH)).astype("float32")}
        if kind != KINDS[2]:
            self.inputs["lengths"] = np.array([STEPS, 3], "int32")
        onnx.save(onnx_model(nodes, self.inputs, weights, 17), path)
        self.ingested = ingest(str(path), {}, "", host_cpu())
        (self.operator,) = (each for each in self.ingested["operators"] if each["name"][:3] in ("lst", "gru"))
        self.name = self.operator["workload_hash"]

    def proposed(self, count: int, **options: Any) -> list[str]:
        child = SearcherChild(threads=1)
        child.open(self.name, self.operator["workload"], self.ingested["target"], "key", 1, [], [])
        return [item["trace"] for item in child.propose(self.name, "key", count, **options)]


@pytest.fixture(scope="module", params=KINDS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(request.param, tmp_path_factory.mktemp("model") / "net.onnx")


@pytest.fixture(scope="module")
def measurer(case: Case) -> MeasurerChild:
    """With the untuned operator and all candidates. LLVM spends no time on their code."""
    builder = BuilderChild()
    whole = os.sched_getaffinity(0)
    child = confined(["cpu:1", "0"])
    os.sched_setaffinity(0, whole)  # not only for the tests of this file
    child.begin(builder.learn_workload(case.name, case.operator["workload"], case.ingested["target"]), 7)
    for text in (UNTUNED, *case.proposed(99)):
        built = builder.build(case.name, case.ingested["target"], text, 60)
        assert built["status"] == "ok", built["cause"]
        child.load(text, bytes(built["object"]), implementation_of(text))
    return child


def test_a_recurrence_is_an_operator_with_arithmetic(case: Case) -> None:
    recurrence = recurrence_in(read_workload(case.operator["workload"]).mod)
    assert recurrence is not None
    assert (recurrence.steps, recurrence.batch, recurrence.units) == (STEPS, case.batch, UNITS_OF_LSTM)
    products = 2 * STEPS * case.batch * 2 * recurrence.gates * UNITS_OF_LSTM**2
    expected = 0 if recurrence.whole_weights else products
    assert expected <= case.operator["flops"] <= 3 * expected, "few units have costly activations"
    assert case.operator["io_bytes"] > 4 * STEPS * case.batch * 2 * recurrence.gates * UNITS_OF_LSTM


def test_the_plain_kernel_names_it_on_every_target(case: Case) -> None:
    others = ingest(str(case.path), {}, OTHER_TARGET, "another")["operators"]
    assert case.name in [each["workload_hash"] for each in others]


def test_the_candidates_are_tilings_the_computed_one_first(case: Case) -> None:
    recurrence, target = recurrence_in(read_workload(case.operator["workload"]).mod), default_target(1)
    assert recurrence is not None
    texts = case.proposed(99)
    assert len(set(texts)) == len(texts) > 3
    assert [implementation_of(text) for text in texts] == list(tilings(recurrence, target))
    assert texts[0] == text_of(tiling_for(recurrence, target).name, NO_DECISIONS)
    assert any(text.endswith(f"{UNITS}:{NO_DECISIONS}") for text in texts)


def test_only_a_lost_candidate_is_proposed_again(case: Case) -> None:
    child = SearcherChild(threads=1)
    child.open(case.name, case.operator["workload"], case.ingested["target"], "key", 1, [], [])
    first, second = child.propose(case.name, "key", 2)
    left = child.propose(case.name, "key", 99, lost=[second["candidate"]])
    assert second in left
    assert first not in left
    assert child.propose(case.name, "key", 99) == []
    history = [{"candidate": first["candidate"], "trace": first["trace"], "secs": {"cpu:1": 1.0}}]
    child.open(case.name, case.operator["workload"], case.ingested["target"], "key", 1, history, [])
    again = child.propose(case.name, "key", 99, known=[second["candidate"]])
    assert {each["candidate"] for each in again} == {each["candidate"] for each in left if each != second}


def test_every_tiling_computes_what_the_untuned_one_does(case: Case, measurer: MeasurerChild) -> None:
    assert measurer.check(UNTUNED)["max_error"] == 0.0
    for text in case.proposed(99):
        found = measurer.check(text)
        assert found["max_error"] <= 1e-5 < found["allowed"], text


def test_wrong_weights_would_be_seen(case: Case, measurer: MeasurerChild) -> None:
    text = case.proposed(2)[-1]
    measurer.check(UNTUNED)
    weights = measurer._own_args[implementation_of(text)][1]
    kept = weights.numpy()
    weights.copyfrom((kept / 2).astype(kept.dtype))
    assert measurer.check(text)["max_error"] > 10 * measurer.check(text)["allowed"]
    weights.copyfrom(kept)


def test_the_numbers_to_measure_with_are_those_of_a_network(case: Case, measurer: MeasurerChild) -> None:
    """Activations at their limits would hide a wrong kernel, and rows beyond the steps would leave the tensors."""
    measurer.check(UNTUNED)
    outputs = measurer._args[-3 if "lstm" in case.operator["name"] else -2].numpy()
    assert 0.1 < np.abs(outputs[outputs != 0]).mean() < 0.8
    assert np.count_nonzero(np.abs(outputs) > 0.99) < 0.1 * outputs.size
    lengths = [each for each in measurer._pristine if each.dtype == "int32"]
    assert [0 < each.min() <= each.max() <= STEPS for each in lengths] == [True] * len(lengths)


@pytest.mark.parametrize(
    "name",
    ["", "packed0x16", "packed1x0", "packed100x16", "packed1x16rows", "dots4by1x16", "dots16by1x24", "winograd2"],
)
def test_another_name_is_no_tiling(name: str) -> None:
    assert Tiling.named(name) is None


@pytest.mark.parametrize(
    ("target", "batch", "expected"),
    [("x86-64-v4", 64, (6, 16)), ("x86-64-v4", 8, (4, 16)), ("x86-64-v4", 1, (1, 32)), ("x86-64-v3", 64, (2, 8))],
)
def test_rows_share_weights_as_far_as_all_sums_stay_in_registers(
    target: str, batch: int, expected: tuple[int, int]
) -> None:
    """Seven rows of four gates are 28 sums, and with four weights and a state more than 32 registers."""
    activations = (Activation("sigmoid"), Activation("tanh"), Activation("tanh"))
    found = tiling_for(
        Recurrence("LSTM", 3, batch, 128, (False,), (activations,)), parse_target(f"llvm -mcpu={target}", 1)
    )
    assert (found.rows, found.units) == expected


@pytest.mark.parametrize(
    ("units", "whole_weights", "expected"), [(256, "", ""), (384, "", UNITS), (512, "int8", ""), (768, "int8", UNITS)]
)
def test_cores_share_the_steps_of_many_bytes_of_weights(units: int, whole_weights: str, expected: str) -> None:
    activations = (Activation("sigmoid"), Activation("tanh"), Activation("tanh"))
    of = Recurrence("LSTM", 3, 1, units, (False,), (activations,), whole_weights=whole_weights)
    assert tiling_for(of, default_target(1)).parallel == expected


@pytest.mark.parametrize("dots", [0, 8, 16])
def test_a_name_is_of_one_tiling(dots: int) -> None:
    tiling = Tiling(16, 4, UNITS, packed=True, dots=dots)
    assert Tiling.named(tiling.name) == tiling


def test_products_of_bytes_need_weights_in_bytes() -> None:
    floats = Recurrence("RNN", 3, 1, 4, (False,), ((Activation("tanh"),),))
    assert Tiling.named(BYTES.name, floats) is None
    assert Tiling.named(BYTES.name, replace(floats, whole_weights="int16")) is None
    assert Tiling.named(BYTES.name, replace(floats, whole_weights="int8")) == BYTES


@pytest.mark.parametrize("tiling", [Tiling(), Tiling(16, packed=True), Tiling(5, packed=True), BYTES])
def test_packed_weights_are_the_plain_ones_in_another_order(tiling: Tiling) -> None:
    weights = np.random.default_rng(0).integers(-128, 128, (2, 21, 4 * 21)).astype("int8")
    np.testing.assert_array_equal(unpack(pack(weights, tiling), 21, tiling), weights)


@pytest.mark.parametrize("tiling", [Tiling(32, 1, packed=True, dots=16), Tiling(8, 1, packed=True)], ids=str)
def test_weights_of_a_running_kernel_become_plain_again(tiling: Tiling) -> None:
    described = [("x", "float32", [3, 21]), ("w", "int8", [1, 21, 84], [-128, 127], [tiling.name])]
    weights = np.random.default_rng(0).integers(-128, 128, (1, 21, 84)).astype(np.int8)
    arguments = [np.ones((3, 21), np.float32), pack(weights, tiling)]
    for plain, wanted in zip(with_plain_weights(arguments, described), (arguments[0], weights), strict=True):
        np.testing.assert_array_equal(plain, wanted)


def test_weights_that_are_computed_stay_where_they_are() -> None:
    """The tiling of a share fits models with and without constant weights: the log names both alike."""
    of = Recurrence("RNN", 3, 1, 4, (False,), ((Activation("tanh"),),))
    builder = relax.BlockBuilder()
    shapes = [of.projected, (1, 4, 4), of.states]
    given = [relax.Var(f"x{at}", relax.TensorType(dims, "float32")) for at, dims in enumerate(shapes)]
    with builder.function("main", given):
        kernel = builder.add_func(recurrence_kernel(of, Tiling()), "rnn")
        made = [relax.TensorType(dims, "float32") for dims in (of.outputs, of.states)]
        builder.emit_func_output(builder.emit(relax.call_tir(kernel, given, made)))
    tiled = with_tilings(builder.get(), {of: Tiling(4, 1, packed=True)}.get)
    (found,) = (str(each.attrs[TILING]) for each in tiled.functions.values() if each.attrs and TILING in each.attrs)
    assert found == "plain1x4"


def test_a_builder_refuses_another_implementation(case: Case) -> None:
    builder = BuilderChild()
    builder.learn_workload(case.name, case.operator["workload"], case.ingested["target"])
    with pytest.raises(FractuneError, match="has no implementation 'winograd2'"):
        builder.build(case.name, case.ingested["target"], text_of("winograd2", "[[],[]]"))
    with pytest.raises(FractuneError, match=f"has no implementation '{BYTES.name}'"):
        builder.build(case.name, OTHER_TARGET, text_of(BYTES.name, NO_DECISIONS))


def tiling_of(text: str) -> Tiling:
    found = Tiling.named(implementation_of(text))
    assert found is not None
    return found


def bundle(case: Case, variants: dict[str, str], out: Path) -> Path:
    """Of variants by name, each with a candidate of the recurrence."""
    return compile_model(case.path, out, tuned={name: {case.name: text} for name, text in variants.items()})


def test_a_bundle_has_the_tiling_of_each_share(case: Case, tmp_path: Path) -> None:
    first, *others = case.proposed(99)
    other = next(each for each in others if tiling_of(each).units != tiling_of(first).units)
    out = bundle(case, {"cpu:1": first, "cpu:2": other, "untuned": UNTUNED}, tmp_path / "net.fractune")
    places = {variant: set(Bundle(out).weights_of(variant)) for variant in ("cpu:1", "cpu:2", "untuned")}
    assert places["cpu:1"] == places["untuned"] != places["cpu:2"], "other blocks hold the weights in another order"
    loaded = fractune.load(out, share="cpu:1")
    (expected,) = run_by_onnxruntime(case.path, case.inputs)
    for variant in places:
        (found,) = loaded.run(case.inputs, variant)
        np.testing.assert_allclose(found, expected, atol=2e-5)


def test_a_tiling_that_is_no_tiling_is_an_error(case: Case, tmp_path: Path) -> None:
    with pytest.raises(FractuneError, match=f"has no operator {case.name} winograd2; tune it again"):
        bundle(case, {"cpu:1": "winograd2:[[],[]]"}, tmp_path / "net.fractune")


@pytest.mark.parametrize("whole_weights", ["", "int8"])
@pytest.mark.parametrize("options", [{"has_lengths": True}, {"has_mask": True}, {}], ids=str)
def test_a_tile_of_rows_that_all_keep_their_states_is_not_summed(whole_weights: str, options: dict[str, bool]) -> None:
    activations = (tuple(map(Activation, ("sigmoid", "tanh", "tanh"))),)
    plain = Recurrence("LSTM", STEPS, 2, 32, (False,), activations, whole_weights=whole_weights)
    recurrence = replace(plain, **options)  # type: ignore[arg-type]
    skipped = re.findall(r"if .*(lengths|mask)\[", recurrence_kernel(recurrence, Tiling(32)).script())
    assert bool(skipped) is bool(options)
