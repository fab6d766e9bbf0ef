"""LSTM, GRU and RNN: the numbers of ONNX Runtime, whatever the attributes, and a refusal that names the node."""

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import tvm
import tvm_ffi
from onnx import helper

from fractune_core.errors import BadModel
from fractune_workers.children.importing.passes import prepare
from fractune_workers.children.recurrent.kernel import RECURRENCE, TILING
from tests.support.onnx_models import imported, onnx_model, run_by_onnxruntime, run_imported, together

Array = npt.NDArray[Any]
AVX2 = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
AVX512 = tvm.target.Target({"kind": "llvm", "mcpu": "skylake-avx512"})
NARROW = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
CELLS = list(GATES)
ORDER = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
WEIGHTS = ("W", "R", "B", "P")


def operands(
    cell: str, *, steps: int = 5, batch: int = 1, width: int = 6, units: int = 8, both: bool = False, more: str = ""
) -> dict[str, Array]:
    """Random numbers for X, W and R, and for the inputs named in `more`."""
    rng = np.random.default_rng(0)
    directions, gates = 2 if both else 1, GATES[cell] * units
    shapes = {
        "X": (steps, batch, width),
        "W": (directions, gates, width),
        "R": (directions, gates, units),
        "B": (directions, 2 * gates),
        "initial_h": (directions, batch, units),
        "initial_c": (directions, batch, units),
        "P": (directions, 3 * units),
    }
    made: dict[str, Array] = {
        name: (rng.standard_normal(shape) / 2).astype(np.float32)
        for name, shape in shapes.items()
        if name in ("X", "W", "R", *more.split())
    }
    if "sequence_lens" in more:
        made["sequence_lens"] = (np.arange(batch) % steps + 1).astype(np.int32)
    return made


def model_of(cell: str, values: dict[str, Array], *, constant: bool = True, **attributes: Any) -> onnx.ModelProto:
    directions, _, units = values["R"].shape
    names = [name if name in values else "" for name in ORDER]
    while not names[-1]:
        names.pop()
    outputs = ["Y", "Y_h", "Y_c"][: 3 if cell == "LSTM" else 2]
    attributes.setdefault("direction", "bidirectional" if directions == 2 else "forward")
    node = helper.make_node(cell, names, outputs, name="cell", **{"hidden_size": units, **attributes})
    weights = {name: value for name, value in values.items() if constant and name in WEIGHTS}
    given = {name: value for name, value in values.items() if name not in weights}
    return onnx_model([node], given, weights, opset=14)


def case(cell: str, values: dict[str, Array], **options: Any) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The model, and what it is given."""
    model = model_of(cell, values, **options)
    return model, {value.name: values[value.name] for value in model.graph.input}


def check(*cases: tuple[onnx.ModelProto, dict[str, Array]], target: tvm.target.Target = NARROW) -> None:
    model, given = together(cases)
    found, expected = run_imported(model, given, target), run_by_onnxruntime(model, given)
    for output, ours, theirs in zip(model.graph.output, found, expected, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, atol=5e-6, err_msg=output.name)


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "computed"])
def test_both_directions_of_rows_of_several_lengths(*, constant: bool) -> None:
    more = {"LSTM": "initial_h initial_c", "GRU": "initial_h", "RNN": "initial_h"}
    cases = []
    for cell in CELLS:
        values = operands(cell, batch=7, units=13, both=True, more=f"B sequence_lens {more[cell]}")
        cases.append(case(cell, values, constant=constant))
    check(*cases)


def test_a_row_without_steps_has_zeros_whatever_its_first_state() -> None:
    cases = []
    for cell, more in (("LSTM", "initial_h initial_c"), ("GRU", "initial_h"), ("RNN", "initial_h")):
        values = operands(cell, batch=3, both=True, more=f"sequence_lens {more}")
        values["sequence_lens"][:] = [0, 5, 2]
        cases.append(case(cell, values))
    check(*cases)


@pytest.mark.parametrize("cell", CELLS)
def test_any_number_of_units(cell: str) -> None:
    sizes = (1, 3, 16, 37) if cell == "LSTM" else (3, 37)
    check(*(case(cell, operands(cell, batch=2, units=units), direction="reverse") for units in sizes), target=AVX2)


def test_peepholes_clip_and_coupled_gates() -> None:
    values = operands("LSTM", batch=2, both=True, more="B P initial_c")
    check(case("LSTM", values), case("LSTM", values, clip=0.2, input_forget=1))


def test_a_gru_that_resets_the_product() -> None:
    check(
        case("GRU", operands("GRU", both=True), linear_before_reset=1),
        case("GRU", operands("GRU", both=True, more="B initial_h"), linear_before_reset=1, clip=0.5),
        case("GRU", operands("GRU", more="B"), constant=False, linear_before_reset=1),
    )


ACTIVATIONS: dict[str, dict[str, list[float]]] = {
    "Relu": {},
    "Affine": {"activation_alpha": [0.5], "activation_beta": [0.1]},
    "LeakyRelu": {"activation_alpha": [0.2]},
    "ThresholdedRelu": {"activation_alpha": [0.3]},
    "ScaledTanh": {"activation_alpha": [0.5], "activation_beta": [0.7]},
    "HardSigmoid": {"activation_alpha": [0.3], "activation_beta": [0.4]},
    "Elu": {"activation_alpha": [0.8]},
    "Softsign": {},
    "Softplus": {},
}


def test_activations() -> None:
    """Each direction has its own."""
    values = operands("RNN", both=True)
    check(*(case("RNN", values, activations=["Tanh", name], **given) for name, given in ACTIVATIONS.items()))


def test_batch_first() -> None:
    """ONNX Runtime has no such layout: the same operator with its axes exchanged is the truth."""
    values = operands("LSTM", batch=3, both=True, more="sequence_lens initial_h initial_c")
    expected = run_imported(plain := model_of("LSTM", values), {v.name: values[v.name] for v in plain.graph.input})
    for name in ("X", "initial_h", "initial_c"):
        values[name] = np.ascontiguousarray(values[name].swapaxes(0, 1))
    turned = model_of("LSTM", values, layout=1)
    outputs = run_imported(turned, {v.name: values[v.name] for v in turned.graph.input})
    np.testing.assert_allclose(outputs[0], expected[0].transpose(2, 0, 1, 3), atol=1e-6)
    for ours, theirs in zip(outputs[1:], expected[1:], strict=True):
        np.testing.assert_allclose(ours, theirs.swapaxes(0, 1), atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_widths_of_numbers(dtype: str) -> None:
    values = operands("LSTM", more="B")
    wide = run_imported(model_of("LSTM", values), {"X": values["X"]})
    cast = {name: value.astype(dtype) for name, value in values.items()}
    for ours, theirs in zip(run_imported(model_of("LSTM", cast), {"X": cast["X"]}), wide, strict=True):
        assert ours.dtype == dtype
        np.testing.assert_allclose(ours, theirs, atol=2e-3 if dtype == "float16" else 1e-6)


def code_of(target: tvm.target.Target, cell: str, units: int) -> list[str]:
    """The kernel's instructions."""
    mod = prepare(imported(model_of(cell, operands(cell, units=units))), target)
    kernel = next(f for f in mod.functions.values() if f.attrs and RECURRENCE in f.attrs)
    code = tvm.compile(tvm.IRModule({"kernel": kernel.with_attr("global_symbol", "kernel")}), target)
    return list(code.mod.inspect_source("asm").splitlines())


@pytest.mark.parametrize(("target", "register"), [(AVX2, "ymm"), (AVX512, "zmm")], ids=["AVX2", "AVX-512"])
def test_the_recurrence_multiplies_and_adds_in_whole_registers(target: tvm.target.Target, register: str) -> None:
    lines = code_of(target, "LSTM", 64)
    assert sum("vfmadd" in line and "ps" in line and register in line for line in lines) >= 8


def test_sums_of_any_number_of_units_stay_in_registers() -> None:
    whole, *others = (sum("%rsp" in line for line in code_of(AVX512, "GRU", units)) for units in (128, 48, 56, 112))
    assert max(others) < 2 * whole


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"direction": "sideways"}, "attribute 'direction' is 'sideways'; write one of forward"),
        ({"layout": 2}, "attribute 'layout' is 2"),
        ({"hidden_size": 9}, "attribute 'hidden_size' is 9, and R has 8 units"),
        ({"activations": ["Tanh"]}, "attribute 'activations' has 1 functions; write 3 for each direction"),
        ({"activations": ["Tanh", "Sine", "Tanh"]}, "attribute 'activations' has 'Sine', which is unknown"),
        ({"activations": ["ScaledTanh", "Tanh", "Tanh"]}, "activation 'scaledtanh' needs a number"),
        ({"clip": -1.0}, "attribute 'clip' is -1; write a positive number"),
        ({"clip": float("nan")}, "attribute 'clip' is nan; write a positive number"),
        ({"direction": "bidirectional"}, r"input W has the shape \[1, 32, 6\], and \[2, 32, 6\] is expected"),
    ],
)
def test_a_refusal_names_the_node_and_the_attribute(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadModel, match=rf"cannot import node 'cell' \(LSTM\): its {message}"):
        imported(model_of("LSTM", operands("LSTM"), **attributes))


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(
    ("name", "dtype", "expected"),
    [
        ("initial_h", "float64", "float32"),
        ("W", "float64", "float32"),
        ("R", "float16", "float32"),
        ("X", "float16", "float16"),
        ("sequence_lens", "float32", "int32"),
        ("sequence_lens", "int64", "int32"),
    ],
)
def test_an_input_of_another_type_is_refused(cell: str, name: str, dtype: str, expected: str) -> None:
    values = operands(cell, batch=2, more="initial_h sequence_lens")
    values[name] = values[name].astype(dtype)
    named, found = ("W", "float32") if name == "X" else (name, dtype)
    with pytest.raises(BadModel, match=rf"\({cell}\): its input {named} has {found}, and {expected} is expected"):
        imported(model_of(cell, values))


def test_a_gpu_has_no_kernel_for_it() -> None:
    with pytest.raises(BadModel, match="has an LSTM, GRU or RNN, which has no kernel for a GPU; tune it for shares"):
        prepare(imported(model_of("LSTM", operands("LSTM"))), tvm.target.Target({"kind": "cuda", "arch": "sm_80"}))


def test_an_attribute_of_another_function_changes_nothing() -> None:
    """A module from a file may have the attribute at any function: the function stays what it is."""
    small, large = (imported(model_of("LSTM", operands("LSTM", units=units))) for units in (8, 16))
    (name,) = (gv for gv, f in small.functions.items() if f.attrs and RECURRENCE in f.attrs)
    own = small[name]
    (other,) = (f for f in large.functions.values() if f.attrs and RECURRENCE in f.attrs)
    foreign = [(RECURRENCE, text) for text in (other.attrs[RECURRENCE], "{}", "x", '{"cell": 1}')]
    foreign += [(TILING, text) for text in ("", "x", "plain0x1", "packed1x8", "plain1x8units", "plain999x1")]
    for attribute, text in foreign:
        small.update_func(name, own.with_attr(attribute, text))
        kernels = [f for f in prepare(small, NARROW).functions.values() if f.attrs and RECURRENCE in f.attrs]
        assert [tvm_ffi.structural_equal(each, small[name]) for each in kernels] == [True]
