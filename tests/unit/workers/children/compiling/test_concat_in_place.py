"""Concatenations without a copy: the same numbers come out, whatever else is made of parts and results."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, te
from tvm.relax.backend.cpu_generic import pipeline
from tvm.s_tir import Schedule

from fractune_core.errors import FractuneError
from fractune_core.files.plans import ARENA
from fractune_runtime.tvm_runtime.arena import Planned
from fractune_runtime.tvm_runtime.tensors import CacheRows, TensorSpec
from fractune_workers.children.compiling.concat_in_place import into_slice, parts_in_place
from fractune_workers.children.compiling.variants import compile_variants
from fractune_workers.children.fusing.fuse import fused
from fractune_workers.children.importing.limits import Limits
from fractune_workers.children.importing.onnx_models.onnx_model import load_onnx
from fractune_workers.children.importing.passes import prepare
from tests.support.decoders import HEAD, KEY_HEADS, shapes_of, write_decoder
from tests.support.translators import HEADS, LAYERS, SIDE, write_recogniser
from tests.unit.workers.children.layouts.networks import Array, Network, calls, inputs_of, loaded, network, outputs

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})
SHAPE = (1, 8, 6, 8)
op = relax.op


def late_use_of_a_part(net: Network, x: Any, y: Any) -> Any:
    """The part is read long after the result was, when its memory could have been given to another."""
    part = net.emit(op.nn.relu(x))
    whole = net.emit(op.concat([part, net.emit(op.negative(y))], 1))
    for _ in range(3):
        whole = net.emit(op.nn.softmax(whole))
    return net.emit(op.add(net.emit(op.nn.softmax(part)), net.emit(op.sum(whole, [1], keepdims=True))))


def nested(net: Network, x: Any, y: Any) -> Any:
    """As in DenseNet: what was concatenated is a part of the next, and is read between."""
    whole = net.emit(op.concat([net.emit(op.nn.relu(x)), net.emit(op.negative(y))], 1))
    for _ in range(2):
        fresh = net.emit(op.nn.softmax(net.emit(op.max(whole, [1], keepdims=True)), 2))
        whole = net.emit(op.concat([whole, fresh], 1))
    return whole


def convolutions(net: Network, x: Any, y: Any) -> Any:
    whole = net.emit(op.concat([net.conv(x, 8, 1), net.conv(y, 12, padding=1)], 1))
    return net.conv(net.emit(op.nn.relu(whole)), 8)


def seen_in_another_shape(net: Network, x: Any, y: Any) -> Any:
    rows = [net.emit(op.reshape(net.emit(op.square(each)), (1, 48, 8))) for each in (x, y)]
    return net.emit(op.concat(rows, 1))


IN_PLACE = [
    pytest.param(late_use_of_a_part, id="late use of a part"),
    pytest.param(nested, id="nested"),
    pytest.param(convolutions, id="convolutions in blocks"),
    pytest.param(seen_in_another_shape, id="seen in another shape"),
]


@pytest.mark.parametrize("body", IN_PLACE)
def test_parts_are_computed_where_they_lie_in_the_result(body: Callable[..., Any]) -> None:
    prepared = check(network([SHAPE, SHAPE], body))
    assert not kernels(prepared)
    assert "relax.concat" in calls(prepared)


def squares(net: Network, *values: Any) -> list[Any]:
    return [net.emit(op.square(value)) for value in values]


def one_value_twice(net: Network, x: Any, y: Any) -> Any:
    part, other = squares(net, x, y)
    return net.emit(op.concat([part, other, part], 1))


def outputs_of_a_split(net: Network, x: Any, _: Any) -> Any:
    halves = net.emit(op.split(x, 2, 1))
    return net.emit(op.concat([net.emit(relax.TupleGetItem(halves, at)) for at in (1, 0)], 1))


WITH_A_KERNEL = [
    pytest.param(SHAPE, lambda net, x, y: net.emit(op.concat([x, net.emit(op.nn.relu(y))], 1)), id="an input"),
    pytest.param(
        SHAPE, lambda net, x, _: net.emit(op.concat([*squares(net, x), net.weight(*SHAPE)], 1)), id="a weight"
    ),
    pytest.param(SHAPE, lambda net, x, y: net.emit(op.concat(squares(net, x, y), 2)), id="not contiguous"),
    pytest.param((2, 8, 6, 8), lambda net, x, y: net.emit(op.concat(squares(net, x, y), 1)), id="a batch"),
    pytest.param((1, 3, 5, 1), lambda net, x, y: net.emit(op.concat(squares(net, x, y), 1)), id="not aligned"),
    pytest.param(SHAPE, one_value_twice, id="one value twice"),
    pytest.param(SHAPE, outputs_of_a_split, id="outputs of a split"),
]


@pytest.mark.parametrize(("shape", "body"), WITH_A_KERNEL)
def test_what_cannot_lie_in_the_result_is_copied_by_a_kernel(shape: tuple[int, ...], body: Callable[..., Any]) -> None:
    prepared = prepare(network([shape, shape], body), TARGET)
    assert kernels(prepared)
    assert "relax.concat" not in calls(prepared)


def test_a_value_is_a_part_of_one_result_only() -> None:
    def two_results(net: Network, x: Any, y: Any) -> Any:
        part, other = squares(net, x, y)
        first, second = net.emit(op.concat([part, other], 1)), net.emit(op.concat([other, part], 1))
        return net.emit(op.subtract(first, second))

    prepared = check(network([SHAPE, SHAPE], two_results))
    assert kernels(prepared)
    assert "relax.concat" in calls(prepared)


def test_a_part_that_nobody_computes_is_an_error() -> None:
    mod = network([SHAPE, SHAPE], lambda net, x, y: net.emit(op.concat([x, y], 1)))
    lowered = tvm.transform.Sequential(pipeline.dataflow_lower_passes(TARGET))(mod)
    with pytest.raises(FractuneError, match="cannot be laid into a concatenation"):
        parts_in_place(lowered)


def check(mod: tvm.IRModule) -> tvm.IRModule:
    """Compiled as a variant of a bundle, the module computes the same as before; returns it prepared."""
    given = inputs_of(mod)
    expected = outputs(mod, TARGET, given)
    assert np.ptp(expected) > 0
    prepared = prepare(mod, TARGET)
    for found in compiled(prepared, given):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
    return prepared


def compiled(prepared: tvm.IRModule, inputs: list[Array]) -> list[Array]:
    """What the module gives as a variant of a bundle, twice: the second run uses the memory of the first."""
    (objects,) = compile_variants([prepared], TARGET, [{}], {})
    variant = loaded(objects)
    return [variant.held(list(map(tvm.runtime.tensor, inputs)))[0].copy() for _ in range(2)]


def kernels(mod: tvm.IRModule) -> list[str]:
    """Those that concatenate, or append to a cache."""
    names = [str(name.name_hint) for name in mod.get_global_vars()]
    return [name for name in names if "concat" in name or "cache" in name]


def branches(net: Network, x: Any, y: Any) -> Any:
    """A concatenation along channels, whose parts nobody else reads, and one whose part is read again."""
    left = net.emit(op.nn.relu(net.conv(x, 8, 1)))
    joined = net.emit(op.concat([net.emit(op.tanh(net.conv(left, 8, 1))), net.conv(y, 12, padding=1)], 1))
    return net.emit(op.concat([net.emit(op.nn.relu(net.conv(joined, 8, padding=1))), left], 1))


def test_parts_of_slots_are_computed_where_they_lie_in_the_result() -> None:
    variants = [prepare(network([SHAPE, SHAPE], branches, seed), TARGET) for seed in (0, 1)]
    made = fused(variants, [0, 1, 0]).module
    assert calls(made).count("relax.concat") == 1
    assert sum(name.startswith("concat") for name in calls(made)) == 1
    inputs = [np.stack([each, each + 1, each + 2]) for each in inputs_of(variants[0])]
    expected = outputs(made, TARGET, inputs)
    for found in compiled(made, inputs):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
    for slot, variant in enumerate([0, 1, 0]):
        np.testing.assert_array_equal(
            expected[slot], outputs(variants[variant], TARGET, [each[slot] for each in inputs])
        )


def test_a_part_that_is_computed_slot_by_slot_is_laid_into_the_result_too() -> None:
    def apart(net: Network, x: Any, y: Any) -> Any:
        part = net.emit(op.sort(net.emit(op.multiply(x, net.weight(*SHAPE)))))
        return net.emit(op.concat([part, net.emit(op.square(y))], 1))

    variants = [prepare(network([SHAPE, SHAPE], apart, seed), TARGET) for seed in (0, 1)]
    made = fused(variants, [0, 1])
    assert len(made.apart) == 1
    inputs = [np.stack([each, each + 1]) for each in inputs_of(variants[0])]
    for found in compiled(made.module, inputs):
        for slot, variant in enumerate(variants):
            np.testing.assert_allclose(
                found[slot], outputs(variant, TARGET, [each[slot] for each in inputs]), rtol=1e-5
            )


@pytest.mark.parametrize("vectorized", [False, True])
def test_a_scheduled_kernel_writes_into_its_piece_alone(*, vectorized: bool) -> None:
    x = te.placeholder((3, 4, 8), name="x")
    doubled = te.compute((3, 4, 8), lambda i, j, k: x[i, j, k] * 2.0, name="doubled")
    sch = Schedule(tvm.IRModule({"main": te.create_prim_func([x, doubled])}))
    block = sch.get_sblock("doubled")
    if vectorized:
        written = sch.cache_write(block, 0, "global")
        sch.reverse_compute_at(written, sch.get_loops(block)[0])
        sch.vectorize(sch.get_loops(written)[-1])
    made = into_slice(sch.mod["main"], 1, (3, 9, 8), 1, 4).with_attr("global_symbol", "main")
    kernel = tvm.compile(tvm.IRModule({"main": made}), TARGET)
    numbers = np.arange(96, dtype="float32").reshape(3, 4, 8)
    result = tvm.runtime.tensor(np.full((3, 9, 8), -1, "float32"))
    kernel["main"](tvm.runtime.tensor(numbers), result)
    expected = np.full((3, 9, 8), -1, "float32")
    expected[:, 4:8] = 2 * numbers
    np.testing.assert_array_equal(result.numpy(), expected)


CACHE_TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
PAST, TOKENS, ROWS = 24, 3, 50
KEYS = PAST + TOKENS
CACHE = (1, KEY_HEADS, PAST, HEAD)
AXIS = 2


def test_new_rows_are_written_into_the_callers_buffers(tmp_path: Path) -> None:
    data = write_decoder(tmp_path / "decoder.onnx").read_bytes()
    mod = prepare(load_onnx(data, shapes_of(PAST, TOKENS), Limits(len(data))), CACHE_TARGET)
    (objects,) = compile_variants([mod], CACHE_TARGET, [{}], {})
    code = loaded(objects)
    assert isinstance(code, Planned)
    assert isinstance(code.cached, Planned)
    plan = code.cached.plan
    assert "attention1_cached" in {call.kernel for call in plan.calls}
    # Neither the cache nor its keys turned round or repeated have memory of their own.
    assert [each for each in plan.tensors if {HEAD, KEYS} <= {*each.shape} and each.place == ARENA] == []
    rng = np.random.default_rng(0)
    ids, mask = rng.integers(0, 60, (1, TOKENS)), np.ones((1, PAST + TOKENS), "int64")
    mask[:, :5] = 0
    given = [tvm.runtime.tensor(each) for each in (ids, PAST + np.arange(TOKENS)[None], mask)]
    buffers = [CacheRows(TensorSpec(name, "float32", CACHE), AXIS, ROWS, before=PAST) for name in ("key", "value")]
    (result,) = [tvm.runtime.empty(each.shape, each.dtype) for each in plan.outputs]
    run = code.cached.bound([*given, *buffers], [result])
    for first in (-4, 0, ROWS - KEYS):
        held = [np.from_dlpack(each.at(first)) for each in buffers]
        for each in held:
            each[...] = rng.normal(size=each.shape)
        before = [each.copy() for each in held]
        logits, *presents = code.held([*given, *(tvm.runtime.tensor(each[:, :, :PAST].copy()) for each in held)])
        run(first)
        np.testing.assert_array_equal(result.numpy(), logits)
        for old, new, present in zip(before, held, presents, strict=True):
            np.testing.assert_array_equal(new[:, :, :KEYS], present)
            np.testing.assert_array_equal(new[:, :, KEYS:], old[:, :, KEYS:])
    for rows, dtype in ((KEYS - 1, "float32"), (KEYS, "float16")):
        wrong = CacheRows(TensorSpec("key", dtype, CACHE), AXIS, rows, before=0)
        with pytest.raises(ValueError, match=rf"its cache is float32\[1, {KEY_HEADS}, {KEYS}, {HEAD}\], not {dtype}"):
            code.cached.bound([*given, wrong, wrong], [result])


def test_a_step_reads_the_keys_of_an_encoder_as_they_are(tmp_path: Path) -> None:
    data = write_recogniser(tmp_path)[1].read_bytes()
    own = {f"past_{part}_self_{layer}": [1, HEADS, PAST, SIDE] for layer in range(LAYERS) for part in ("key", "value")}
    for tokens, operators in ((1, 2 * LAYERS), (5, LAYERS)):
        inputs = {"input_ids": [1, tokens], "attention_mask": [1, PAST + tokens], **own}
        made = calls(prepare(load_onnx(data, inputs, Limits(len(data))), CACHE_TARGET))
        assert sum(name.startswith("attention") for name in made) == operators
