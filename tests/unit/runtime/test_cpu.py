"""What a processor says of itself, and the share that a process is under."""

import os
import platform
from pathlib import Path

import pytest

from fractune_core.errors import BadBundle, BadRequest, ShareUnavailable
from fractune_core.files.bundles import Bundle
from fractune_core.shares import Share
from fractune_runtime.cpu import CPUINFO, check_processor, confine, isa_name, read_cpuinfo, share_here
from tests.support.client_samples import DEVICE, bundle_bytes
from tests.support.hardware.cgroup_tree import a_host

ROCKETLAKE = {"vendor_id": "GenuineIntel", "cpu family": "6", "model": "167", "flags": "fpu sse2 avx2 pni avx512_vnni"}


def cpuinfo(path: Path, **changes: str) -> Path:
    facts = {"processor": "0", **ROCKETLAKE, **changes}
    lines = "\n".join(f"{name}\t: {value}" for name, value in facts.items())
    path.write_text(f"{lines}\n\nprocessor\t: 1\nflags\t\t: none\n")
    return path


def a_bundle(*features: str, kind: str = "cpu", isa: str = "rocketlake", architecture: str = "") -> Bundle:
    device = {**DEVICE.to_json(), "kind": kind, "isa": isa}
    code = {"architecture": architecture or platform.machine(), "features": list(features)}
    return Bundle(bundle_bytes(device=device, code=code))


def test_a_processor_that_has_all_that_the_code_needs(tmp_path: Path) -> None:
    check_processor(a_bundle("sse2", "sse3", "avx2", "avx512vnni"), cpuinfo(tmp_path / "cpuinfo"))


@pytest.mark.parametrize(
    ("bundle", "says"),
    [
        (a_bundle("avx2", "avx512f", "sha"), "may use avx512f, sha, which this machine lacks; tune the model here"),
        (a_bundle("a-feature-of-tomorrow"), "may use a-feature-of-tomorrow"),
        (a_bundle(isa="zx81"), "is for the CPU 'zx81', this one is 'rocketlake'"),
        (a_bundle(architecture="m68k"), "is for the architecture 'm68k'"),
    ],
)
def test_another_machine_is_refused(tmp_path: Path, bundle: Bundle, says: str) -> None:
    with pytest.raises(BadBundle, match=says):
        check_processor(bundle, cpuinfo(tmp_path / "cpuinfo"))


def test_a_machine_that_tells_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadBundle, match="tune the model here"):
        check_processor(a_bundle("sse2"), tmp_path / "none")


@pytest.mark.parametrize(
    ("vendor", "family", "model", "flags", "name"),
    [
        ("AuthenticAMD", 0x17, 0x31, "", "znver2"),
        ("AuthenticAMD", 0x19, 0x01, "", "znver3"),
        ("AuthenticAMD", 0x19, 0x11, "", "znver4"),
        ("AuthenticAMD", 0x1A, 0x02, "", "znver5"),
        ("GenuineIntel", 6, 0x4F, "", "broadwell"),
        ("GenuineIntel", 6, 0x55, "avx512f", "skylake-avx512"),
        ("GenuineIntel", 6, 0x55, "avx512f avx512_vnni", "cascadelake"),
        ("GenuineIntel", 6, 0x55, "avx512_vnni avx512_bf16", "cooperlake"),
        ("GenuineIntel", 6, 0x6A, "", "icelake-server"),
        ("GenuineIntel", 6, 0x8F, "", "sapphirerapids"),
        ("GenuineIntel", 6, 0xFE, "", ""),
        ("CyrixInstead", 6, 0x8F, "", ""),
    ],
)
def test_names_of_processors(vendor: str, family: int, model: int, flags: str, name: str) -> None:
    facts = {"vendor_id": vendor, "cpu family": str(family), "model": str(model), "flags": flags}
    assert isa_name(facts) == name


def test_a_kernel_that_tells_no_numbers() -> None:
    assert isa_name({"vendor_id": "GenuineIntel", "cpu family": "6"}) == ""


def test_llvm_agrees_about_this_host() -> None:
    """Its name, and the instruction sets: none is taken for there that is not, and code that is made here runs here.

    What a processor has beyond that may lack a flag: Linux has none for AVX10.
    """
    from fractune_runtime.cpu import _FLAGS
    from fractune_workers.children.tvm_api import target

    present, absent = target._host_features()
    facts = read_cpuinfo(CPUINFO)
    assert isa_name(facts) in {target.host_cpu(), ""}
    flags = set(facts["flags"].split())
    computing = {feature for feature in (*present, *absent) if feature.startswith(target._COMPUTES)}
    listed = {feature for feature in computing if _FLAGS.get(feature, feature) in flags}
    assert listed <= set(present)
    assert set(target.needed_features(target.default_target(1))) <= listed


def test_without_a_quota_the_affinity_counts(tmp_path: Path) -> None:
    here = share_here(a_host(tmp_path, cpus="0-2,8,10-11", cpu_max="max 100000"))
    assert (here.units, here.cpus) == (6, (0, 1, 2, 8, 10, 11))
    assert here.reason == "6 cores by its affinity"


@pytest.mark.parametrize(
    ("quota", "units", "says"),
    [
        ("200000 100000", 2, "2 cores by the quota of its cgroup (its affinity has 4 cores)"),
        ("150000 100000", 1, "1.5 cores by the quota of its cgroup (its affinity has 4 cores)"),
        ("50000 100000", 1, "0.5 cores by the quota of its cgroup (its affinity has 4 cores)"),
        ("800000 100000", 4, "4 cores by its affinity"),
    ],
)
def test_a_quota_counts_whole_cores_and_at_least_one(tmp_path: Path, quota: str, units: int, says: str) -> None:
    here = share_here(a_host(tmp_path, cpu_max=quota))
    assert (here.units, here.cpus, here.reason) == (units, (0, 1, 2, 3), says)
    assert (here.quota is None) == (units == 4)


def test_a_system_that_tells_nothing_has_the_affinity_alone(tmp_path: Path) -> None:
    here = share_here(tmp_path)
    assert here.cpus == tuple(sorted(os.sched_getaffinity(0)))


def test_this_process() -> None:
    here = share_here()
    assert 1 <= here.units <= len(here.cpus)
    assert set(here.cpus) == os.sched_getaffinity(os.getpid())


def test_confining_takes_the_first_cpus_and_no_more_than_there_are(affinity: set[int]) -> None:
    confine(Share.parse("cpu:1"))
    assert os.sched_getaffinity(0) == {min(affinity)}
    with pytest.raises(ShareUnavailable, match=r"share 'cpu:2' is larger than the 1 core of this"):
        confine(Share.parse("cpu:2"))
    with pytest.raises(BadRequest, match="is of a GPU"):
        confine(Share.parse("mps:25"))
