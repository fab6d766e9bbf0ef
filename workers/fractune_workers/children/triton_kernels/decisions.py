"""The decisions of a Triton kernel, their text in a candidate, and an estimate that orders those not measured yet."""

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from fractune_core.errors import FractuneError

_KERNELS = {False: "product/1", True: "product-tma/1"}
"""what the decisions are of, without and with copies by TMA; a number grows with every change that makes other machine
code of its decisions
"""
_ELEMENT_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "int8": 1}
_SIDES, _DEPTHS = (16, 32, 64, 128, 256), (16, 32, 64, 128)
_SMALLEST_DEPTH = {"int8": 32}
"""of the instructions of tensor cores; 16 for other types"""
_WARPS, _STAGES, _SPLITS = (2, 4, 8), (1, 2, 3, 4, 5), (1, 2, 4, 8, 16)
_MOST_SUMS = 128
"""of a thread: more do not fit into its registers beside all else"""
_MOST_UNROLLED = 4096
"""multiplications of a thread without tensor cores, for each step of the depth: more compile for many seconds"""
_TENSOR_CORES = 1024
_ORDINARY_CORES = 128
_LOADED_BYTES = 64
"""of one SM in one clock cycle: multiplications, and bytes from the second cache. Only their ratios matter."""
_USUAL_SUMS, _USUAL_STAGES, _UNUSUAL = 32, 3, 0.1
"""of a thread, and the part that an estimate grows by with each step away from them"""
_OVERHEAD_CYCLES, _STEP_CYCLES = 1000, {False: 40, True: 20}
"""of a tile, its start and its end; of each step of its depth, without and with copies by TMA, which need no addresses
"""


@dataclass(frozen=True)
class Decisions:
    rows: int
    columns: int
    depth: int
    """of a tile"""
    warps: int
    stages: int
    """tiles of the factors that are under way at the same time"""
    split: int = 1
    """parts of the depth that are summed up apart"""
    programs: int = 0
    """that compute one tile after the other; 0 = a program for each tile"""
    tma: bool = False
    """whether the GPU's copy engine loads the factors that it can; pointers load the others"""

    @property
    def text(self) -> str:
        numbers = asdict(self)
        return json.dumps([{"kernel": _KERNELS[numbers.pop("tma")], **numbers}], separators=(",", ":"))

    @property
    def features(self) -> dict[str, float]:
        """Numbers by name, for a surrogate."""
        return {name: math.log2(value + 1) for name, value in asdict(self).items()}


def read_decisions(text: str) -> Decisions:
    """The decisions in a candidate's text. Raises FractuneError for those of another kernel."""
    (found,) = json.loads(text)
    kernel = found.pop("kernel", None)
    for tma, name in _KERNELS.items():
        if kernel == name:
            return Decisions(**found, tma=tma)
    known = ", ".join(f"'{name}'" for name in _KERNELS.values())
    raise FractuneError(f"the kernel '{kernel}' is not one of {known}; tune the model again")


def element_bytes_of(dtype: str) -> int:
    """Of a factor."""
    return _ELEMENT_BYTES[dtype]


@dataclass(frozen=True)
class Problem:
    """The extents of sums of products, the type of the factors, and the limits of a block."""

    batch: int
    row: int
    column: int
    depth: int
    dtype: str
    tensor_cores: bool
    """whether products of the type are computed there"""
    shared_bytes: int
    """of a block at most"""
    tma: bool = False
    """whether the GPU's copy engine can load a factor"""

    @property
    def element_bytes(self) -> int:
        return element_bytes_of(self.dtype)


def fitting(problem: Problem, programs: Sequence[int]) -> Iterator[Decisions]:
    """All decisions that fit; persistent kernels have one of these numbers of `programs`."""
    sides = [_sides(extent) for extent in (problem.row, problem.column)]
    depths = [each for each in _DEPTHS if _fits_depth(each, problem)]
    for rows, columns, depth, warps, stages in itertools.product(*sides, depths, _WARPS, _STAGES):
        if not _fits_block(problem, rows, columns, depth, warps, stages):
            continue
        tiles = tiles_of(problem, rows, columns)
        for split in _SPLITS:
            if split > 1 and problem.depth // (split * depth) < stages:
                continue
            counts = [each for each in (0, *programs) if not each or (split == 1 and each < tiles)]
            for count, tma in itertools.product(counts, _copies(problem)):
                yield Decisions(rows, columns, depth, warps, stages, split, count, tma)


def _copies(problem: Problem) -> tuple[bool, ...]:
    return (True, False) if problem.tma else (False,)


def tiles_of(problem: Problem, rows: int, columns: int) -> int:
    return -(-problem.row // rows) * -(-problem.column // columns) * problem.batch


def _shared_bytes(problem: Problem, decisions: Decisions) -> int:
    """Of the factors' tiles under way."""
    tile = (decisions.rows + decisions.columns) * decisions.depth * problem.element_bytes
    return tile * decisions.stages


def cycles(problem: Problem, decisions: Decisions, sms: int) -> float:
    """An estimate of the clock cycles on `sms` SMs, which orders decisions and promises nothing.

    The tiles run in waves, one on each SM. A tile takes as long as its multiplications or its loads.
    """
    tiles = tiles_of(problem, decisions.rows, decisions.columns) * decisions.split
    depth = -(-problem.depth // (decisions.depth * decisions.split)) * decisions.depth
    rate = _TENSOR_CORES * 2 / problem.element_bytes if problem.tensor_cores else _ORDINARY_CORES
    multiplied = decisions.rows * decisions.columns * depth / rate
    loaded = (decisions.rows + decisions.columns) * depth * problem.element_bytes / _LOADED_BYTES
    under_way = max(multiplied, loaded) if decisions.stages > 1 else multiplied + loaded
    under_way += depth // decisions.depth * _STEP_CYCLES[decisions.tma]
    starts = _OVERHEAD_CYCLES / (2 if decisions.programs else 1)
    waves = -(-tiles // sms)
    partial_bytes = 8 * problem.batch * problem.row * problem.column * decisions.split if decisions.split > 1 else 0
    return (
        waves * (under_way + starts) + partial_bytes / (_LOADED_BYTES * sms) + _OVERHEAD_CYCLES * (decisions.split > 1)
    )


def _sides(extent: int) -> list[int]:
    """No tile is more than twice as long as needed."""
    return [each for each in _SIDES if each == _SIDES[0] or each < 2 * extent]


def _fits_depth(depth: int, problem: Problem) -> bool:
    smallest = _SMALLEST_DEPTH.get(problem.dtype, _DEPTHS[0])
    return depth >= smallest and (depth == smallest or depth < 2 * problem.depth)


def _fits_block(problem: Problem, rows: int, columns: int, depth: int, warps: int, stages: int) -> bool:
    threads = 32 * warps
    if rows * columns > _MOST_SUMS * threads or rows * columns < threads:
        return False
    if not problem.tensor_cores and rows * columns * depth > _MOST_UNROLLED * threads:
        return False
    if stages > 1 and problem.depth <= depth:
        return False
    return _shared_bytes(problem, Decisions(rows, columns, depth, warps, stages)) <= problem.shared_bytes


def first_decisions(problem: Problem, found: Sequence[Decisions], sms: Sequence[int]) -> Iterator[Decisions]:
    """All that were found, the best estimates first, for one number of SMs after the other, with and without TMA.

    The estimate knows nothing of warps and stages. Usual numbers come first, so that the first few differ in more.
    """

    def usual(decisions: Decisions) -> float:
        sums = decisions.rows * decisions.columns / (32 * decisions.warps)
        return 1 + _UNUSUAL * (abs(math.log2(sums / _USUAL_SUMS)) + abs(decisions.stages - _USUAL_STAGES))

    orders = [
        sorted((each for each in found if each.tma == tma), key=lambda each: cycles(problem, each, count) * usual(each))
        for count, tma in itertools.product(sms or [1], _copies(problem))
    ]
    yield from dict.fromkeys(itertools.chain.from_iterable(zip(*orders, strict=True)))
