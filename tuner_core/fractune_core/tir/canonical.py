"""The canonical form of an operator's module: one JSON graph for all modules that differ in names alone.

TVM's structural equality reads neither names nor positions in a source. TVM's JSON has both, and keeps which equal
parts were one object in memory. The canonical form has names by position (`Names`), no positions in a source,
equal parts once, and maps in the order of their keys. TVM reads it like any other of its JSON graphs.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

CONV, DEPTHWISE, MATMUL = "conv2d_blocked", "depthwise_blocked", "matmul_blocked"
"""the main computation of each kernel over blocked layouts"""

PADDED, IMAGE_COLUMNS, IMAGE = "pad_temp", "winograd_image_columns", "winograd_image"
GEMM = "winograd_gemm"
OUTPUT_COLUMNS, OUTPUT = "winograd_output_columns", "winograd_output"
"""the computations of Winograd's convolution, in their order"""

ROWS, COLUMNS, INTEGER_SUMS, SUMS = "integer_rows", "integer_columns", "integer_sums", "sums"
"""The computations of a product of whole numbers, in their order. Constant weights have no columns to compute."""

KERNELS = (
    frozenset({CONV}),
    frozenset({DEPTHWISE}),
    frozenset({MATMUL}),
    frozenset({PADDED, IMAGE_COLUMNS, IMAGE, GEMM, OUTPUT_COLUMNS, OUTPUT}),
    frozenset({ROWS, INTEGER_SUMS, SUMS}),
    frozenset({ROWS, COLUMNS, INTEGER_SUMS, SUMS}),
)
"""the names that one kernel has; each is only a kernel's where all of them are"""

WHOLE_NUMBERS = "fractune.whole_numbers"
"""The annotation of a float32 kernel whose two operands are whole numbers: the smallest and the largest of its data,
then of its weights. Where the weights are computed, a 1 follows."""

# Names by position for the blocks and buffers of a TIR function.
#
# TVM names blocks and buffers after the computation and its variables: `lv13_sum`. Equal operators of two models have
# differently named blocks, and a trace, which looks blocks up by name, would fit only one model. Names by position
# follow from the structure. Steps of a schedule name new blocks after blocks and buffers, so both get them.

ROOT = "root"
"""the outermost block: MetaSchedule looks it up by this name"""


@dataclass(frozen=True)
class Names:
    """Of one function's parts, in the order of their positions: `(the name that TVM gave, the name by position)`."""

    blocks: tuple[tuple[str, str], ...]
    """the root first, a block before those inside it"""
    buffers: tuple[tuple[str, str], ...]
    """arguments first"""


def names_by_position(blocks: Sequence[str], buffers: Sequence[str]) -> Names:
    """The names of a function's blocks and buffers, given TVM's names in the order of their positions.

    The root and the blocks of a kernel keep their names.
    """
    kept = {name for kernel in KERNELS if kernel.issubset(blocks) for name in kernel}
    seen: set[str] = set()
    named = []
    for at, name in enumerate(blocks):
        keeps = name in kept and name not in seen
        named.append(ROOT if at == 0 else name if keeps else f"block_at_{at}")
        seen.add(name)
    return Names(
        tuple(zip(blocks, named, strict=True)), tuple((name, f"buffer_at_{at}") for at, name in enumerate(buffers))
    )


Trace = list[Any]
"""MetaSchedule's JSON: [steps, decisions]; a step is [kind, inputs, attributes, outputs]"""

_LOOKUP = "GetSBlock"
_OF_BLOCK = re.compile(r"_(rf|init|update|o)(?![a-z0-9])")
_OF_BUFFER = re.compile(r"_(reindex|global|shared|local|warp|wmma|m16n8k8)(?![a-z0-9])")
"""what TVM appends to the name of a block, or of a buffer, for a block that a schedule adds"""


@dataclass(frozen=True)
class _Table:
    """New names by old ones."""

    blocks: Mapping[str, str]
    buffers: Mapping[str, str]

    def name(self, old: str) -> str | None:
        """The new name of a block of the function, or of one that a schedule adds; None for an unknown one."""
        if old in self.blocks:
            return self.blocks[old]
        for parts, appended in ((self.blocks, _OF_BLOCK), (self.buffers, _OF_BUFFER)):
            bases = [part for part in parts if old.startswith(part) and appended.match(old, len(part))]
            if bases:
                base = max(bases, key=len)
                return parts[base] + old[len(base) :]
        return None


def by_position(trace: Trace, names: Names) -> Trace:
    """The trace with lookups by position, for a function whose parts have these `names`. Unknown names stay."""
    table = _Table(dict(names.blocks), dict(names.buffers))
    steps, decisions = trace
    return [[_renamed_step(step, table) for step in steps], decisions]


def _renamed_step(step: Any, table: _Table) -> Any:
    kind, inputs, attributes, outputs = step
    if kind != _LOOKUP:
        return step
    name, *function = attributes
    return [kind, inputs, [table.name(name) or name, *function], outputs]


Graph = dict[str, Any]
"""TVM's JSON of an object: `nodes`, which refer to each other by their index, and `root_index`"""

_BLOCK, _NAME, _BUFFER = "s_tir.SBlock", "ffi.String", "tirx.BufferType"
_VARIABLES = {"ir.Var": "name", "relax.expr.DataflowVar": "name"}
_NAMED = {_BLOCK: "name_hint", **_VARIABLES}
"""types that TVM compares without their names, and the field of the name"""
_SPAN = "span"
_WRITTEN_IN_PLACE = {0, 1, 2, 3, 5}
"""TVM's indices of the types None, bool, int, float and dtype: such fields hold no index of a node"""
_LISTS, _MAPS = {"ffi.Array", "ffi.List"}, {"ffi.Map", "ffi.Dict"}


def canonical_graph(mod: Any) -> Graph:
    """The canonical form of a TIR module.

    Two modules that TVM's structural equality finds equal have the same form, in every process. Two that differ in a
    number, a type, an attribute or a tensor's content have different ones, also 0.0 and -0.0. Only the payload of a NaN
    is lost, as in all of TVM's JSON.
    """
    return _Canonical(_saved(mod)).graph()


def read_graph(graph: Graph) -> Any:
    """The module of a canonical form. Raises whatever TVM raises for a graph of something else."""
    import tvm  # noqa: F401  it registers the types
    from tvm_ffi.serialization import from_json_graph_str

    # `tvm.ir.load_json` first renames what older versions wrote, and writes all of it again by Python's slow encoder.
    return from_json_graph_str(json.dumps(graph))


def names_of(mod: Any) -> Names:
    """The names of a module's blocks and buffers, with their names in the canonical form."""
    return _Canonical(_saved(mod)).names


def _saved(mod: Any) -> Graph:
    import tvm

    plain = tvm.IRModule(mod.functions, attrs=mod.attrs)  # without the text that it was read from
    graph: Graph = json.loads(tvm.ir.save_json(plain))
    return graph


class _Canonical:
    def __init__(self, graph: Graph) -> None:
        self._nodes: list[Any] = graph["nodes"]
        self._root: int = graph["root_index"]
        self._begun: dict[int, None] = {}
        """nodes in the order in which they are met, a node before its parts"""
        self._ended: dict[int, None] = {}
        """in the order of the form, the parts of a node before it"""
        self._walk()
        blocks = [at for at in self._begun if self._type(at) == _BLOCK]
        variables = [at for at in self._begun if self._type(at) in _VARIABLES]
        buffers = [at for at in variables if self._type(self._nodes[at]["data"]["ty"]) == _BUFFER]
        self.names = names_by_position([*map(self._name, blocks)], [*map(self._name, buffers)])
        self._new_names = {at: f"v{number}" for number, at in enumerate(variables)}
        self._new_names.update(zip(blocks, (new for _, new in self.names.blocks), strict=True))
        self._new_names.update(zip(buffers, (new for _, new in self.names.buffers), strict=True))

    def graph(self) -> Graph:
        """The form."""
        nodes: list[Any] = []
        places: dict[str, int] = {}
        new: dict[int, int] = {}

        def place(node: Any) -> int:
            at = places.setdefault(repr(node), len(nodes))
            if at == len(nodes):
                nodes.append(node)
            return at

        for at in self._ended:
            kind, data = self._type(at), self._nodes[at].get("data")
            if kind in _LISTS or kind in _MAPS:
                data = [new[part] for part in self._parts(at)]
            elif isinstance(data, dict):
                references = _references(kind)
                data = {name: new.get(value, value) if name in references else value for name, value in data.items()}
                if kind in _NAMED:
                    data[_NAMED[kind]] = place({"type": _NAME, "data": self._new_names[at]})
                if _SPAN in references:
                    data[_SPAN] = place({"type": "None"})
            new[at] = place(self._nodes[at] if data is None else {"type": kind, "data": data})
        return {"root_index": new[self._root], "nodes": nodes}

    def _walk(self) -> None:
        """Without recursion: expressions are nested more deeply than Python's stack."""
        left = [self._root]
        while left:
            at = left[-1]
            if at not in self._begun:
                self._begun[at] = None
                left.extend(part for part in reversed([*self._parts(at)]) if part not in self._begun)
                continue
            left.pop()
            self._ended.setdefault(at)

    def _parts(self, at: int) -> Iterator[int]:
        """The nodes that a node refers to and that TVM compares, in their order."""
        kind, data = self._type(at), self._nodes[at].get("data")
        if kind in _LISTS:
            yield from data
        elif kind in _MAPS:
            pairs = list(zip(data[::2], data[1::2], strict=True))
            if all(self._type(key) == _NAME for key, _ in pairs):
                pairs.sort(key=lambda pair: str(self._nodes[pair[0]]["data"]))
            yield from (part for pair in pairs for part in pair)
        elif isinstance(data, dict):
            compared = _references(kind) - {_SPAN, _NAMED.get(kind)}
            yield from (part for name, part in data.items() if name in compared)

    def _type(self, at: int) -> str:
        return str(self._nodes[at]["type"])

    def _name(self, at: int) -> str:
        return str(self._nodes[self._nodes[at]["data"][_NAMED[self._type(at)]]]["data"])


@cache
def _references(kind: str) -> frozenset[str]:
    """The fields of TVM's type that are indices of nodes; none of a type that has a JSON of its own."""
    from tvm_ffi import core

    info: Any = core._lookup_or_register_type_info_from_type_key(kind)  # noqa: SLF001  TVM publishes no other way
    if core._lookup_type_attr(info.type_index, "__data_to_json__") is not None:  # noqa: SLF001  the same
        return frozenset()
    found: set[str] = set()
    while info is not None:
        found.update(each.name for each in info.fields if each.field_static_type_index not in _WRITTEN_IN_PLACE)
        info = info.parent_type_info
    return frozenset(found)
