"""CUDA targets: explicit in all that a build needs, and refused where nothing could be built or run."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import te
from tvm.s_tir import Schedule, meta_schedule as ms

from fractune_core.errors import BadModel, BadRequest, FractuneError
from fractune_workers.children.compiling.child import ingest
from fractune_workers.children.tvm_api import cuda_target
from fractune_workers.children.tvm_api.intrinsics import keep_out_gpu_intrinsics
from fractune_workers.children.tvm_api.target import parse_target, target_key

ISA = "sm_90"


@dataclass
class OldToolkit:
    """A compiler that knows no GPU after Hopper."""

    name: str = "NVRTC 12.4"
    archs: Sequence[int] = (70, 80, 90)

    def compile(self, source: str, arch: str, *, fast_math: bool) -> bytes:
        raise NotImplementedError(source, arch, fast_math)


@pytest.fixture(autouse=True)
def toolkit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_target, "compiler_here", OldToolkit)


def config(text: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(str(parse_target(text, 2)))
    return parsed


@pytest.mark.parametrize(
    "text", ["cuda:sm_90", " cuda:sm_90 ", "cuda -arch=sm_90", '{"kind": "cuda", "arch": "sm_90"}']
)
def test_every_form_means_the_same_whole_target(text: str) -> None:
    target = config(text)
    assert target["arch"] == "sm_90"
    assert target["max_shared_memory_per_block"] == 48 * 1024
    assert target["max_threads_per_block"] == 1024
    assert target["thread_warp_size"] == 32
    assert "num-cores" not in target
    assert target_key(parse_target(text, 2)) == target_key(parse_target("cuda:sm_90", 1))


def test_what_the_json_says_of_a_block_stays() -> None:
    text = '{"kind": "cuda", "arch": "sm_80", "max_threads_per_block": 256, "max_shared_memory_per_block": 16384}'
    assert (config(text)["max_threads_per_block"], config(text)["max_shared_memory_per_block"]) == (256, 16384)


def test_a_tag_of_tvm_will_do() -> None:
    assert config("nvidia/nvidia-h100")["arch"] == "sm_90a"


@pytest.mark.parametrize("option", ["fast-math", "tf32"])
def test_an_option_is_off_unless_asked_for_and_then_another_target(option: str) -> None:
    exact, changed = parse_target("cuda:sm_90", 1), parse_target(f"cuda:sm_90+{option}", 1)
    assert option in changed.keys
    assert option not in exact.keys
    assert target_key(exact) != target_key(changed)


def test_the_order_of_options_makes_no_other_target() -> None:
    one, other = parse_target("cuda:sm_90+tf32+fast-math", 1), parse_target("cuda:sm_90+fast-math+tf32", 1)
    assert target_key(one) == target_key(other)
    assert {"fast-math", "tf32"} <= set(one.keys)


@pytest.mark.parametrize("keys", ['["tf32"]', '["gpu", "tf32", "cuda"]', '["cuda", "gpu", "tf32", "tf32"]'])
def test_the_keys_in_json_mean_the_same_as_options(keys: str) -> None:
    given = parse_target(f'{{"kind": "cuda", "arch": "sm_90", "keys": {keys}}}', 1)
    assert target_key(given) == target_key(parse_target("cuda:sm_90+tf32", 1))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cuda", "names no architecture"),
        ("cuda:sm_80a", "there is no 'sm_80a'; write sm_80"),
        ("cuda:sm_90f", "there is no 'sm_90f'"),
        ("cuda:sm_70+tf32", "sm_70 has no TensorFloat-32; leave 'tf32' out"),
        ("cuda:sm_100", "NVRTC 12.4 does not compile for sm_100; it knows sm_70, sm_80, sm_90"),
        ("nvidia/geforce-rtx-4090", "NVRTC 12.4 does not compile for sm_89"),
    ],
)
def test_what_cannot_be_built_is_refused(text: str, words: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_target(text, 1)
    assert words in str(caught.value)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_a_toolkit_a_target_can_be_read_and_not_built_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_target, "compiler_here", lambda: None)
    target = parse_target("cuda:sm_121", 1)
    with pytest.raises(FractuneError, match=r"no CUDA compiler to build for sm_121; pip install 'fractune\[cuda\]'"):
        cuda_target.compiler_for(target)


def test_a_builder_refuses_what_its_own_toolkit_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_target, "compiler_here", lambda: None)
    target = parse_target("cuda:sm_100a", 1)
    monkeypatch.setattr(cuda_target, "compiler_here", OldToolkit)
    with pytest.raises(BadRequest, match=r"NVRTC 12\.4 does not compile for sm_100a"):
        cuda_target.compiler_for(target)


@pytest.mark.parametrize(
    ("target", "isa", "words"),
    [
        ("cuda:sm_90", "rocketlake", "is for a GPU, and the shares of this job are of a CPU (rocketlake)"),
        ("llvm", ISA, "is for a CPU, and the shares of this job are of a GPU; write cuda:sm_90"),
        ("cuda:sm_80", ISA, "code for sm_80 does not run on this GPU (sm_90); write cuda:sm_90"),
        ("cuda:sm_90a", "sm_100", "code for sm_90a does not run on this GPU (sm_100)"),
    ],
)
def test_a_target_for_another_processor_is_refused_before_the_model_is_read(
    tmp_path: Path, target: str, isa: str, words: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        ingest(str(tmp_path / "none.onnx"), {}, target, isa)
    assert words in str(caught.value)


@pytest.mark.parametrize("target", ["cuda:sm_90", "cuda:sm_90a"])
def test_a_target_for_the_gpu_goes_on_to_the_model(tmp_path: Path, target: str) -> None:
    with pytest.raises(BadModel):
        ingest(str(tmp_path / "none.onnx"), {}, target, ISA)


@pytest.mark.parametrize(
    ("threads", "shared_floats", "fits"), [(256, 1024, True), (2048, 1024, False), (256, 16_384, False)]
)
def test_tvm_checks_candidates_by_its_limits(threads: int, shared_floats: int, *, fits: bool) -> None:
    target = parse_target("cuda:sm_90", 1)
    size = 4 * shared_floats
    x = te.placeholder((size,), name="x")
    y = te.compute((size,), lambda i: x[i] + 1.0, name="y")
    mod = tvm.IRModule({"main": te.create_prim_func([x, y])})
    sch = Schedule(mod)
    block = sch.get_sblock("y")
    outer, inner = sch.split(sch.get_loops(block)[0], [None, shared_floats])
    sch.bind(outer, "blockIdx.x")
    copy = sch.cache_read(block, 0, "shared")
    sch.compute_at(copy, outer)
    for loop in (inner, sch.get_loops(copy)[-1]):
        sch.bind(sch.split(loop, [None, threads])[1], "threadIdx.x")
    keep_out_gpu_intrinsics()
    check = ms.postproc.VerifyGPUCode()
    space = ms.space_generator.PostOrderApply(sch_rules=[], postprocs=[check], mutator_probs={})
    context = ms.TuneContext(mod=mod, target=target, space_generator=space, task_name="check")
    assert context.space_generator.postprocs[0].apply(sch) == fits
