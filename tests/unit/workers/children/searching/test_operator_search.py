"""The searcher's child: what is proposed first, and that nothing is proposed twice."""

import json
import math
import random

import numpy as np
import pytest
import tvm
from hypothesis import given, settings, strategies as st
from tvm import te, topi

from fractune_core.operators import DIRECT
from fractune_workers.children.importing.passes import Operator, described
from fractune_workers.children.searching import operator_search, trials
from fractune_workers.children.searching.child import SearcherChild
from fractune_workers.children.searching.operator_search import OperatorSearch, adapt
from fractune_workers.children.searching.spaces.sketches import sketches_of
from fractune_workers.children.searching.trials import Fastest, Surrogate, Trial, features_of
from fractune_workers.children.tvm_api.target import parse_target
from fractune_workers.children.tvm_api.traces import Workload

# TVM's own builder calls what TVM has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:build is deprecated:DeprecationWarning")

TARGET = json.dumps({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})


def matmul(rows: int) -> Operator:
    a, b = te.placeholder((rows, 24), name="a"), te.placeholder((24, 32), name="b")
    return described("matmul", 1, tvm.IRModule({"main": te.create_prim_func([a, b, topi.matmul(a, b)])}))


def opened(child: SearcherChild, operator: Operator, transferred: list[str]) -> None:
    child.open(operator.workload_hash, operator.workload_json, TARGET, "key", 5, [], transferred)


def proposed(child: SearcherChild, operator: Operator, count: int) -> list[str]:
    return [item["trace"] for item in child.propose(operator.workload_hash, "key", count)]


@pytest.fixture
def child() -> SearcherChild:
    return SearcherChild(threads=1)


def test_transferred_schedules_are_tried_in_turn_with_computed_ones_and_only_once(child: SearcherChild) -> None:
    donor, receiver = matmul(16), matmul(48)
    opened(child, donor, [])
    transferred = proposed(child, donor, 4)
    opened(child, receiver, transferred)
    first = proposed(child, receiver, 8)
    search = child._operators[receiver.workload_hash, "key", ""]._searches[DIRECT]
    space = sketches_of(search.spaces), search.postprocs
    adapted = [adapt(trace, search._workload.mod, *space) for trace in transferred]
    assert len(first) == 8
    wanted = list(dict.fromkeys(str(sch.mod) for sch in adapted if sch is not None))
    assert wanted
    begun = [str(sch.mod) for sch in search._pending.values()]
    assert [mod for mod in begun[: 2 * len(wanted)] if mod in wanted] == wanted
    assert begun[0] not in wanted
    assert not set(proposed(child, receiver, 8)) & set(first)


def test_with_nothing_transferred_it_samples(child: SearcherChild) -> None:
    operator = matmul(16)
    opened(child, operator, [])
    first, second = proposed(child, operator, 6), proposed(child, operator, 6)
    assert len({*first, *second}) == 12


def test_an_evolution_begins_once_a_round_was_measured(child: SearcherChild) -> None:
    operator = matmul(64)
    opened(child, operator, [])
    search = child._operators[operator.workload_hash, "key", ""]._searches[DIRECT]
    first = child.propose(operator.workload_hash, "key", 8)
    assert not search._returned
    results = [(item["candidate"], "cpu:1", 1e-3 * (1 + at)) for at, item in enumerate(first)]
    child.learn(operator.workload_hash, "key", results, ["cpu:1"])
    second = proposed(child, operator, 16)
    assert search._returned
    assert len(set(second)) == 16
    assert not {item["trace"] for item in first} & set(second)


def told(items: list[dict[str, str]], share: str, secs: list[float]) -> list[tuple[str, str, float]]:
    return [(item["candidate"], share, each) for item, each in zip(items, secs, strict=True)]


def test_when_the_shares_change_what_is_known_at_the_new_ones_guides(child: SearcherChild) -> None:
    operator = matmul(64)
    opened(child, operator, [])
    search = child._operators[operator.workload_hash, "key", ""]._searches[DIRECT]
    name = (operator.workload_hash, "key")
    items = child.propose(*name, 3)
    child.learn(*name, told(items, "cpu:1", [3.0, 1.0, 2.0]), ["cpu:1"])
    assert (search.measured, search.best_s) == (3, 1.0)
    child.learn(*name, told(items[:2], "cpu:2", [1.0, 4.0]), ["cpu:1"])
    assert (search.measured, search.best_s) == (3, 1.0), "nothing counts twice"
    child.learn(*name, [], ["cpu:1", "cpu:2"])
    assert search.measured == 2
    assert search.best_s == pytest.approx(3.0**0.5)
    assert len(search._fastest.items()) == 2
    child.learn(*name, told(items[2:], "cpu:2", [0.5]), ["cpu:1", "cpu:2"])
    assert search.measured == 3
    assert search.best_s == pytest.approx(1.0)
    child.learn(*name, [], ["cpu:2"])
    assert (search.measured, search.best_s) == (3, 0.5)


def test_candidates_that_the_log_knows_are_not_proposed(child: SearcherChild) -> None:
    operator = matmul(64)
    opened(child, operator, [])
    first = child.propose(operator.workload_hash, "key", 4)
    known = [item["candidate"] for item in first[:2]]
    opened(child, operator, [])
    again = child.propose(operator.workload_hash, "key", 4, known=known)
    assert len(again) == 4
    assert not {item["candidate"] for item in again} & set(known)
    assert {item["candidate"] for item in first[2:]} < {item["candidate"] for item in again}, "the same seed"


def test_searches_of_one_operator_know_nothing_of_each_other(child: SearcherChild) -> None:
    operator = matmul(64)
    for of in ("", "acme/"):
        child.open(operator.workload_hash, operator.workload_json, TARGET, "key", 5, [], [], of)
    one, other = (child.propose(operator.workload_hash, "key", 4, of=of) for of in ("", "acme/"))
    assert one == other
    child.learn(operator.workload_hash, "key", told(one, "cpu:1", [1.0] * 4), ["cpu:1"])
    measured = [child._operators[operator.workload_hash, "key", of]._searches[DIRECT].measured for of in ("", "acme/")]
    assert measured == [4, 0]


def test_a_round_for_a_gpu_is_full_though_most_samples_do_not_fit_a_block(child: SearcherChild) -> None:
    operator = matmul(64)
    child.open(operator.workload_hash, operator.workload_json, str(parse_target("cuda:sm_90", 1)), "key", 5, [], [])
    first = child.propose(operator.workload_hash, "key", 5)
    results = [(item["candidate"], "mps:25", 1e-3 * (1 + at)) for at, item in enumerate(first)]
    child.learn(operator.workload_hash, "key", results, ["mps:25"])
    second = child.propose(operator.workload_hash, "key", 5)
    assert len({item["trace"] for item in (*first, *second)}) == 10


def test_tensor_cores_are_prepared_before_measured_traces_are_read(
    child: SearcherChild, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that has not made the design space would not know the intrinsics that they name."""
    prepared = []
    monkeypatch.setattr(operator_search, "prepare_tensor_cores", lambda *at: prepared.append(at))
    operator = matmul(64)
    child.open(operator.workload_hash, operator.workload_json, str(parse_target("cuda:sm_90", 1)), "key", 5, [], [])
    assert prepared


def test_the_fastest_are_kept_in_order() -> None:
    fastest = Fastest(2)
    for name, secs in (("slow", 3.0), ("fast", 1.0), ("as fast", 1.0), ("faster", 0.5)):
        fastest.add(Trial({}, name), secs)
    assert fastest.items() == ["faster", "fast"]


def test_a_selection_between_a_product_and_its_result_is_computed_in_registers(child: SearcherChild) -> None:
    a, b = te.placeholder((16, 24), name="a"), te.placeholder((24, 32), name="b")
    bounded = topi.maximum(topi.nn.leaky_relu(topi.matmul(a, b), 0.2), te.placeholder((16, 32), name="least"))
    mod = tvm.IRModule({"main": te.create_prim_func([a, b, bounded.op.input_tensors[1], bounded])})
    operator = described("matmul", 1, mod)
    opened(child, operator, [])
    proposed(child, operator, 4)
    search = child._operators[operator.workload_hash, "key", ""]._searches[DIRECT]
    blocks = [sketch.get_child_blocks(sketch.get_sblock("root")) for sketch in search.spaces]
    assert min(map(len, blocks)) == 2


@pytest.fixture(scope="module")
def search() -> OperatorSearch:
    a, b = te.placeholder((24, 40), name="a"), te.placeholder((40, 32), name="b")
    mod = tvm.IRModule({"main": te.create_prim_func([a, b, topi.nn.relu(topi.matmul(a, b))])})
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
    return OperatorSearch(Workload.of(mod), target, seed=1, threads=1)


def test_the_tiles_of_a_loop_make_up_its_extent(search: OperatorSearch) -> None:
    search.propose(4, lambda trace: trace)
    for schedule in search._pending.values():
        features = features_of(schedule.trace)
        loops = [sum(v for name, v in features.items() if name.startswith(f"SamplePerfectTile {n}.")) for n in range(3)]
        assert [round(2**logs) for logs in loops] == [24, 32, 40]
        assert all(math.isfinite(value) for value in features.values())


def test_no_two_sketches_look_alike(search: OperatorSearch) -> None:
    shapes = [
        {name: value for name, value in features_of(space.trace).items() if "Sample" not in name}
        for space in search.spaces
    ]
    assert len(shapes) > 1
    assert all(one != other for at, one in enumerate(shapes) for other in shapes[:at])


Point = dict[str, float]


def drawn(count: int, seed: int) -> list[Point]:
    source = random.Random(seed)
    return [{name: float(source.randrange(8)) for name in "abcd"} for _ in range(count)]


def secs_of(point: Point) -> float:
    """Fastest in the middle of `a`, faster with a large `b`; `c` and `d` mean nothing."""
    return math.exp(0.2 * (point["a"] - 4.0) ** 2 - 0.3 * point["b"])


def taught(points: list[Point], factor: float = 1.0) -> Surrogate:
    model = Surrogate()
    model.add(points, [factor * secs_of(point) for point in points])
    return model


def test_a_few_dozen_points_rank_those_not_seen() -> None:
    model, others = taught(drawn(32, seed=1)), drawn(200, seed=2)
    scores = model.scores(others)
    secs = np.array([secs_of(point) for point in others])
    ranks = [np.argsort(np.argsort(values)) for values in (scores, -secs)]
    assert np.corrcoef(ranks[0], ranks[1])[0, 1] > 0.8
    assert secs[np.argmax(scores)] <= np.quantile(secs, 0.1)


@pytest.mark.parametrize("secs", [[], [0.0, 0.0]], ids=["nothing known", "failures only"])
def test_without_a_time_all_score_alike(secs: list[float]) -> None:
    model = Surrogate()
    model.add(drawn(len(secs), seed=1), secs)
    assert model.scores(drawn(3, seed=2)).tolist() == [1.0, 1.0, 1.0]


def test_what_fails_is_avoided() -> None:
    model = Surrogate()
    points = [{"a": float(at), "fails": float(at % 2)} for at in range(16)]
    model.add(points, [0.0 if point["fails"] else 1e-3 for point in points])
    good, bad = model.scores([{"a": 20.0, "fails": 0.0}, {"a": 20.0, "fails": 1.0}])
    assert good > bad


def test_a_feature_that_only_some_have_counts_as_0_for_the_others() -> None:
    model = Surrogate()
    model.add([{"a": 1.0}, {"a": 2.0, "b": 3.0}] * 4, [1.0, 2.0] * 4)
    one, other = model.scores([{"a": 1.0}, {"a": 1.0, "b": 0.0}])
    assert one == pytest.approx(other)


def test_beyond_the_most_points_the_fastest_and_the_newest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "_MOST_POINTS", 4)
    model = Surrogate()
    model.add([{"a": float(at)} for at in range(8)], [3.0, 1.0, 9.0, 2.0, 8.0, 7.0, 6.0, 5.0])
    assert model._kept() == [1, 3, 6, 7]
    assert len(model.scores([{"a": 0.5}])) == 1


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.floats(1e-7, 10.0) | st.just(0.0)), max_size=30),
    st.floats(1e-3, 1e3),
)
def test_scores_are_finite_above_0_and_do_not_depend_on_the_unit_of_time(
    trials: list[tuple[int, int, float]], factor: float
) -> None:
    points = [{"a": float(a), "b": float(b)} for a, b, _ in trials]
    scores = []
    for scale in (1.0, factor):
        model = Surrogate()
        model.add(points, [scale * secs for _, _, secs in trials])
        scores.append(model.scores([{"a": 1.0, "b": 2.0}, {"a": 9.0}]))
    assert np.isfinite(scores[0]).all()
    assert (scores[0] > 0).all()
    assert np.allclose(scores[0], scores[1], rtol=1e-3)
