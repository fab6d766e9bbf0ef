"""Replicas of a small model that was compiled for real: threads, CPUs, the queue, and how they end."""

import gc
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

import fractune
from fractune_core.errors import BadBundle, BadRequest, FractuneError
from fractune_core.shares import Device
from fractune_runtime import runner
from fractune_runtime.model import LOOK_S
from fractune_workers.confinement.cpu import thread_affinities
from tests.support.client_samples import bundle_bytes
from tests.support.processes.forked import succeeds_in_child
from tests.support.processes.redis_process import wait_until
from tests.support.real_bundle import Small, compile_model
from tests.unit.runtime.conftest import Clock

_WEIGHTS_MIB = 32


@pytest.fixture
def pool(small: Small, two_cpus: list[int]) -> Iterator[fractune.ReplicaPool]:
    os.sched_setaffinity(0, two_cpus)
    with fractune.ReplicaPool(small.bundle, replicas=2) as pool:
        yield pool


def replica_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("fractune-replica")]


def keep_both_busy(pool: fractune.ReplicaPool) -> None:
    """Requests until each replica has a thread."""
    inputs = pool.random_inputs()
    wait_until(lambda: len([pool.submit(inputs) for _ in range(8)]) == 8 and len(replica_threads()) == pool.replicas)


def test_many_requests_give_what_the_model_gives(small: Small, pool: fractune.ReplicaPool) -> None:
    model = fractune.load(small.bundle, share="cpu:1")
    inputs = [pool.random_inputs(seed) for seed in range(20)]
    for each, future in zip(inputs, [pool.submit(each) for each in inputs], strict=True):
        np.testing.assert_allclose(future.result()[0], model.run(each)[0], rtol=1e-5)
    np.testing.assert_allclose(pool.run(inputs[0])[0], model.run(inputs[0])[0], rtol=1e-5)
    assert (pool.replicas, pool.threads, pool.choice.variant) == (2, 1, "cpu:1")
    assert [str(each) for each in (*pool.inputs, *pool.outputs)] == ["x float32[1, 4, 16, 16]", "y float32[1, 10]"]


def test_each_replica_has_cpus_of_its_own(pool: fractune.ReplicaPool, two_cpus: list[int]) -> None:
    keep_both_busy(pool)
    own = {each.native_id for each in replica_threads()}
    apart = [{cpu} for cpu in two_cpus]
    wait_until(lambda: sorted((at for each, at in thread_affinities().items() if each in own), key=sorted) == apart)
    assert os.sched_getaffinity(0) == set(two_cpus)


def test_more_replicas_than_cpus_share_them(small: Small, two_cpus: list[int]) -> None:
    os.sched_setaffinity(0, two_cpus[:1])
    with fractune.ReplicaPool(small.bundle, replicas=3) as pool:
        keep_both_busy(pool)
        assert len(replica_threads()) == 3


def test_replicas_of_a_requested_share(small: Small) -> None:
    with fractune.ReplicaPool(small.bundle, share="cpu:1") as pool:
        assert (pool.replicas, pool.threads) == (1, 1)


_MEMORY = """
import sys
import fractune

def anonymous_mib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("RssAnon:"))

model = fractune.load(sys.argv[2])
model.run(model.random_inputs())
before = anonymous_mib()
pool = fractune.ReplicaPool(sys.argv[1], replicas=4)
for each in [pool.submit(pool.random_inputs()) for _ in range(40)]:
    each.result()
print(anonymous_mib() - before)
"""


def test_the_weights_are_in_memory_once(small: Small, tmp_path: Path) -> None:
    large = compile_model(wide_model(tmp_path / "wide.onnx"), tmp_path / "wide.fractune")
    command = [sys.executable, "-c", _MEMORY, str(large), str(small.bundle)]
    grown_mib = float(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)
    assert _WEIGHTS_MIB <= grown_mib < 1.5 * _WEIGHTS_MIB


def wide_model(path: Path) -> Path:
    """A product with large weights."""
    weights = np.ones((1024, _WEIGHTS_MIB * 256), "float32")
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 1024])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, weights.shape[1]])
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = onnx.helper.make_graph([node], "wide", [x], [y], [onnx.numpy_helper.from_array(weights, "w")])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_a_share_that_changes_while_others_run(later: Clock, pool: fractune.ReplicaPool, two_cpus: list[int]) -> None:
    inputs = pool.random_inputs()
    (expected,) = pool.run(inputs)
    futures = []
    for turn in range(6):
        os.sched_setaffinity(0, two_cpus[: 1 + turn % 2])
        later(LOOK_S)
        futures += [pool.submit(inputs) for _ in range(10)]
        assert pool.share.cpus == tuple(two_cpus[: 1 + turn % 2])
    for each in futures:
        np.testing.assert_allclose(each.result()[0], expected, rtol=1e-5)
    wait_until(lambda: len(replica_threads()) <= pool.replicas)


def test_wrong_inputs_are_told_at_once(pool: fractune.ReplicaPool) -> None:
    with pytest.raises(BadRequest, match=r"the model takes x float32\[1, 4, 16, 16\]"):
        pool.submit({})


def test_closing_answers_the_queue_and_ends_the_threads(pool: fractune.ReplicaPool) -> None:
    futures = [pool.submit(pool.random_inputs()) for _ in range(20)]
    pool.close()
    assert all(each.done() and each.result() for each in futures)
    assert not replica_threads()
    pool.close()
    with pytest.raises(FractuneError, match=r"the replicas of small\.fractune are closed; make a new ReplicaPool"):
        pool.run(pool.random_inputs())


def test_a_callback_of_a_future_may_close_the_pool(
    pool: fractune.ReplicaPool, caplog: pytest.LogCaptureFixture
) -> None:
    closed = threading.Event()

    def close(_: object) -> None:
        pool.close()
        closed.set()

    futures = [pool.submit(pool.random_inputs()) for _ in range(50)]
    futures[-1].add_done_callback(close)
    assert closed.wait(60)
    assert not caplog.records
    wait_until(lambda: not replica_threads())


def test_a_pool_without_references_ends_its_threads(small: Small) -> None:
    pool = fractune.ReplicaPool(small.bundle, replicas=2)
    pool.run(pool.random_inputs())
    assert replica_threads()
    del pool
    gc.collect()
    wait_until(lambda: not replica_threads())


def test_a_forked_child_answers_with_threads_of_its_own(pool: fractune.ReplicaPool) -> None:
    inputs = pool.random_inputs()
    (expected,) = pool.run(inputs)
    assert succeeds_in_child(lambda: np.allclose(pool.run(inputs)[0], expected, rtol=1e-5))
    assert pool.run(inputs)[0].shape == (1, 10)


def test_a_child_that_is_forked_while_a_thread_submits_does_not_wait_for_it(pool: fractune.ReplicaPool) -> None:
    inputs = pool.random_inputs()
    pool.run(inputs)
    with pool._turn, pool._follower._turn:
        assert succeeds_in_child(lambda: pool.run(inputs))


def test_a_forked_child_follows_an_affinity_that_it_got_before_its_first_request(
    small: Small, two_cpus: list[int], later: Clock
) -> None:
    os.sched_setaffinity(0, two_cpus)
    with fractune.ReplicaPool(small.bundle) as pool:
        inputs = pool.random_inputs()
        pool.run(inputs)

        def follows() -> bool:
            os.sched_setaffinity(0, two_cpus[:1])
            later(LOOK_S)
            pool.run(inputs)
            return pool.share.units == 1

        assert succeeds_in_child(follows)


def test_a_pool_goes_on_where_threads_cannot_be_started(
    later: Clock, pool: fractune.ReplicaPool, two_cpus: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("Resource temporarily unavailable")

    monkeypatch.setattr(runner, "use_cpus", refuse)
    os.sched_setaffinity(0, two_cpus[:1])
    later(LOOK_S)
    with pytest.warns(RuntimeWarning, match=r"runs as before, .* cannot be started \(Resource temporarily"):
        assert pool.run(pool.random_inputs())
    assert pool.share.cpus == tuple(two_cpus)
    wait_until(lambda: len(replica_threads()) <= pool.replicas)


def test_what_is_refused(small: Small, pool: fractune.ReplicaPool, tmp_path: Path) -> None:
    for number in (0, 257):
        with pytest.raises(BadRequest, match=f"replicas is {number}; give 1 to 256"):
            fractune.ReplicaPool(small.bundle, replicas=number)
    with pytest.raises(BadRequest, match="is of a GPU"):
        fractune.ReplicaPool(small.bundle, share="mps:25")
    with pytest.raises(TypeError, match=r"cannot be pickled; give the bundle's path to the other process"):
        pickle.dumps(pool)
    with pytest.raises(BadBundle):
        fractune.ReplicaPool(tmp_path / "none.fractune")
    device = Device("cuda", "sm_90", 132, 140, 51_200).to_json()
    on_gpu = tmp_path / "gpu.fractune"
    on_gpu.write_bytes(bundle_bytes(device=device))
    with pytest.raises(BadRequest, match=r"gpu\.fractune is for a GPU, and replicas run on the CPU"):
        fractune.ReplicaPool(on_gpu)
