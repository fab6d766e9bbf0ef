"""Ranges such as cpu:1..2: one variant for all of it, whatever part the process has at the moment."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fractune
from fractune_core.analysis.match import DEFAULT_POLICY, How, Policy
from fractune_core.errors import BadBundle, BadRequest, ShareUnavailable
from fractune_core.files.bundles import Bundle
from fractune_core.files.compared import ONNX_RUNTIME, Compared, Runtime, Timed
from fractune_core.shares import GrantedShare, Share
from fractune_runtime.choosing import VariantChoice, match_share, runtime_choice
from fractune_runtime.cpu import ShareHere, confine
from tests.support.client_samples import bundle_bytes, variants
from tests.support.real_bundle import Small
from tests.unit.runtime.choosing.test_variants import with_variants
from tests.unit.runtime.conftest import Clock

MEASURED = {
    "cpu:1": {"cpu:1": 1.0, "cpu:2": 2.0, "cpu:1..2": 1.1, "untuned": 9.0},
    "cpu:2": {"cpu:1": 2.0, "cpu:2": 1.0, "cpu:1..2": 1.1, "untuned": 9.0},
    "cpu:4": {"cpu:1": 0.1, "cpu:2": 1.0, "cpu:1..2": 9.0, "untuned": 9.0},
}
RANGE = Share.parse("cpu:1..2")


def a_bundle(**changes: Any) -> Bundle:
    shares = {each: GrantedShare(each, int(each[-1]), 8, "core", 1, reserved=False).to_json() for each in MEASURED}
    names = ("cpu:1", "cpu:2", "cpu:1..2", "untuned")
    return Bundle(bundle_bytes(**{"shares": shares, "variants": variants(*names), "measured": MEASURED, **changes}))


def chosen(bundle: Bundle, units: int, wide: Share = RANGE, threads: int | None = None) -> VariantChoice:
    here = ShareHere(units, tuple(range(units)), "made up", within=wide)
    choice, _ = match_share(bundle, here, DEFAULT_POLICY, "latency", threads)
    return choice


@pytest.mark.parametrize("units", [1, 2])
def test_the_variant_of_the_least_loss_within_the_range_serves_all_of_it(units: int) -> None:
    choice = chosen(a_bundle(), units)
    assert (choice.variant, choice.how, choice.threads) == ("cpu:1..2", How.ROBUST, units)
    assert choice.regret == pytest.approx(0.1)
    assert choice.reason == (
        "it is at most 10.0 % slower than the fastest at the measured shares of cpu:1..2 (1, 2 cores)"
    )
    assert chosen(a_bundle(), units, threads=1).threads == 1


def test_a_range_that_no_job_named_has_the_best_of_the_bundles_variants() -> None:
    assert chosen(a_bundle(), 2, Share.parse("cpu:2..4")).variant == "cpu:1"


def test_a_policy_that_allows_exact_matches_alone_has_the_variant_of_the_present_share() -> None:
    here = ShareHere(2, (0, 1), "made up", within=RANGE)
    choice, _ = match_share(a_bundle(), here, Policy(loosest=How.EXACT), "latency")
    assert (choice.variant, choice.how) == ("cpu:2", How.EXACT)


def test_a_tiny_model_has_one_thread_everywhere_in_a_range() -> None:
    tiny = {share: {name: secs * 1e-6 for name, secs in times.items()} for share, times in MEASURED.items()}
    choice = chosen(a_bundle(measured=tiny), 2)
    assert (choice.variant, choice.threads) == ("cpu:1..2", 1)


def test_a_range_beyond_the_times_is_untuned_and_says_so() -> None:
    for wide, says in (("cpu:1..3", "no times at cpu:3"), ("cpu:3..6", "no times at cpu:3, cpu:6")):
        choice = chosen(a_bundle(), 1, Share.parse(wide))
        assert (choice.variant, choice.is_last_resort) == ("untuned", True)
        assert f"{says}, so its loss within {wide} is not known; tune the model for {wide}" in choice.reason


def test_with_graphs_if_they_were_faster_at_every_share_of_it() -> None:
    names = ("mps:25", "mps:50", "mps:25+graph", "mps:50+graph", "untuned")
    shares = {
        each: GrantedShare(each, units, 132, "sm", 1, reserved=False).to_json()
        for each, units in (("mps:25", 32), ("mps:50", 66))
    }
    measured = {each: {"mps:25": 1.0, "mps:50": 1.5, "untuned": 9.0} for each in shares}
    here = ShareHere(66, (0,), "made up", "mps", within=Share.parse("mps:25..50"))
    for best, variant in ((["mps:25+graph", "mps:50+graph"], "mps:25+graph"), (["mps:25+graph", "mps:50"], "mps:25")):
        times = {"threads": 1, "loop_s": 1.0, "p50_s": 1.0, "p99_s": None}
        served = {
            share: {goal: {"variant": name, **times} for goal in ("latency", "throughput")}
            for share, name in zip(shares, best, strict=True)
        }
        bundle = a_bundle(shares=shares, variants=variants(*names), measured=measured, served=served)
        choice, there = match_share(bundle, here, DEFAULT_POLICY, "latency")
        assert (choice.variant, choice.threads, there.units) == (variant, 1, 66)


@pytest.mark.parametrize(("at", "variant"), [(["cpu:1", "cpu:2"], ONNX_RUNTIME), (["cpu:2"], "cpu:1..2")])
def test_another_runtime_that_won_at_all_of_it_runs_the_model(at: list[str], variant: str) -> None:
    import onnxruntime

    won = Compared({"fractune": Timed(2e-3, 3e-3), ONNX_RUNTIME: Timed(1e-3, 1.5e-3, (2.0, 1.9, 2.1), (2.0, 1.9, 2.1))})
    bundle = a_bundle()
    bundle.manifest |= {  # the file of such a bundle has the model too
        "runtimes": {ONNX_RUNTIME: Runtime(onnxruntime.__version__, {}).to_json()},
        "compared": {share: won.to_json() for share in at},
    }
    here = ShareHere(2, (0, 1), "made up", within=RANGE)
    own = chosen(bundle, 2)
    assert runtime_choice(bundle, here, own, "latency")[0].variant == variant
    assert runtime_choice(bundle, replace(here, within=None), own, "latency")[0].variant == ONNX_RUNTIME


@pytest.mark.parametrize("name", ["cpu:1..8", "cpu:2..1", "cpu:1..2..4", "mps:1..4"])
def test_a_variant_of_a_range_that_is_not_among_the_shares_is_refused(name: str) -> None:
    with pytest.raises(BadBundle, match=f"the variant '{name}' is not among 'shares'"):
        a_bundle(variants=variants(name, "untuned"), measured={})


def test_a_process_goes_on_with_its_variant_when_its_cores_change(
    small: Small, tmp_path: Path, two_cpus: list[int], later: Clock
) -> None:
    """The same code answers on one core and on two: only the number of threads follows the affinity."""
    measured = {share: {"cpu:1": 1.0, "cpu:2": 1.5, "untuned": 9.0} for share in ("cpu:1", "cpu:2")}
    names = ("cpu:1", "cpu:2", "untuned")
    path = with_variants(small, tmp_path / "m.fractune", *names, measured=measured, choosing=measured)
    os.sched_setaffinity(0, two_cpus)
    model = fractune.load(path, share="cpu:1..2")
    inputs = model.random_inputs()
    found, outputs = [], []
    for cpus in (two_cpus, two_cpus[:1], two_cpus):
        os.sched_setaffinity(0, cpus)
        later(1.0)
        outputs.append(model.run(inputs)[0])
        found.append((model.choice.variant, model.choice.how, model.threads))
    assert found == [("cpu:1", How.ROBUST, 2), ("cpu:1", How.ROBUST, 1), ("cpu:1", How.ROBUST, 2)]
    np.testing.assert_array_equal(outputs[1], outputs[0])
    with pytest.raises(ShareUnavailable, match=r"'cpu:3\.\.4' is larger than the share of this process: 2 cores by"):
        fractune.load(path, share="cpu:3..4")
    with pytest.raises(BadRequest, match=r"'cpu:1\.\.2': replicas are dealt to whole cores; write cpu:2"):
        fractune.ReplicaPool(path, share="cpu:1..2")


def test_confining_to_a_range_takes_as_many_cpus_as_there_are(two_cpus: list[int]) -> None:
    os.sched_setaffinity(0, two_cpus)
    confine(Share.parse("cpu:1..4"))
    assert os.sched_getaffinity(0) == set(two_cpus)
    with pytest.raises(ShareUnavailable, match=r"'cpu:3\.\.4' is larger than the 2 cores of this process"):
        confine(Share.parse("cpu:3..4"))
