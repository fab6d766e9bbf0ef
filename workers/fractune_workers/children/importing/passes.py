"""The one pass list between a model and its operators.

Ingest names the operators of a model, and compile puts schedules on them. Both find an operator by the hash of its TIR,
so both run `prepare`. Another pass list would give other hashes, and no schedule would fit.
"""

import logging
import math
import sys
from collections.abc import Callable, Iterator, Sequence, Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.s_tir import meta_schedule as ms

from fractune_core.errors import BadModel, first_line, shortened
from fractune_core.operators import DIRECT, MOST_NAME_CHARACTERS, workload_hash
from fractune_workers.children.layouts import attention, elementwise, four_bits, products
from fractune_workers.children.layouts.attention import with_cached_attention
from fractune_workers.children.layouts.last_token import with_last_token
from fractune_workers.children.layouts.planner import Planner, Rule, block_lanes
from fractune_workers.children.layouts.transposed import conv2d_transpose
from fractune_workers.children.recurrent import tilings
from fractune_workers.children.recurrent.packing import Tiling
from fractune_workers.children.recurrent.recurrence import Recurrence
from fractune_workers.children.rewriting import indexing, row_kernels, special_numbers, transcendental
from fractune_workers.children.rewriting.accumulators import ACCUMULATORS, HALVES
from fractune_workers.children.rewriting.concats import CONCAT, kept, settled, with_caches
from fractune_workers.children.rewriting.expressions import (
    bindings_of,
    element_bytes,
    has_fixed_shapes,
    is_scheduled,
    operator_of,
    operators_in,
    origins_of,
    relax_functions,
    rewritten,
    type_text,
    without_origins,
)
from fractune_workers.children.rewriting.indexing import looked_up
from fractune_workers.children.rewriting.simplify import simplify
from fractune_workers.children.tvm_api.target import VectorUnit, vector_unit
from fractune_workers.children.tvm_api.tir import parts_of
from fractune_workers.children.tvm_api.traces import Workload, write_workloads

_PREFIX = "relax."


def why_unlowered(mod: tvm.IRModule, target: tvm.target.Target) -> str:
    """The reason and a remedy for a module whose lowering has failed: each operator is lowered alone."""
    origins = origins_of(mod)
    for call, at in _calls(mod):
        alone = _alone(call)
        try:
            with target:
                relax.transform.LegalizeOps(enable_warning=False)(alone)
        except Exception:  # noqa: BLE001  whatever it is, it is the operator's
            given = ", ".join(type_text(each.ty) for each in alone["main"].params)
            name = str(call.op.name).removeprefix(_PREFIX)
            origin = origins[at] if at < len(origins) else ""
            return f"{origin}no kernel computes {name} of {given or 'constants'}; export it with other shapes or types"
    return "no kernels can be made of its operators; export it with other shapes or types"


def _calls(mod: tvm.IRModule) -> Iterator[tuple[Any, int]]:
    """The calls of operators. Of those in `main`: the number of the binding, else a number beyond."""
    for name, function in relax_functions(mod).items():
        bindings = bindings_of(function)
        for at, binding in enumerate(bindings):
            if isinstance(binding.value, relax.Call) and isinstance(binding.value.op, tvm.ir.Op):
                yield binding.value, at if name.name_hint == "main" else sys.maxsize


def _alone(call: Any) -> tvm.IRModule:
    """A module of the call alone, whose variables are its inputs."""
    inputs = {
        each: relax.Var(f"input{at}", each.ty) for at, each in enumerate(call.args) if isinstance(each, relax.Var)
    }
    builder = relax.BlockBuilder()
    with builder.function("main", list(inputs.values())):
        given = [inputs.get(each, each) if isinstance(each, relax.Var) else each for each in call.args]
        builder.emit_func_output(builder.emit(relax.Call(call.op, given, call.attrs, call.ty_args)))
    return builder.get()


_NARROW = frozenset({"bfloat16", "float16", "int8"})
"""types that a tensor core multiplies"""
_CONV = "nn.conv2d"
_CHANNELS_LAST = ["NHWC", "OHWI"]
"""of the image, and of the weights"""


def with_channels_last(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with its convolutions of narrow types, and the values between them, in NHWC, as far as TVM can.

    TVM's pass gives up on a whole model for one operator of unknown layouts. Such a model is returned unchanged.
    """
    passes = tvm.transform.Sequential(
        [
            relax.transform.Normalize(),
            relax.transform.ConvertLayout({}, _layouts_of),
            relax.transform.FoldConstant(),  # weights are turned round once, here
        ]
    )
    try:
        return passes(mod)
    except (IndexError, RuntimeError):  # TVM's own errors are RuntimeErrors
        return mod


def _layouts_of(call: Any) -> dict[str, list[str]]:
    """The layouts of one call; TVM's pass requests them for every call."""
    if operator_of(call) != _CONV or str(call.args[0].ty.dtype) not in _NARROW:
        return {}
    # TVM's convolution in NHWC has no groups.
    return {f"relax.{_CONV}": _CHANNELS_LAST} if int(call.attrs.groups) == 1 and has_fixed_shapes(call) else {}


# Layouts of a whole model: convolutions and matrix products with constant weights compute in blocks of the vector
# width, and the values between them stay in blocks.

_RULES: dict[str, Rule] = {
    "nn.conv2d": products.conv2d,
    "nn.conv2d_transpose": conv2d_transpose,
    "matmul": products.matmul,
    "astype": products.cast,
    "nn.max_pool2d": elementwise.pool,
    "nn.avg_pool2d": elementwise.pool,
    "nn.adaptive_avg_pool2d": elementwise.adaptive_pool,
    "image.resize2d": elementwise.resize,
    "concat": elementwise.concat,
    "strided_slice": elementwise.sliced,
    "reshape": elementwise.reshape,
    "squeeze": elementwise.squeeze,
    **dict.fromkeys(elementwise.UNARY, elementwise.unary),
    **dict.fromkeys(elementwise.UNARY_OF_CHANNELS, partial(elementwise.unary, every_lane=True)),
    **dict.fromkeys([*elementwise.BINARY, *elementwise.BINARY_OF_CHANNELS], elementwise.binary),
    **dict.fromkeys(elementwise.REDUCE, elementwise.reduce),
    "clip": elementwise.clip,
    "max": elementwise.largest,
    "min": elementwise.smallest,
}
"""by the Relax operator"""


def planned(mod: tvm.IRModule, target: tvm.target.Target, implementation: str = "") -> tvm.IRModule:
    """The module with its layouts planned for the target; its results stay the same.

    The implementation of this name computes the convolutions and products that it fits; all others are computed
    directly. Calls and their arguments correspond one to one, whatever the implementation. Raises BadModel for a
    recurrent operator on a GPU.
    """
    if target.kind.name != "llvm":
        tilings.refuse_recurrences(mod)
        return with_channels_last(mod) if target.kind.name == "cuda" else mod
    unit = vector_unit(target)
    rules: dict[str, Rule] = {**_RULES, "call_tir": partial(_in_vectors, unit=unit)}
    lanes = block_lanes(
        [binding.value for each in relax_functions(mod).values() for binding in bindings_of(each)], unit
    )
    planner = Planner(mod.clone(), rules, elementwise.part, lanes, implementation, target)
    tidy = [relax.transform.EliminateCommonSubexpr(), relax.transform.DeadCodeElimination()]
    made = rewritten(mod, planner)
    made = tilings.with_vectors(made, target) if _KERNEL in operators_in(mod) else made
    return tvm.transform.Sequential(tidy)(made)


def _in_vectors(planner: Planner, call: Any, unit: VectorUnit) -> tuple[Any, None] | None:
    """The rule for a call of a kernel: those that have a kernel of vectors get it."""
    made = (rule(planner, call, unit) for rule in (four_bits.in_vectors, attention.in_vectors))
    return next((each for each in made if each is not None), None)


# Operators of half precision that are computed in float32 and rounded once: prefix sums, and scatters that add.
#
# TVM's kernels for them add into their result. Other sums are widened in their kernels
# (`rewriting/accumulators.py`). TVM has no kernel for normalisations of bfloat16.

_WIDE = "float32"
_SCANS = frozenset({"cumprod", "cumsum"})
_SCATTERS = frozenset({"index_put", "scatter_elements", "scatter_nd"})
_NORMS = frozenset({"nn.group_norm", "nn.instance_norm", "nn.layer_norm"})
_EXACT = ("", "update", "min", "max")
"""what a scatter does with an element that loses nothing"""


def with_wide_operators(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with these operators computed in float32; values keep their types."""
    return rewritten(mod, _Wide(mod.clone()))


@mutator
class _Wide(PyExprMutator):
    def visit_call_(self, op: Any) -> Any:
        call = super().visit_call_(op)
        dtype = str(getattr(op.ty, "dtype", ""))
        if dtype not in HALVES or not _is_narrow(call):
            return call
        wide = [
            self.builder_.emit(relax.op.astype(each, _WIDE)) if str(getattr(each.ty, "dtype", "")) in HALVES else each
            for each in call.args
        ]
        return relax.op.astype(self.builder_.emit(_recomputed(call, wide)), dtype)


def _is_narrow(call: Any) -> bool:
    """Whether TVM would compute in the type of the result, or not at all."""
    name = operator_of(call)
    if name == "index_put":
        return bool(call.attrs.accumulate)
    if name in _NORMS:
        return str(call.args[0].ty.dtype) == "bfloat16"
    return name in _SCANS or (name in _SCATTERS and str(call.attrs.reduction) not in _EXACT)


def _recomputed(call: Any, operands: list[Any]) -> Any:
    if operator_of(call) not in _SCANS:
        return relax.Call(call.op, operands, call.attrs)
    scan = getattr(relax.op, operator_of(call))
    axis = call.attrs.axis
    return scan(operands[0], None if axis is None else int(axis), _WIDE, bool(call.attrs.exclusive))


_log = logging.getLogger(__name__)
FROM_FILE = "fractune.from_file"
"""Attribute of a module: names of the functions of loops that its file brought"""
_FLOAT32_BYTES = 4
_LEGALIZATIONS = {
    **indexing.LEGALIZATIONS,
    **special_numbers.LEGALIZATIONS,
    **transcendental.LEGALIZATIONS,
}
_LEGALIZATIONS_FOR_CPUS = {
    **_LEGALIZATIONS,
    **transcendental.LEGALIZATIONS_FOR_CPUS,
    **row_kernels.LEGALIZATIONS,
    **special_numbers.LEGALIZATIONS_FOR_CPUS,
    CONCAT: kept,
}
_KERNEL = "call_tir"
_CHANGES: Sequence[tuple[AbstractSet[str], Callable[[tvm.IRModule], tvm.IRModule]]] = (
    ({"equal"}, looked_up),
    ({"concat", _KERNEL}, with_caches),
    ({_KERNEL}, with_cached_attention),
)
"""of a simplified model, in this order: each is made where the model calls one of the operators"""


@dataclass(frozen=True)
class Operator:
    """One workload of a model."""

    name: str
    """the function's name in the model, a label: `fused_conv2d4_add1_relu1`"""
    weight: int
    """how often the model runs it; 0 for an alternative to several others, which it may run in their place"""
    workload_hash: str
    """the SHA-256 of its text"""
    workload_json: str
    """the text of its direct implementation"""
    flops: float
    """arithmetic operations of one run, as TVM estimates them; 0 = not known"""
    io_bytes: int
    """sizes of its arguments, inputs and outputs, each once; 0 = not known"""
    written_bytes: int
    """those of its outputs"""
    narrow: bool
    """whether an argument has elements of less than 4 bytes: then its arithmetic may be faster than float32's"""
    recurrence: Recurrence | None
    """what it computes, if it is an LSTM, GRU or RNN"""


def prepare(
    mod: tvm.IRModule, target: tvm.target.Target, implementation: str = "", *, last_token: bool = False
) -> tvm.IRModule:
    """Plan a Relax module's layouts, legalize and fuse it until every operator is one TIR function. Raises BadModel.
    `last_token`: whether a decoder for a CPU gets one more output (`layouts/last_token.py`).

    The `implementation` of this name computes the convolutions that it fits (`layouts/kernels/implementations.py`).

    The order matters: patterns are annotated on the legalized functions, and fusion reads them once constants are
    folded.
    """
    is_from_file = FROM_FILE in (mod.attrs or {})
    strangers = [str(name) for name in (mod.attrs or {}).get(FROM_FILE, ())]
    mod = mod.without_attr(FROM_FILE)
    passes = tvm.transform.Sequential(
        [
            # Sorting, prefix sums and sampling have no other way into TIR; for a GPU these become kernels of TVM's own.
            relax.backend.DispatchSampling(),
            relax.backend.DispatchSortScan(),
            relax.transform.LegalizeOps(
                _LEGALIZATIONS_FOR_CPUS if target.kind.name == "llvm" else _LEGALIZATIONS, enable_warning=False
            ),
            relax.transform.RewriteDataflowReshape(),  # a view costs nothing, a fused copy does
            relax.transform.AnnotateTIROpPattern(),
            ACCUMULATORS,  # of kernels with the pattern of their operator: what rounds a sum is a part of it
            _folding(strangers),
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
        ],
        name="fractune.prepare",
    )
    try:
        with target, tvm.transform.PassContext(opt_level=3):
            simple = simplify(with_wide_operators(without_origins(mod)))
            for needs, change in _CHANGES:
                # A module from a file may state what a change finds out.
                if is_from_file or needs & operators_in(simple):
                    simple = change(simple)
            if last_token and target.kind.name == "llvm" and _KERNEL in operators_in(simple):
                simple = with_last_token(simple)
            fused = passes(planned(simple, target, implementation))
            return settled(fused) if "concat" in operators_in(fused) else fused
    except BadModel:
        raise
    except Exception as error:
        _log.info("lowering failed: %s", first_line(error))
        raise BadModel(why_unlowered(mod, target)) from error


def _folding(strangers: Sequence[str]) -> Any:
    """A pass that folds constants, and leaves calls of these functions.

    TVM would compile and run them here. They have no checks of bounds, and would fold this process's memory into a
    constant.
    """

    @tvm.transform.module_pass(opt_level=0, name="fractune.fold")
    def fold(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
        hidden = {var: function for var, function in mod.functions.items() if var.name_hint in strangers}
        others = mod.clone()
        for var in hidden:
            others.update_func(var, relax.ExternFunc(var.name_hint))
        folded = relax.transform.FoldConstant()(others)
        for var, function in hidden.items():
            folded.update_func(var, function)
        return folded

    return fold


def extract(mod: tvm.IRModule, target: tvm.target.Target) -> list[Operator]:
    """The operators of a prepared module; equal ones are one operator, with the sum of their weights.

    Kernels that TVM has scheduled already are left out. A recurrence is an operator whatever its tiling. Raises
    BadModel when there is nothing to tune.
    """
    operators: dict[str, Operator] = {}
    tasks = ms.relax_integration.extract_tasks(mod, target)
    for task in tasks:
        mod, recurrence = _untiled(task.dispatched[0])
        if is_scheduled(mod["main"]) and recurrence is None:
            continue
        operator = described(str(task.task_name), int(task.weight), mod, recurrence)
        known = operators.get(operator.workload_hash)
        weight = operator.weight + (known.weight if known else 0)
        operators[operator.workload_hash] = Operator(**{**vars(known or operator), "weight": weight})
    if not operators:
        why = "TVM has a fixed kernel for each of its operators" if tasks else "no kernel of it can be tuned"
        raise BadModel(f"has nothing to tune: {why}; tune a model with other operators")
    return list(operators.values())


def _untiled(mod: tvm.IRModule) -> tuple[tvm.IRModule, Recurrence | None]:
    """The module of an operator; the plain kernel of a recurrence, which is scheduled already, and the recurrence.

    The plain kernel names the operator, whatever the target and the weights.
    """
    recurrence = tilings.recurrence_in(mod) if is_scheduled(mod["main"]) else None
    return (mod if recurrence is None else tilings.kernel_module(recurrence, Tiling())), recurrence


def direct_hash(mod: tvm.IRModule) -> str:
    """The workload hash of one operator's TIR module, if the operator has no other implementation. Within one model it
    stands for the operator. Kernels of one recurrence have one hash, whatever their tilings.
    """
    return workload_hash(write_workloads({DIRECT: Workload.of(_untiled(mod)[0])}))


def described(name: str, weight: int, mod: tvm.IRModule, recurrence: Recurrence | None = None) -> Operator:
    """The operator of one TIR module."""
    arguments = _arguments(mod)
    text = write_workloads({DIRECT: Workload.of(mod)})
    return Operator(
        name=shortened(name, MOST_NAME_CHARACTERS),  # an IRModule may call it anything
        weight=weight,
        workload_hash=workload_hash(text),
        workload_json=text,
        flops=_flops(mod),
        io_bytes=sum(count * element_bytes for count, element_bytes, _ in arguments),
        written_bytes=sum(count * element_bytes for count, element_bytes, is_written in arguments if is_written),
        narrow=any(element_bytes < _FLOAT32_BYTES for _, element_bytes, _ in arguments),
        recurrence=recurrence,
    )


def _arguments(mod: tvm.IRModule) -> list[tuple[int, int, bool]]:
    """Elements of each argument, bytes of one, and whether it is written; empty where a shape depends on data."""
    try:
        described = [info.as_json() for info in ms.arg_info.ArgInfo.from_entry_func(mod, remove_preproc=True)]
    except (TypeError, ValueError):
        return []
    main = mod["main"]
    stores = parts_of(main.body, tirx.BufferStore)
    written = [any(each.buffer.same_as(param) for each in stores) for param in main.params]
    return [
        (math.prod(map(int, shape)), element_bytes(dtype), is_written)
        for (_, dtype, shape), is_written in zip(described, written, strict=True)
    ]


def _flops(mod: tvm.IRModule) -> float:
    """TVM's estimate; 0 where TVM has none, as for loops with an extent that depends on data. Infinite ones are refused
    with the operator.
    """
    try:
        estimate = float(tvm.s_tir.analysis.estimate_tir_flops(mod))
        return estimate if estimate >= 0 else 0.0
    except Exception:  # noqa: BLE001  an estimate steers the budget at most; TVM raises any error for odd loops
        return 0.0
