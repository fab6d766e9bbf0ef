"""Candidates and whole models are timed as bundles run: without numbers below the smallest normal one."""

import os
from pathlib import Path

from fractune_core.files.bundles import Bundle
from fractune_core.records import FIRST_POLICY
from fractune_core.shares import Share
from fractune_runtime.tvm_runtime.tensors import specs_of
from fractune_workers.children.measuring.child import MeasurerChild
from fractune_workers.children.measuring.compiled_software import cpu_software
from fractune_workers.children.measuring.model_timing import backend_on
from fractune_workers.children.measuring.setup import cpu_setup
from fractune_workers.children.tvm_api.compiled import build_library
from fractune_workers.children.tvm_api.processor import cpu_processor
from fractune_workers.children.tvm_api.target import parse_target
from fractune_workers.confinement import confinement_for
from tests.support.denormals import FLUSHING, SIZE, flushes, inputs, probe, write_model
from tests.support.real_bundle import compile_model

TARGET = parse_target("llvm -mcpu=x86-64-v3", 1)


def test_a_candidate_is_checked_and_timed_without_denormals_on_all_threads() -> None:
    confinement = confinement_for(Share.parse("none"), sorted(os.sched_getaffinity(0)))
    child = MeasurerChild(confinement, cpu_setup(cpu_software()))
    methods = child.methods()
    methods["begin"](args_info=[["TENSOR", "uint32", [SIZE]]], seed=0)
    methods["load"](name="probe", code=probe(TARGET, build=build_library))
    for method, payload in (
        ("check", {"name": "probe"}),
        ("time_interleaved", {"names": ["probe"], "policy": FIRST_POLICY.to_json()}),
    ):
        child._processor.write(child._args[0], child._pristine[0])
        methods[method](**payload)
        assert {each & FLUSHING for each in child._processor.read(child._args[0]).tolist()} == {FLUSHING}
    assert not flushes()


def test_a_whole_model_is_timed_without_denormals(tmp_path: Path) -> None:
    path = compile_model(write_model(tmp_path / "denormals.onnx"), tmp_path / "denormals.fractune", tuned=())
    bundle = Bundle(path)
    backend = backend_on(cpu_processor(), bundle)
    arguments = backend.arguments(specs_of(bundle.manifest["inputs"]), inputs())
    outputs = map(backend.array, backend.run(backend.load_variant("untuned"), arguments))
    assert [bool(output.view("uint32").any()) for output in outputs] == [False] * 3
    assert not flushes()
