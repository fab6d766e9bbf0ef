"""The decisions of an attention kernel, their text in a candidate, and an estimate that orders those not measured yet.

The estimate is that of products (`triton_kernels/decisions.py`), with exponentials beside multiplications.
"""

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from fractune_core.errors import FractuneError

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
