"""Targets without TVM, and those of strangers: each attribute is on the list and has a value of its form."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from fractune_core.errors import BadRequest
from fractune_core.targets import (
    capability,
    check_target,
    checked,
    read_attributes,
    read_target,
    runs_on,
    target_key,
    with_cores,
)

H100 = '{"kind": "cuda", "arch": "sm_90", "keys": ["cuda", "gpu"]}'


def test_a_gpu_has_no_cores() -> None:
    assert with_cores(H100, 4) == H100
    assert json.loads(with_cores('{"kind": "llvm"}', 4)) == {"kind": "llvm", "num-cores": 4}


def test_the_key_tells_fast_math_apart() -> None:
    fast = json.dumps({**json.loads(H100), "keys": ["cuda", "gpu", "fast-math"]})
    assert target_key(fast) != target_key(H100)


@pytest.mark.parametrize(
    ("arch", "number"),
    [("sm_90", 90), ("sm_90a", 90), ("sm_100f", 100), ("sm_120", 120), ("90", None), ("sm_9", None), ("znver3", None)],
)
def test_the_capability_is_read_from_the_architecture(arch: str, number: int | None) -> None:
    assert capability(arch) == number


@pytest.mark.parametrize(
    ("arch", "own", "others"),
    [
        ("sm_90", ["sm_90"], ["znver3"]),
        ("sm_90a", ["sm_90"], []),
        ("sm_80", ["sm_86"], ["sm_90"]),
        ("sm_86", [], ["sm_80"]),
        ("sm_100", ["sm_103"], []),
        ("sm_100f", ["sm_103"], []),
        ("sm_100a", [], ["sm_103"]),
        ("sm_120", [], ["sm_100"]),
        ("", [], ["sm_90"]),
    ],
)
def test_machine_code_runs_on_its_own_generation_and_on_no_other(arch: str, own: list[str], others: list[str]) -> None:
    assert [isa for isa in own + others if runs_on(arch, isa)] == own


LLVM, CUDA = {"kind": "llvm"}, {"kind": "cuda", "arch": "sm_90"}
FEATURES = {f"feature.{name}": True for name in ("is_aarch64", "has_asimd", "has_sve")}
BLOCK = {"max_shared_memory_per_block": 49152, "max_threads_per_block": 1024, "thread_warp_size": 32}
PROGRAM = ["-print-changed:int=3", "-print-changed-diff-path:string=/tmp/program"]


@pytest.mark.parametrize("text", ["", "native", " host "])
def test_the_processor_of_a_worker_is_always_allowed(text: str) -> None:
    check_target(text)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("llvm", LLVM),
        (" llvm -mcpu=skylake-avx512 ", {**LLVM, "mcpu": "skylake-avx512"}),
        ("llvm -mattr=+sse4.1,-fma -num-cores=4", {**LLVM, "mattr": ["+sse4.1", "-fma"], "num-cores": 4}),
        ("llvm -keys=arm_cpu,cpu", {**LLVM, "keys": ["arm_cpu", "cpu"]}),
        ("cuda:sm_90", CUDA),
        ("cuda:sm_90a", {"kind": "cuda", "arch": "sm_90a"}),
        ("cuda:sm_90+tf32+fast-math", {**CUDA, "keys": ["cuda", "gpu", "tf32", "fast-math"]}),
        ("cuda -arch=sm_80", {"kind": "cuda", "arch": "sm_80"}),
        ("nvidia/nvidia-h100", "nvidia/nvidia-h100"),
        ("aws/cpu/c5.large", "aws/cpu/c5.large"),
    ],
)
def test_what_a_callers_text_means(text: str, meant: object) -> None:
    assert read_target(text) == meant


@pytest.mark.parametrize(
    "attributes",
    [
        {**LLVM, "tag": "", "keys": ["cpu"], "mtriple": "x86_64-conda-linux-gnu", "num-cores": 2},
        {**LLVM, "keys": ["arm_cpu", "cpu"], **FEATURES, "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1"},
        {**LLVM, "device": "arm_cpu", "model": "bcm2837", "mtriple": "armv7l-linux-gnueabihf", "mfloat-abi": "hard"},
        {**LLVM, "device": "riscv_cpu", "mabi": "lp64d", "mtriple": "riscv64-unknown-linux-gnu"},
        {**CUDA, "keys": ["cuda", "gpu"], "max_num_threads": 1024, **BLOCK},
        {**CUDA, "registers_per_block": 65536, "l2_cache_size_bytes": 52428800, **BLOCK},
    ],
)
def test_what_tvm_writes_itself_is_allowed(attributes: dict[str, Any]) -> None:
    assert read_attributes(json.dumps(attributes)) == attributes
    assert read_target(json.dumps(attributes)) == attributes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rocketlake", "'rocketlake' is neither a CPU (llvm) nor an NVIDIA GPU (cuda)"),
        ("c -mcpu=x", "'c' is neither"),
        ("{nonsense", "it is not JSON"),
        ('{"a":' * 100_000, "it is not JSON"),
        ('{"mcpu": "skylake"}', "it names no kind"),
        ('{"kind": ["llvm"]}', "['llvm'] is neither"),
        ("llvm mcpu=skylake", "cannot read 'mcpu=skylake'"),
        ("llvm -mattr=avx2", "mattr is ['avx2'], and not a list of +NAME and -NAME"),
        ("llvm -cl-opt=-print-after-all:bool=1", "a target of the kind llvm has no 'cl-opt'; it may have kind, tag"),
        ("cuda", "names no architecture"),
        ('{"kind": "cuda"}', "names no architecture"),
        ("cuda:90", "arch is '90', and not an architecture such as sm_90"),
        ("cuda:sm_90b", "arch is 'sm_90b'"),
        ("cuda:sm_90+fastmath", "unknown option 'fastmath'; there are +fast-math and +tf32"),
        ("../../etc/passwd", "it is not a tag of TVM"),
        ("nvidia/a b", "cannot read 'b'"),
        ("llvm\n-mcpu=x\n-host=c", "has no 'host'"),
        ("llvm -mcpu=x\x1b[31m", "mcpu is"),
    ],
)
def test_other_texts_are_refused_in_a_line(text: str, words: str) -> None:
    with pytest.raises(BadRequest) as caught:
        check_target(text)
    said = str(caught.value)
    assert words in said
    assert said.isprintable()
    assert len(said) < 800


@pytest.mark.parametrize(
    ("kind", "name", "values"),
    [
        (LLVM, "cl-opt", [PROGRAM, []]),
        (LLVM, "host", [{"kind": "llvm", "cl-opt": PROGRAM}, "llvm"]),
        (LLVM, "tag", ["nvidia/nvidia-h100"]),
        (LLVM, "runtime", ["c"]),
        (LLVM, "mcpu", ["-print-after-all", "skylake -print-after-all", "skylake\n", "skylake,+avx2"]),
        (LLVM, "mcpu", ["a" * 65, ["skylake"]]),
        (LLVM, "mattr", ["+avx2", ["+avx2,-print-after-all"], ["+avx2 -print-after-all"], ["-"]]),
        (LLVM, "mattr", [["--print-after-all"], [["+avx2"]], ["+avx2"] * 513]),
        (LLVM, "mtriple", ["x86_64", "nvptx64-nvidia-cuda", "x86_64-linux-gnu -print-after-all"]),
        (LLVM, "num-cores", [0, True, 4.0, "4", 1 << 40]),
        (LLVM, "keys", ["cpu", ["cpu", "cl-opt"]]),
        (LLVM, "device", ["cl"]),
        (LLVM, "feature.has_sve", [1]),
        (CUDA, "arch", [90, "sm_90 -I/etc", "sm_90\n"]),
        (CUDA, "keys", [["cuda", "gpu", "TF32"]]),
        (CUDA, "cl-opt", [PROGRAM]),
        (CUDA, "host", [{"kind": "llvm"}]),
        (CUDA, "max_threads_per_block", [-1]),
        (CUDA, "max_shared_memory_per_block", [1 << 40]),
        (CUDA, "ptx", ["x"]),
    ],
)
def test_attributes_that_do_more_than_describe_a_processor_are_refused(
    kind: dict[str, Any], name: str, values: list[Any]
) -> None:
    for value in values:
        with pytest.raises(BadRequest):
            checked("of a test", {**kind, name: value})


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["+avx2", "cpu", "skylake"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.text() | st.sampled_from(["mcpu", "mattr", "mtriple", "keys", "cl-opt", "host", "arch", "num-cores", "tag"])


@given(st.sampled_from(["llvm", "cuda"]), st.dictionaries(NAMES, VALUES, max_size=4))
def test_anything_is_refused_or_stays_as_it_is(kind: str, others: dict[str, Any]) -> None:
    """What is allowed is neither completed nor repaired here: the text that was checked is the one that is used."""
    attributes = {"kind": kind, **others}
    before = json.dumps(attributes)
    with contextlib.suppress(BadRequest):
        found = checked(before, attributes)
        assert json.dumps(found) == before
        assert set(found).isdisjoint({"cl-opt", "host"})
