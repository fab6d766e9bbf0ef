"""Targets: what this host can run, and what a user's text means."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tvm
import tvm_ffi
from tvm_ffi import registry

from fractune_core.errors import BadModel, BadRequest
from fractune_workers.child import Child
from fractune_workers.children.compiling.child import ingest
from fractune_workers.children.tvm_api.keep_out import functions_listed_once, keep_torch_out, let_torch_in
from fractune_workers.children.tvm_api.target import (
    default_target,
    host_cpu,
    host_device,
    missing_features,
    parse_target,
    target_key,
)
from tests.support.other_cpu import asks_the_host
from tests.support.paths import REPOSITORY


@asks_the_host
def test_the_default_names_this_cpu_and_nothing_that_it_lacks() -> None:
    target = default_target(2)
    assert target.attrs["mcpu"] == host_cpu() != "generic"
    assert target.attrs["num-cores"] == 2
    assert missing_features(target) == []


@asks_the_host
def test_features_agree_with_the_kernel() -> None:
    """LLVM asks the processor; Linux tells in its own words what it lets through."""
    flags = set(
        next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")).split()
    )
    features = {str(name) for name in tvm.get_global_func("target.llvm_get_cpu_features")(default_target(1))}
    for name in ("avx2", "fma", "avx512f", "avx512bw", "avx512vl", "f16c", "bmi2"):
        assert (name in features) == (name in flags), name


@asks_the_host
def test_a_feature_that_a_hypervisor_hides_is_taken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    real = tvm.get_global_func

    def hiding(name: str) -> object:
        if name == "tvm.codegen.llvm.GetHostCPUFeatures":
            return lambda: {**{str(k): bool(v) for k, v in real(name)().items()}, "avx2": False}
        return real(name)

    named = parse_target(f"llvm -mcpu={host_cpu()}", 1)
    monkeypatch.setattr(tvm, "get_global_func", hiding)
    assert missing_features(named) == ["avx2"]
    assert "-avx2" in default_target(1).attrs["mattr"]
    assert missing_features(default_target(1)) == []


def test_the_key_leaves_out_the_cores_and_nothing_else() -> None:
    assert target_key(default_target(1)) == target_key(default_target(2))
    assert target_key(default_target(1)) != target_key(parse_target("llvm", 1))
    key = json.loads(target_key(parse_target("llvm -mcpu=skylake -mattr=+avx2,-fma -num-cores=4", 1)))
    assert key == {"keys": ["cpu"], "kind": "llvm", "mattr": ["+avx2", "-fma"], "mcpu": "skylake"}


@pytest.mark.parametrize("text", ["", "native", " host "])
def test_no_text_means_this_host(text: str) -> None:
    assert str(parse_target(text, 3)) == str(default_target(3))


@pytest.mark.parametrize("text", ["llvm -mcpu=skylake", '{"kind": "llvm", "mcpu": "skylake"}'])
def test_old_flags_and_json_mean_the_same(text: str) -> None:
    target = parse_target(text, 2)
    assert (target.attrs["mcpu"], target.attrs["num-cores"]) == ("skylake", 2)


def test_cores_in_the_text_win() -> None:
    assert parse_target('{"kind": "llvm", "num-cores": 8}', 2).attrs["num-cores"] == 8


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nvidia/geforce-256", "is not defined"),
        ("apple/m1-gpu", "'metal' is neither a CPU (llvm) nor an NVIDIA GPU (cuda)"),
        ("raspberry-pi/4b-aarch64", "has no 'host'"),
        ('{"kind": "llvm", "mcpu": "pentium9"}', "LLVM knows no CPU 'pentium9'"),
        ('{"kind": "llvm", "cl-opt": ["-print-after-all:bool=1"]}', "a target of the kind llvm has no 'cl-opt'"),
    ],
)
def test_unknown_targets_are_refused(text: str, words: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_target(text, 1)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_target_of_another_architecture_lacks_everything() -> None:
    assert missing_features(parse_target("arm/rasp4b64", 1)) == ["aarch64"]


def test_the_host_as_a_device() -> None:
    device = host_device()
    assert (device.kind, device.isa, device.units) == ("cpu", host_cpu(), os.cpu_count())
    assert device.memory_gib >= 1
    assert device.label


def test_a_target_that_the_processor_cannot_run_is_refused_before_the_model_is_read(tmp_path: Path) -> None:
    foreign = "arm/rasp4b64"
    with pytest.raises(BadRequest, match=r"needs what this processor .* lacks: aarch64"):
        ingest(str(tmp_path / "none.onnx"), {}, foreign, host_cpu())
    # For a processor of another kind this host cannot tell: it goes on, to the model that is not there.
    with pytest.raises(BadModel):
        ingest(str(tmp_path / "none.onnx"), {}, foreign, "cortex-a72")


CHILDREN = ("searching", "compiling")
"""the latter imports all that the one that builds does"""


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that an import of `torch` writes, in a process that finds this one first."""
    package, note = tmp_path / "packages" / "torch", tmp_path / "told"
    package.mkdir(parents=True)
    telling = f"from pathlib import Path\nPath({str(note)!r}).write_text('imported')\nraise ImportError('not me')\n"
    (package / "__init__.py").write_text(telling)
    path = [str(package.parent), str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    return note


@pytest.mark.parametrize("name", CHILDREN)
def test_a_child_that_loads_tvm_does_not_import_it(told: Path, name: str) -> None:
    child = Child(f"fractune_workers.children.{name}.child", ["1"])
    try:
        child.ensure()
        assert "libtvm_compiler" in Path(f"/proc/{child.pid}/maps").read_text()
    finally:
        child.stop()
    assert not told.exists()


_LOADED = """
import sys
from fractune_workers.children.tvm_api.keep_out import *
keep_shape_inference_out()
with functions_listed_once(), backends_kept_out():
    import fractune_workers.children.importing.onnx_models.onnx_model
import tvm
from fractune_workers.children.tvm_api.target import parse_target
assert parse_target("llvm -mcpu=x86-64-v3", 1).kind.name == "llvm"
unused = ("asyncio", "cuda.bindings.driver", "sympy", "tvm.backend.cuda.ptx", "tvm.backend.metal")
loaded = [name for name in unused if name in sys.modules]
assert tvm.get_global_func("tvm.contrib.sort.argsort")
assert parse_target("cuda:sm_90", 1).attrs["arch"] == "sm_90"
assert "tirx.ptx.ld" in tvm.ir.Op.list_op_names()
from cuda.bindings import driver
from tests.support.onnx_models import helper, np, onnx_model, run_imported
given = {"x": np.ones(3, "float32")}
print(loaded, tvm.runtime.disco, run_imported(onnx_model([helper.make_node("Add", ["x", "x"], ["y"])], given), given))
"""


def test_what_no_child_needs_is_left_out_and_backends_are_loaded_when_a_target_asks_for_them() -> None:
    command = [sys.executable, "-c", _LOADED]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert (ended.stdout, ended.stderr) == ("[] None [array([2., 2., 2.], dtype=float32)]\n", "")


def test_it_is_let_in_again(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(str(told.parent / "packages"))
    keep_torch_out()
    with pytest.raises(ImportError, match="halted"):
        __import__("torch")
    assert not told.exists()
    let_torch_in()
    with pytest.raises(ImportError, match="not me"):
        __import__("torch")
    assert told.exists()


def test_functions_are_listed_again_only_if_there_are_new_ones() -> None:
    whole = registry.list_global_func_names()
    with functions_listed_once():
        found = registry.list_global_func_names()
        assert found == whole
        assert registry.list_global_func_names() is found
        tvm_ffi.register_global_func("tests.new", len)
        assert "tests.new" in registry.list_global_func_names()
    tvm_ffi.registry.remove_global_func("tests.new")
    assert registry.list_global_func_names() == whole
