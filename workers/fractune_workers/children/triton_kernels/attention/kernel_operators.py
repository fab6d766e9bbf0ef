"""The kernel that may compute an operator: of products or of attention, each with decisions of its own."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from fractune_workers.children.triton_kernels import decisions as products
from fractune_workers.children.triton_kernels import sources
from fractune_workers.children.triton_kernels.attention.decisions import (
    AttentionDecisions,
    AttentionProblem,
    padded,
    read_attention,
)
from fractune_workers.children.triton_kernels.attention.recognition import Attention, attention_of
from fractune_workers.children.triton_kernels.compiler import (
    has_tensor_cores,
    precision_of,
    problem_of,
    shared_bytes_of,
)
from fractune_workers.children.triton_kernels.sums import Unfit, sums_of

_HEAD = """\
import triton
import triton.language as tl

from fractune_workers.children.triton_kernels.attention.kernel import attention
"""
_LOWEST = -3.4028234663852886e38
"""of float32, where TVM's softmax begins its search for the largest score"""


def attention_source(found: Attention, decisions: AttentionDecisions, name: str, precision: str) -> sources.Source:
    """The module whose kernel is `name`. `precision` is of products in float32, as Triton calls it."""
    scores, outputs = found.scores, found.outputs
    pointers = [f"p{at}" for at in range(len(scores.function.params))]
    factors = [f"p{each.argument}" for each in (found.query, found.key, found.value)]
    depth, width = scores.extent("depth"), outputs.extent("column")
    constants = {
        "M": scores.extent("row"),
        "N": scores.extent("column"),
        "WIDTH": width,
        "ROWS": decisions.rows,
        "COLUMNS": decisions.columns,
        "DEPTH": padded(depth),
        "WIDE": padded(width),
        "LOWEST": _LOWEST,
        "PRECISION": repr(precision),
    }
    taken = ["sums", "batch", "row", "column", *pointers]
    given = [*factors, sources.tuple_text(pointers), "load_q", "load_k", "load_v", "score", "finish"]
    parts = [
        _HEAD,
        sources.load_text("load_q", scores, 0, None, padded(depth)),
        sources.load_text("load_k", scores, 1, None, padded(depth)),
        sources.load_text("load_v", outputs, 1, None, decisions.columns),
        sources.function_text("score", taken, found.score_lines()),
        sources.function_text("finish", taken, found.finish_lines()),
        sources.kernel_text(name, pointers, "attention", given, constants),
    ]
    programs = -(-scores.extent("row") // decisions.rows) * scores.extent("batch")
    return sources.Source("\n\n".join(parts), (sources.Launch(name, programs, decisions.warps, decisions.stages),), ())


class AnyDecisions(Protocol):
    """Equal decisions make equal machine code."""

    @property
    def text(self) -> str: ...

    @property
    def features(self) -> Mapping[str, float]: ...


class KernelOperator(Protocol):
    """An operator for a target."""

    sum_dtype: str

    def fitting(self, programs: Sequence[int]) -> list[Any]:
        """All decisions that fit; persistent kernels have one of these numbers of `programs`."""

    def first(self, found: Sequence[Any], sms: Sequence[int]) -> Iterator[Any]:
        """All that were found, the best estimates first, for one number of SMs after the other."""

    def read(self, text: str) -> Any:
        """The decisions in a candidate's text. Raises FractuneError for those of another kernel."""

    def source(self, decisions: str, name: str) -> sources.Source:
        """The module for the text of decisions, whose kernels' names begin with `name`."""


def kernel_operator(function: Any, target: Any) -> KernelOperator:
    """What Triton's kernels compute of a TIR function for a target. Raises Unfit where they do not compute it."""
    try:
        return _Product(function, target)
    except Unfit:
        return _Attention(function, target)


class _Product:
    def __init__(self, function: Any, target: Any) -> None:
        self._sums = sums_of(function)
        self._problem = problem_of(self._sums, target)
        self._precision = precision_of(target)
        self.sum_dtype = self._sums.sum_dtype

    def fitting(self, programs: Sequence[int]) -> list[Any]:
        return list(products.fitting(self._problem, programs))

    def first(self, found: Sequence[Any], sms: Sequence[int]) -> Iterator[Any]:
        return products.first_decisions(self._problem, found, sms)

    def read(self, text: str) -> Any:
        return products.read_decisions(text)

    def source(self, decisions: str, name: str) -> sources.Source:
        return sources.source_of(self._sums, self.read(decisions), name, self._precision)


class _Attention:
    sum_dtype = "float32"

    def __init__(self, function: Any, target: Any) -> None:
        self._found = found = attention_of(function)
        self._precision = precision_of(target)
        self._problem = AttentionProblem(
            batch=found.scores.extent("batch"),
            queries=found.scores.extent("row"),
            keys=found.scores.extent("column"),
            depth=found.scores.extent("depth"),
            width=found.outputs.extent("column"),
            dtype=found.dtype,
            tensor_cores=has_tensor_cores(found.dtype, target),
            shared_bytes=shared_bytes_of(target),
        )

    def fitting(self, _programs: Sequence[int]) -> list[Any]:
        return self._problem.fitting()

    def first(self, found: Sequence[Any], sms: Sequence[int]) -> Iterator[Any]:
        return self._problem.first(found, sms)

    def read(self, text: str) -> Any:
        return read_attention(text)

    def source(self, decisions: str, name: str) -> sources.Source:
        return attention_source(self._found, self.read(decisions), name, self._precision)
