"""A model with numbers below the smallest normal one of float32, and kernels that read a thread's MXCSR."""

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIZE = 64
FACTOR, WEIGHT = 1e-20, 1e-39
FLUSHING = 0x8040
"""bits of MXCSR: flush to zero, denormals are zero"""
PROBE = "probe.o"


class _Environment(ctypes.Structure):
    """The GNU C library's `fenv_t` of x86-64."""

    _fields_ = (("x87", ctypes.c_uint32 * 7), ("mxcsr", ctypes.c_uint32))


def read_mxcsr() -> int:
    """The register of this thread, without its notes of past exceptions."""
    found = _Environment()
    ctypes.PyDLL("libm.so.6").fegetenv(ctypes.byref(found))
    return int(found.mxcsr) & ~0x3F


def write_mxcsr(value: int) -> None:
    library, found = ctypes.PyDLL("libm.so.6"), _Environment()
    library.fegetenv(ctypes.byref(found))
    found.mxcsr = value
    library.fesetenv(ctypes.byref(found))


def flushes() -> bool:
    """Whether this thread takes denormals as zero."""
    return bool(read_mxcsr() & FLUSHING == FLUSHING)


def inputs(number: float = 1.0) -> dict[str, Any]:
    return {"x": np.full((SIZE, SIZE), number, np.float32), "factor": np.full((SIZE, SIZE), FACTOR, np.float32)}


def write_model(path: Path) -> Path:
    """Inputs `x` and `factor`. Outputs: `product` of `x` and weights of 1e-39; `tiny`, which is `x` times the factor
    twice; and `back`, which is `tiny` over the factor.
    """
    shape = [SIZE, SIZE]
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["product"]),
            helper.make_node("Mul", ["x", "factor"], ["small"]),
            helper.make_node("Mul", ["small", "factor"], ["tiny"]),
            helper.make_node("Div", ["tiny", "factor"], ["back"]),
        ],
        "denormals",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "factor")],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("product", "tiny", "back")],
        [numpy_helper.from_array(np.full(shape, WEIGHT, np.float32), "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def parallel_traces(model: Path) -> dict[str, str]:
    """A trace for each operator, by workload hash, in which its outermost loops are parallel."""
    from tvm.s_tir import Schedule

    from fractune_workers.children.compiling.child import ingest
    from fractune_workers.children.tvm_api.target import host_cpu
    from fractune_workers.children.tvm_api.traces import read_workload, write_trace

    traces = {}
    for operator in ingest(str(model), {}, "", host_cpu())["operators"]:
        sch = Schedule(read_workload(operator["workload"]).mod, debug_mask="none")
        for block in sch.get_child_blocks(sch.get_sblock("root")):
            sch.parallel(sch.get_loops(block)[0])
        traces[operator["workload_hash"]] = write_trace(sch.trace)
    return traces


def probe(target: Any, *, build: Any) -> bytes:
    """The object file, made by `build`, of a kernel `main` that writes MXCSR to the elements of a tensor of uint32 of
    this SIZE, in a parallel loop.
    """
    import tvm

    from fractune_workers.children.tvm_api.compiled import written

    return written(build(tvm.IRModule({"main": tvm.script.from_source(_PROBE)}), target))


_PROBE = f"""
@T.prim_func(s_tir=True)
def main(found: T.Buffer(({SIZE},), "uint32")):
    T.func_attr({{"global_symbol": "main"}})
    for at in T.parallel({SIZE}):
        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.sse.stmxcsr", T.address_of(found[at])))
"""


def compile_denormals(folder: Path) -> None:
    """The model, its bundle with parallel kernels, and the probe as TVM builds it."""
    import tvm

    from fractune_workers.children.tvm_api.target import parse_target
    from tests.support.real_bundle import compile_model

    model = write_model(folder / "denormals.onnx")
    compile_model(model, folder / "denormals.fractune", tuned=dict.fromkeys(("cpu:1", "cpu:2"), parallel_traces(model)))
    (folder / PROBE).write_bytes(probe(parse_target("", 1), build=tvm.tirx.build))
