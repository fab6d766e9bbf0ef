"""The search for a Triton kernel's decisions. Triton itself is not needed."""

import json
from dataclasses import replace
from typing import Any

import pytest
import tvm
from tvm import te, topi

from fractune_core.errors import FractuneError
from fractune_core.operators import DIRECT, TRITON, implementation_of
from fractune_workers.children.compiling.implementations import chains_of, workloads_of
from fractune_workers.children.searching.child import CompetingSearches, TritonSearch
from fractune_workers.children.triton_kernels.attention.kernel_operators import AttentionProblem, padded, read_attention
from fractune_workers.children.triton_kernels.decisions import Decisions, Problem, cycles, fitting, read_decisions
from fractune_workers.children.tvm_api.traces import Workload
from tests.support.children.triton_attention import CASES, emit

TARGET = tvm.target.Target(
    {
        "kind": "cuda",
        "arch": "sm_90",
        "max_threads_per_block": 1024,
        "max_shared_memory_per_block": 49152,
        "thread_warp_size": 32,
    }
)
SHARE = "mps:25"


def workload(rows: int = 4096, columns: int = 4096, depth: int = 1024, dtype: str = "float16") -> Workload:
    a, b = te.placeholder((rows, depth), dtype, name="a"), te.placeholder((depth, columns), dtype, name="b")
    return Workload.of(tvm.IRModule({"main": te.create_prim_func([a, b, topi.matmul(a, b)])}))


def search(*units: int, of: Workload | None = None) -> TritonSearch:
    made = TritonSearch(of or workload(), TARGET, seed=1)
    made.expect(units)
    return made


def proposed(made: Any, count: int) -> list[Decisions]:
    return [read_decisions(each["trace"]) for each in made.propose(count, str)]


def test_first_candidates_follow_the_share_s_sms() -> None:
    assert proposed(search(132), 8) != proposed(search(16), 8)
    few = search(132, of=workload(rows=64, columns=128, depth=8192))
    assert all(each.split > 1 for each in proposed(few, 4)), "few tiles for many SMs"
    assert all(each.split == 1 for each in proposed(search(8), 4))


def test_persistent_programs_are_the_sms_of_the_shares() -> None:
    assert {each.programs for each in proposed(search(32, 132), 4000)} == {0, 32, 132}
    assert {each.programs for each in proposed(search(), 4000)} == {0}


def test_a_large_product_begins_with_large_tiles_that_fit_shared_memory() -> None:
    for each in proposed(search(132), 8):
        assert each.rows * each.columns >= 64 * 128
        assert (each.rows + each.columns) * each.depth * 2 * each.stages <= 227 * 1024


def test_float32_without_tensor_cores_unrolls_less() -> None:
    found = proposed(search(132, of=workload(dtype="float32")), 4000)
    assert max(each.rows * each.columns * each.depth // (32 * each.warps) for each in found) <= 4096


def test_none_is_proposed_twice_until_the_space_is_empty() -> None:
    made = search(132, of=workload(16, 16, 64))
    everything = proposed(made, 10_000)
    assert len(set(everything)) == len(everything) > 10
    assert proposed(made, 1) == []


def test_lost_ones_come_again_and_known_ones_never() -> None:
    made = search(132)
    first, second = (each["candidate"] for each in made.propose(2, str))
    made.offer_again([second, "unknown"])
    assert [each["candidate"] for each in made.propose(1, str)] == [second]
    other = search(132)
    other.leave_out([first])
    assert first not in [each["candidate"] for each in other.propose(8, str)]


def test_the_surrogate_leads_to_what_was_fast() -> None:
    """Deep tiles are made to be fast, whatever the estimate says."""
    made = search(132)
    for _ in range(4):
        items = made.propose(16, str)
        results = [(each["candidate"], SHARE, 1.0 / read_decisions(each["trace"]).depth) for each in items]
        made.learn(results, [SHARE])
    assert made.measured == 64
    depths = [each.depth for each in proposed(made, 16)]
    assert sum(depth == 128 for depth in depths) > len(depths) / 2
    assert made.best_s == pytest.approx(1 / 128)


def test_history_and_other_operators_decisions_are_used_where_they_can_be_read() -> None:
    first = proposed(search(132), 1)[0]
    old = first.text.replace("product-tma/1", "product/0")
    made = search(132)
    made.warm([("c", first.text, {SHARE: 1.0}), ("old", old, {SHARE: 0.1})])
    made.learn([], [SHARE])
    assert (made.measured, made.best_s) == (1, 1.0)
    given = Decisions(16, 256, 16, 8, 5)
    made.transfer([old, given.text])
    assert first not in (found := proposed(made, 4))
    assert given in found
    known = "'product/1', 'product-tma/1'"
    with pytest.raises(FractuneError, match=f"kernel 'product/0' is not one of {known}; tune the model again"):
        read_decisions(old)


def test_candidates_name_their_kernel() -> None:
    found = [json.loads(each["trace"])[0]["kernel"] for each in search(132).propose(4, str)]
    assert found == ["product-tma/1", "product/1"] * 2


def test_candidates_without_tma_are_those_of_older_records() -> None:
    text = '[{"kernel":"product/1","rows":16,"columns":32,"depth":64,"warps":4,"stages":3,"split":1,"programs":0}]'
    assert read_decisions(text) == Decisions(16, 32, 64, 4, 3)
    assert read_decisions(text).text == text


def test_the_surrogate_sees_tma() -> None:
    assert [Decisions(16, 32, 64, 4, 3, tma=tma).features["tma"] for tma in (False, True)] == [0, 1]


def test_every_tile_is_searched_with_and_without_tma_where_the_gpu_has_it() -> None:
    small = workload(256, 256, 256)
    everything = proposed(search(132, of=small), 1 << 20)
    with_tma = {replace(each, tma=False) for each in everything if each.tma}
    assert with_tma == {each for each in everything if not each.tma}
    odd = workload(256, 255, 255)
    assert not any(each.tma for each in proposed(search(132, of=odd), 1 << 20))
    ampere = TritonSearch(small, tvm.target.Target({**TARGET.export(), "arch": "sm_80"}), seed=1)
    assert not any(each.tma for each in proposed(ampere, 1 << 20))


def test_shallow_tiles_lose_less_with_tma() -> None:
    """By the estimate: a step of the depth computes no addresses."""
    problem = Problem(1, 4096, 4096, 4096, "float16", tensor_cores=True, shared_bytes=1 << 17, tma=True)
    shallow, deep = Decisions(128, 128, 32, 8, 3), Decisions(128, 128, 128, 8, 3)
    lost = [
        cycles(problem, replace(shallow, tma=tma), 132) - cycles(problem, replace(deep, tma=tma), 132)
        for tma in (False, True)
    ]
    assert 0 < lost[1] < lost[0]


def test_triton_competes_with_tvm_and_leaves_out_nothing_else_for_exact_jobs() -> None:
    of = workload(64, 64, 64, "float32")
    searches = CompetingSearches({DIRECT: of, TRITON: of}, TARGET, seed=1, threads=1)
    searches.expect([132])
    items = searches.propose(8, str, exact=False)
    assert [implementation_of(each["trace"]) for each in items].count(TRITON) == 4
    assert {implementation_of(each["trace"]) for each in searches.propose(4, str, exact=True)} == {DIRECT}


def test_whole_numbers_need_deeper_tiles() -> None:
    problem = Problem(1, 64, 64, 64, "int8", tensor_cores=True, shared_bytes=1 << 17)
    assert min(each.depth for each in fitting(problem, ())) == 32


@pytest.fixture(scope="module")
def attention() -> dict[str, Workload]:
    (found,) = workloads_of(chains_of(emit(CASES["heads"], "float16"))).values()
    return found


def test_attention_is_searched_among_kernels_of_triton_alone(attention: dict[str, Workload]) -> None:
    searches = CompetingSearches(attention, TARGET, seed=1, threads=1)
    searches.expect([132])
    items = searches.propose(6, str, exact=False)
    assert {implementation_of(each["trace"]) for each in items} == {TRITON}
    assert len({each["trace"] for each in items}) == 6
    assert CompetingSearches(attention, TARGET, seed=1, threads=1).propose(6, str, exact=True) == []


def test_the_whole_space_of_attention_is_proposed_once(attention: dict[str, Workload]) -> None:
    made = search(132, of=attention[TRITON])
    texts = [each["trace"] for each in made.propose(10_000, str)]
    assert len(texts) == len(set(texts)) > 20
    assert made.propose(1, str) == []
    decided = read_attention(texts[0])
    assert read_attention(decided.text) == decided


def test_decisions_of_another_kernel_are_not_attention_s(attention: dict[str, Workload]) -> None:
    with pytest.raises(FractuneError, match=r"attention has the kernel 'attention/1', not 'product.*'"):
        read_attention(proposed(search(132), 1)[0].text)
    made = search(132, of=attention[TRITON])
    made.transfer([proposed(search(132), 1)[0].text])
    assert made.propose(1, str)


def problem(**changes: Any) -> AttentionProblem:
    usual = {"batch": 16, "queries": 1024, "keys": 1024, "depth": 64, "width": 64, "dtype": "float16"}
    return AttentionProblem(**{**usual, "tensor_cores": True, "shared_bytes": 227 * 1024, **changes})


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("depth", [20, 64, 80, 128])
def test_tiles_of_attention_fit_registers_and_shared_memory(depth: int, dtype: str) -> None:
    large = problem(depth=depth, width=depth, dtype=dtype, tensor_cores=dtype == "float16")
    found = large.fitting()
    assert found
    side, element_bytes = padded(depth), {"float16": 2, "float32": 4}[dtype]
    for each in found:
        assert each.rows * (2 * each.columns + side) <= 128 * 32 * each.warps
        assert (each.rows * side + each.stages * each.columns * 2 * side) * element_bytes <= 227 * 1024
    assert all(each.rows <= 32 and each.columns <= 32 for each in problem(queries=17, keys=17).fitting())


def test_a_larger_share_begins_with_smaller_tiles_of_queries() -> None:
    few, many = (next(problem(batch=4).first(problem(batch=4).fitting(), [sms])) for sms in (4, 132))
    assert few.rows > many.rows
