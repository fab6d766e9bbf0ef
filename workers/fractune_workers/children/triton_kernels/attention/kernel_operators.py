"""The kernel that may compute an operator: of products or of attention, each with decisions of its own.

Here are those of attention, their text in a candidate, and an estimate that orders those not measured yet:
that of products (`triton_kernels/decisions.py`), with exponentials beside multiplications.
"""

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from fractune_core.errors import FractuneError
from fractune_workers.children.triton_kernels import compiler, decisions as products, sources
from fractune_workers.children.triton_kernels.attention.recognition import Attention, attention_of
from fractune_workers.children.triton_kernels.sums import Unfit, sums_of

KERNEL = "attention/1"
"""what the decisions are of; the number grows with every change that makes other machine code of them"""
_ELEMENT_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
_ROWS, _COLUMNS = (16, 32, 64, 128, 256), (16, 32, 64, 128)
_WARPS, _STAGES = (2, 4, 8), (1, 2, 3, 4)
_SMALLEST = 16
"""side of a tile that tensor cores take"""
_MOST_NUMBERS = 128
"""of a thread, scores, weights and outputs together: more do not fit into its registers beside all else"""
_MOST_UNROLLED = 1024
"""multiplications of a thread without tensor cores, for each tile of keys: more do not fit either"""
_TENSOR_CORES, _ORDINARY_CORES, _EXPONENTIALS = 1024, 128, 16
"""multiplications and exponentials of one SM in one clock cycle"""
_LOADED_BYTES = 64
"""from the second cache, of one SM in one clock cycle. Only the ratios matter."""
_OVERHEAD_CYCLES, _STEP_CYCLES = 1000, 80
"""of a program, its start and its end; of each tile of keys"""
_USUAL_NUMBERS, _USUAL_STAGES, _UNUSUAL = 96, 2, 0.1
"""of a thread, and the part that an estimate grows by with each step away from them"""


@dataclass(frozen=True)
class AttentionDecisions:
    rows: int
    """queries of a program"""
    columns: int
    """keys of a tile"""
    warps: int
    stages: int
    """tiles of keys and values that are under way at the same time"""

    @property
    def text(self) -> str:
        return json.dumps([{"kernel": KERNEL, **asdict(self)}], separators=(",", ":"))

    @property
    def features(self) -> dict[str, float]:
        """Numbers by name, for a surrogate."""
        return {name: math.log2(value) for name, value in asdict(self).items()}


def read_attention(text: str) -> AttentionDecisions:
    """The decisions in a candidate's text. Raises FractuneError for those of another kernel."""
    (found,) = json.loads(text)
    kernel = found.pop("kernel", None)
    if kernel != KERNEL:
        raise FractuneError(f"attention has the kernel '{KERNEL}', not '{kernel}'; tune the model again")
    return AttentionDecisions(**found)


def padded(extent: int) -> int:
    """The side of a tile that holds so many numbers: a power of two."""
    return max(_SMALLEST, 1 << (extent - 1).bit_length())


@dataclass(frozen=True)
class AttentionProblem:
    """The extents of an attention, the type of its factors, and the limits of a block."""

    batch: int
    queries: int
    keys: int
    depth: int
    """numbers of a query and a key"""
    width: int
    """numbers of a value"""
    dtype: str
    tensor_cores: bool
    """whether products of the type are computed there"""
    shared_bytes: int
    """of a block at most"""

    @property
    def both(self) -> int:
        """Numbers of a key and its value, in their tiles."""
        return padded(self.depth) + padded(self.width)

    def fitting(self) -> list[AttentionDecisions]:
        """All decisions that fit."""
        sides = _sides(_ROWS, self.queries), _sides(_COLUMNS, self.keys)
        every = itertools.starmap(AttentionDecisions, itertools.product(*sides, _WARPS, _STAGES))
        return [each for each in every if self._fits(each)]

    def _fits(self, decisions: AttentionDecisions) -> bool:
        rows, columns, threads = decisions.rows, decisions.columns, 32 * decisions.warps
        if self._numbers(decisions) > _MOST_NUMBERS:
            return False
        if self.tensor_cores and rows < _SMALLEST * decisions.warps // 2:
            return False
        if not self.tensor_cores and rows * columns * self.both > _MOST_UNROLLED * threads:
            return False
        if decisions.stages > 1 and self.keys <= columns:
            return False
        held = rows * padded(self.depth) + decisions.stages * columns * self.both
        return held * _ELEMENT_BYTES[self.dtype] <= self.shared_bytes

    def _numbers(self, decisions: AttentionDecisions) -> float:
        """Scores, weights and outputs of a thread."""
        return decisions.rows * (2 * decisions.columns + padded(self.width)) / (32 * decisions.warps)

    def cycles(self, decisions: AttentionDecisions, sms: int) -> float:
        """An estimate of the clock cycles on `sms` SMs, which orders decisions and promises nothing."""
        programs = -(-self.queries // decisions.rows) * self.batch
        element_bytes = _ELEMENT_BYTES[self.dtype]
        rate = _TENSOR_CORES * 2 / element_bytes if self.tensor_cores else _ORDINARY_CORES
        scores = decisions.rows * decisions.columns
        computed = scores * self.both / rate + scores / _EXPONENTIALS
        loaded = decisions.columns * self.both * element_bytes / _LOADED_BYTES
        under_way = max(computed, loaded) if decisions.stages > 1 else computed + loaded
        steps = -(-self.keys // decisions.columns)
        return -(-programs // sms) * (steps * (under_way + _STEP_CYCLES) + _OVERHEAD_CYCLES)

    def first(self, found: Sequence[AttentionDecisions], sms: Sequence[int]) -> Iterator[AttentionDecisions]:
        """All that were found, the best estimates first, for one number of SMs after the other."""

        def usual(decisions: AttentionDecisions) -> float:
            away = abs(math.log2(self._numbers(decisions) / _USUAL_NUMBERS)) + abs(decisions.stages - _USUAL_STAGES)
            return 1 + _UNUSUAL * away

        orders = [sorted(found, key=lambda each: self.cycles(each, count) * usual(each)) for count in sms or [1]]
        yield from dict.fromkeys(itertools.chain.from_iterable(zip(*orders, strict=True)))


def _sides(sides: Sequence[int], extent: int) -> list[int]:
    """No tile is more than twice as long as needed."""
    return [each for each in sides if each == sides[0] or each < 2 * extent]


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
        self._problem = compiler.problem_of(self._sums, target)
        self._precision = compiler.precision_of(target)
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
        self._precision = compiler.precision_of(target)
        self._problem = AttentionProblem(
            batch=found.scores.extent("batch"),
            queries=found.scores.extent("row"),
            keys=found.scores.extent("column"),
            depth=found.scores.extent("depth"),
            width=found.outputs.extent("column"),
            dtype=found.dtype,
            tensor_cores=compiler.has_tensor_cores(found.dtype, target),
            shared_bytes=compiler.shared_bytes_of(target),
        )

    def fitting(self, _programs: Sequence[int]) -> list[Any]:
        return self._problem.fitting()

    def first(self, found: Sequence[Any], sms: Sequence[int]) -> Iterator[Any]:
        return self._problem.first(found, sms)

    def read(self, text: str) -> Any:
        return read_attention(text)

    def source(self, decisions: str, name: str) -> sources.Source:
        return attention_source(self._found, self.read(decisions), name, self._precision)
