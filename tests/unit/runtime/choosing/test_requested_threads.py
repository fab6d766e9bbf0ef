"""A number of threads that the caller asks for, whatever the share is."""

from __future__ import annotations

import pytest

import fractune
from fractune_core.analysis.match import DEFAULT_POLICY
from fractune_core.errors import BadRequest, ShareUnavailable
from fractune_runtime.choosing import match_share
from tests.unit.conftest import Small
from tests.unit.runtime.choosing.test_under_limit import MINILM, a_bundle, here


def test_two_threads_under_half_a_core() -> None:
    """Without a request it is one thread there (for the goal of a loop)."""
    found, share = match_share(a_bundle(MINILM), here(500), DEFAULT_POLICY, "throughput", 2)
    assert (found.variant, found.threads, share.units) == ("cpu:2", 2, 2)
    assert found.reason.endswith("; 2 threads, as requested")


def test_there_must_be_a_cpu_for_each() -> None:
    with pytest.raises(ShareUnavailable, match="threads is 3, and there are 2 CPUs; ask for 2 at most"):
        match_share(a_bundle(MINILM), here(500), DEFAULT_POLICY, "latency", 3)


def test_a_model_and_a_pool_have_them(small: Small) -> None:
    model = fractune.load(small.bundle, threads=1)
    assert model.threads == 1
    assert model.run(model.random_inputs())
    with fractune.ReplicaPool(small.bundle, replicas=1, threads=1) as pool:
        assert (pool.replicas, pool.threads) == (1, 1)
        assert pool.run(pool.random_inputs())


@pytest.mark.parametrize("threads", [0, -1])
def test_no_model_has_fewer_than_one(small: Small, threads: int) -> None:
    with pytest.raises(BadRequest, match=f"threads is {threads}; give 1 or more"):
        fractune.load(small.bundle, threads=threads)
