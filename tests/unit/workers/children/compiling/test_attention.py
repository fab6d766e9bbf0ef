"""Attention in prepared models: what is found, what is not, and the model with one function in its place."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import relax

from benchmarks.support.transformer import Encoder
from fractune_core.operators import DIRECT, TRITON, parted_workloads
from fractune_workers.children.compiling import child
from fractune_workers.children.compiling.implementations import (
    calls_of,
    chains_of,
    names_outside,
    with_attention,
    workloads_of,
)
from fractune_workers.children.importing.passes import extract, prepare
from fractune_workers.children.triton_kernels.attention.recognition import attention_of
from fractune_workers.children.triton_kernels.sources import is_alternative, is_marked
from tests.support.children.triton_attention import CASES, emit
from tests.support.children.triton_operators import TARGET

Emit = Callable[..., Any]
SMALL = Encoder(layers=2, width=32, heads=4, inner=48, length=24, vocabulary=20)


def names_of(mod: tvm.IRModule) -> list[str]:
    return [str(call.args[0].name_hint) for call in calls_of(mod)]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "encoder.onnx"
    SMALL.save(path)
    return path


@pytest.fixture(scope="module")
def encoder(exported: Path) -> Any:
    """As a compiler with Triton prepares it."""
    child._prepared.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(child, "is_installed", lambda: True)
        prepared = child._prepared(str(exported), "{}", tvm_target())
    child._prepared.cache_clear()
    return prepared


def tvm_target() -> str:
    from fractune_workers.children.tvm_api.target import parse_target, target_key

    return target_key(parse_target("cuda:sm_90", 1))


@pytest.mark.parametrize(
    ("case", "dtype"),
    [*((case, "float16") for case in CASES), *((min(CASES), dtype) for dtype in ("bfloat16", "float32"))],
)
def test_all_operators_of_attention_become_one(case: str, dtype: str) -> None:
    mod = emit(CASES[case], dtype)
    (chain,) = chains_of(mod)
    assert chain.calls == tuple(range(len(calls_of(mod))))
    found = attention_of(chain.function)
    assert found.dtype == dtype
    assert found.scores.extent("row") == found.outputs.extent("row")
    assert found.scores.extent("column") == found.outputs.extent("depth")
    whole = with_attention(mod, [chain])
    assert names_of(whole) == ["attention"]
    assert names_outside(mod, [chain]) == set()


def test_grouped_heads_are_rows_of_their_keys() -> None:
    (chain,) = chains_of(emit(CASES["grouped heads"], "float16"))
    scores = attention_of(chain.function).scores
    groups, heads_of_a_group, queries = 2 * 3, 4, 17
    assert (scores.extent("batch"), scores.extent("row")) == (groups, heads_of_a_group * queries)


def test_an_exported_transformer_has_attention_in_each_layer(encoder: Any) -> None:
    first, second = encoder.chains
    assert first.direct_hash == second.direct_hash
    assert len(first.calls) == len(second.calls) == 7, "three transposes, scores, softmax, product, transpose"
    names = names_of(with_attention(encoder.direct, encoder.chains))
    assert names.count("attention") == SMALL.layers
    assert not any("softmax" in name or "transpose" in name for name in names)
    half = names_of(with_attention(encoder.direct, [second]))
    assert [sum(kind in name for name in half) for kind in ("attention", "softmax")] == [1, 1]


def test_it_is_an_operator_that_no_sum_counts_beside_the_others(encoder: Any) -> None:
    of_tvm = {each.workload_hash for each in extract(encoder.direct, tvm.target.Target(TARGET))}
    (own,) = (each for each in encoder.operators if each.workload_hash not in of_tvm)
    assert (own.name, own.weight) == ("attention", 0)
    workloads = encoder.workloads[own.workload_hash]
    assert list(workloads) == [DIRECT, TRITON]
    functions = [each.mod["main"] for each in workloads.values()]
    assert [is_alternative(each) for each in functions] == [True, True]
    assert [is_marked(each) for each in functions] == [False, True]


def test_without_triton_nothing_changes(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "is_installed", lambda: False)
    child._prepared.cache_clear()
    found = child.ingest(str(exported), {}, "cuda:sm_90", "sm_90")
    child._prepared.cache_clear()
    assert not any(each["name"] == "attention" for each in found["operators"])
    assert not any(TRITON in parted_workloads(each["workload"]) for each in found["operators"])


def test_a_variant_with_attention_needs_no_schedule_of_what_it_replaces(encoder: Any) -> None:
    (own,) = workloads_of(encoder.chains)
    softmax, other = (
        next(each.workload_hash for each in encoder.operators if kind in each.name)
        for kind in ("softmax", "layer_norm")
    )
    texts = {own: "triton:[{}]", softmax: "[]", other: "[]"}
    chosen = child._schedules(encoder, texts)
    assert set(chosen.values()) == {"[{}]", "[]"}
    assert len(chosen) == 2, "attention and the normalisation"
    without = child._schedules(encoder, {softmax: "[]", other: "[]"})
    assert len(without) == 2, "the softmax and the normalisation"


def model(make: Emit, *shapes: tuple[Any, ...]) -> tvm.IRModule:
    bb = relax.BlockBuilder()
    shapes = shapes or ((2, 17, 24), (2, 24, 17), (2, 17, 24))
    inputs = [relax.Var(f"x{at}", relax.TensorType(shape, "float16")) for at, shape in enumerate(shapes)]
    with bb.function("main", inputs):
        with bb.dataflow():
            made = make(bb, *inputs)
            out = bb.emit_output(relax.Tuple(made) if isinstance(made, list) else made)
        bb.emit_func_output(out)
    return prepare(bb.get(), tvm.target.Target(TARGET))


def parts(bb: Any, q: Any, k: Any, *, axis: int = -1) -> tuple[Any, Any]:
    scores = bb.emit(relax.op.matmul(q, k))
    return scores, bb.emit(relax.op.nn.softmax(scores, axis))


def plain(bb: Any, q: Any, k: Any, v: Any) -> Any:
    return bb.emit(relax.op.matmul(parts(bb, q, k)[1], v))


def scores_are_an_output(bb: Any, q: Any, k: Any, v: Any) -> Any:
    scores, weights = parts(bb, q, k)
    return [bb.emit(relax.op.matmul(weights, v)), scores]


def weights_are_an_output(bb: Any, q: Any, k: Any, v: Any) -> Any:
    _, weights = parts(bb, q, k)
    return [bb.emit(relax.op.matmul(weights, v)), weights]


def weights_are_used_twice(bb: Any, q: Any, k: Any, _v: Any) -> Any:
    _, weights = parts(bb, q, k)
    return bb.emit(relax.op.matmul(weights, weights))


def over_the_queries(bb: Any, q: Any, k: Any, v: Any) -> Any:
    return bb.emit(relax.op.matmul(parts(bb, q, k, axis=-2)[1], v))


def over_the_batches(bb: Any, q: Any, k: Any, v: Any) -> Any:
    return bb.emit(relax.op.matmul(parts(bb, q, k, axis=0)[1], v))


def weights_on_the_right(bb: Any, q: Any, k: Any, v: Any) -> Any:
    return bb.emit(relax.op.matmul(bb.emit(relax.op.permute_dims(v, [0, 2, 1])), parts(bb, q, k)[1]))


def turned_scores(bb: Any, q: Any, k: Any, v: Any) -> Any:
    scores = bb.emit(relax.op.permute_dims(bb.emit(relax.op.matmul(q, k)), [0, 2, 1]))
    return bb.emit(relax.op.matmul(bb.emit(relax.op.nn.softmax(scores, -1)), v))


def logarithms(bb: Any, q: Any, k: Any, v: Any) -> Any:
    return bb.emit(relax.op.matmul(bb.emit(relax.op.nn.log_softmax(bb.emit(relax.op.matmul(q, k)), -1)), v))


def scaled_weights(bb: Any, q: Any, k: Any, v: Any) -> Any:
    doubled = bb.emit(relax.op.multiply(parts(bb, q, k)[1], relax.const(2.0, "float16")))
    return bb.emit(relax.op.matmul(doubled, v))


def test_plain_attention_is_found() -> None:
    assert len(chains_of(model(plain))) == 1


@pytest.mark.parametrize(
    "make",
    [
        scores_are_an_output,
        weights_are_an_output,
        weights_are_used_twice,
        over_the_queries,
        over_the_batches,
        weights_on_the_right,
        turned_scores,
        logarithms,
        scaled_weights,
    ],
)
def test_other_operators_are_left_apart(make: Emit) -> None:
    assert chains_of(model(make)) == []


def test_a_transpose_that_others_use_too_stays() -> None:
    def make(bb: Any, q: Any, k: Any, v: Any) -> Any:
        turned = bb.emit(relax.op.permute_dims(k, [0, 2, 1]))
        return [plain(bb, q, turned, v), turned]

    mod = model(make, (2, 17, 24), (2, 17, 24), (2, 17, 24))
    (chain,) = chains_of(mod)
    assert len(chain.calls) == 3
    assert names_of(with_attention(mod, [chain])) == ["transpose", "attention"]


def test_sizes_that_depend_on_data_are_left_apart() -> None:
    length = tvm.tirx.Var("length", "int64")
    assert chains_of(model(plain, (2, length, 24), (2, 24, length), (2, length, 24))) == []


def test_one_query_is_not_worth_a_tile() -> None:
    assert chains_of(model(plain, (2, 1, 24), (2, 24, 17), (2, 17, 24))) == []


def test_an_output_that_is_added_to_several_tensors_is_left_apart() -> None:
    def make(bb: Any, q: Any, k: Any, v: Any, several: Any) -> Any:
        return bb.emit(relax.op.add(plain(bb, q, k, v), several))

    assert chains_of(model(make, (2, 17, 24), (2, 24, 17), (2, 17, 24), (3, 2, 17, 24))) == []
