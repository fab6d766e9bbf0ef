"""Models that one thread runs faster than a pool of threads, by the times in the bundle."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fractune
from fractune_core.analysis.match import DEFAULT_POLICY
from fractune_core.cpu_limits import POOL_COST_S
from fractune_core.files.bundles import Bundle, write_bundle
from fractune_runtime.choosing import TINY_S, VariantChoice, match_share
from fractune_runtime.cpu import ShareHere
from fractune_runtime.runner import CallersThread, Runner
from tests.support.client_samples import bundle_bytes
from tests.support.real_bundle import Small

Times = dict[str, dict[str, float]]


def chosen(measured: Times, units: int = 4) -> VariantChoice | None:
    """None if a pool runs it."""
    here = ShareHere(units, tuple(range(units)), "made up")
    choice, _ = match_share(Bundle(bundle_bytes(measured=measured)), here, DEFAULT_POLICY, "latency")
    if not choice.reason.startswith("one thread runs it"):
        assert choice.threads == units
        return None
    assert choice.threads == 1
    return choice


@pytest.mark.parametrize(
    ("alone_s", "pool_s", "variant"),
    [
        (1e-6, 1e-6, "cpu:1"),
        (0.9 * TINY_S + 0.9 * POOL_COST_S, 0.9 * TINY_S, "cpu:1"),
        (0.9 * TINY_S + 1.1 * POOL_COST_S, 0.9 * TINY_S, None),
        (1.1 * TINY_S, 1.1 * TINY_S, None),
        (1.0, 0.3, None),
    ],
)
def test_one_thread_where_a_pool_gains_less_than_it_costs(alone_s: float, pool_s: float, variant: str | None) -> None:
    measured = {"cpu:1": {"cpu:1": alone_s, "cpu:4": 2 * alone_s}, "cpu:4": {"cpu:1": 2 * pool_s, "cpu:4": pool_s}}
    choice = chosen(measured)
    assert (choice and choice.variant) == variant


def test_without_times_at_one_core_one_thread_takes_at_most_all_threads_time() -> None:
    choice = chosen({"cpu:4": {"cpu:4": POOL_COST_S / 3.1}})
    assert choice is not None
    assert choice.variant == "cpu:4"
    assert chosen({"cpu:4": {"cpu:4": POOL_COST_S / 2.9}}) is None
    assert chosen({}) is None


def test_the_reason_has_the_times_that_it_compares() -> None:
    choice = chosen({"cpu:1": {"cpu:1": 1.04e-3}, "cpu:4": {"cpu:4": 0.9995e-3}})
    assert choice is not None
    assert choice.reason == (
        "one thread runs it, because 4 threads would gain less than the 50 us that handing work to them costs: "
        "the model takes 1040 us on 1 core, and 999.5 us on 4"
    )
    choice = chosen({"cpu:4": {"cpu:4": 1e-5}})
    assert choice is not None
    assert choice.reason.endswith(": the model takes at most 40 us on 1 core, and 10 us on 4")


def test_a_share_of_one_core_needs_no_choice() -> None:
    assert chosen({"cpu:1": {"cpu:1": 1e-6}}, units=1) is None


def small_with(small: Small, path: Path, measured: Times) -> Any:
    bundle = Bundle(small.bundle)
    entries = {name: bundle.read(name) for name in bundle.manifest["sha256"]}
    with path.open("wb") as file:
        write_bundle(file, {**bundle.manifest, "measured": measured, "choosing": measured}, entries)
    return fractune.load(path)


def test_a_tiny_model_has_no_pool_at_any_share_and_says_why(small: Small, tmp_path: Path, two_cpus: list[int]) -> None:
    os.sched_setaffinity(0, two_cpus)
    times = {"cpu:1": {"cpu:1": 1e-5}, "cpu:2": {"cpu:2": 1e-5}}
    tiny = small_with(small, tmp_path / "tiny.fractune", times)
    large = small_with(small, tmp_path / "large.fractune", {"cpu:1": {"cpu:1": 2.0}, "cpu:2": {"cpu:2": 1.0}})
    assert (type(tiny._runner), type(large._runner)) == (CallersThread, Runner)
    assert (tiny.choice.variant, large.choice.variant) == ("cpu:1", "cpu:2")
    assert (tiny.threads, large.threads) == (1, 2)
    inputs = tiny.random_inputs()
    np.testing.assert_allclose(tiny.run(inputs)[0], large.run(inputs)[0], rtol=1e-5)
