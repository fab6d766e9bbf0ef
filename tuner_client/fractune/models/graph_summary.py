"""What an ONNX file is made of: its opsets, its operators and what becomes of each, and where its weights lie."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fractune.local.programs import how_imported
from fractune_core.errors import BadModel, shortened, some_of
from fractune_core.files.onnx_file import DEEPEST, NUMBERS, Field, Walk, walk

NATIVE, DECOMPOSED, PART, REFUSED = "native", "decomposed", "part", "refused"
_OF_RUNTIME = frozenset({"", "ai.onnx", "com.microsoft"})
"""domains of ONNX Runtime's own operators"""
_SHOWN = 60
_TYPE, _DOMAIN, _ATTRIBUTE = 4, 7, 5
"""fields of a node"""
_EXTERNAL_DATA = 13


@dataclass(frozen=True)
class InspectedOperator:
    """An operator of a model."""

    name: str
    """with its domain before it, if that is not ONNX's: `com.microsoft.Gelu`"""
    nodes: int
    how: str
    """`native`, `decomposed` (computed by several others), `part` (ONNX Runtime runs it), `refused`; empty if TVM is
    not installed here
    """


@dataclass(frozen=True)
class GraphSummary:
    opsets: dict[str, int]
    """by domain; ONNX's own is empty"""
    operators: tuple[InspectedOperator, ...]
    """the most frequent first"""
    weights: dict[str, int]
    """bytes by the name of a file beside the model; those in the model's file have an empty name"""

    @property
    def lines(self) -> list[str]:
        """For people."""
        opsets = ", ".join(f"{domain or 'onnx'} {version}" for domain, version in self.opsets.items())
        by_how: dict[str, list[str]] = defaultdict(list)
        for each in self.operators:
            by_how[each.how].append(f"{shortened(each.name, _SHOWN)} {each.nodes}")
        texts = {
            NATIVE: "native",
            DECOMPOSED: "native, as several others",
            PART: "by ONNX Runtime, as parts",
            REFUSED: "refused",
            "": "not known without fractune[local]",
        }
        kinds = [f"{text}: {some_of(by_how[how])}" for how, text in texts.items() if how in by_how]
        weights = [f"{size / 2**20:.1f} MiB in {name or 'the model'}" for name, size in self.weights.items()]
        return [
            f"opset:     {opsets or 'none'}",
            f"operators: {kinds[0] if kinds else 'none'}",
            *(f"           {each}" for each in kinds[1:]),
            f"weights:   {', '.join(weights) or 'none'}",
        ]


def read_summary(path: Path) -> GraphSummary:
    """Of an ONNX file. Reads no weights. Raises BadModel for a damaged file, and for another format."""
    with walk(path) as found:
        if found is None:
            raise BadModel(f"{path.name}: is not an ONNX file")
        summary = _Summary(found, path)
        return summary.read()


class _Summary:
    def __init__(self, found: Walk, path: Path) -> None:
        self._walk, self._path = found, path
        self._operators: Counter[str] = Counter()
        self._weights: Counter[str] = Counter()

    def read(self) -> GraphSummary:
        opsets = {}
        for field in self._walk.fields(0, self._walk.size):
            if field.number == 7 and field.is_message:
                self._graph(field, 0)
            elif field.number == 8 and field.is_message:
                version = self._walk.last(field, 2)
                opsets[self._walk.text(self._walk.last(field, 1))] = version.value if version else 0
        counts = self._operators.most_common()
        ways = _ways([name for name, _ in counts])
        made = tuple(InspectedOperator(name, nodes, how) for (name, nodes), how in zip(counts, ways, strict=True))
        return GraphSummary(opsets, made, dict(self._weights))

    def _graph(self, graph: Field, depth: int) -> None:
        for part in self._walk.inside(graph):
            if part.number == 1 and part.is_message:
                for inner in self._node(part):
                    if depth < DEEPEST:
                        self._graph(inner, depth + 1)
            elif part.number == 5 and part.is_message:
                self._weight(part)

    def _node(self, node: Field) -> Iterator[Field]:
        """Counts it; the graphs in its attributes."""
        kind, domain = "", ""
        for field in self._walk.inside(node):
            if field.number == _TYPE:
                kind = self._walk.text(field)
            elif field.number == _DOMAIN:
                domain = self._walk.text(field)
            elif field.number == _ATTRIBUTE and field.is_message:
                yield from (each for each in self._walk.inside(field) if each.number in (6, 11) and each.is_message)
        self._operators[kind if domain in ("", "ai.onnx") else f"{domain}.{kind}"] += 1

    def _weight(self, tensor: Field) -> None:
        """Numbers in the file, or by what it says of another file."""
        entries: dict[str, str] = {}
        for field in self._walk.inside(tensor):
            if field.number in NUMBERS:
                self._weights[""] += field.end - field.first
            elif field.number == _EXTERNAL_DATA and field.is_message:
                entries[self._walk.text(self._walk.last(field, 1))] = self._walk.text(self._walk.last(field, 2))
        if "location" in entries:
            size = entries.get("length", "0")
            self._weights[entries["location"]] += int(size) if size.isascii() and size.isdecimal() else 0


def _ways(names: Sequence[str]) -> list[str]:
    """What becomes of each operator. One that the importer refuses is a part, if ONNX Runtime has it."""
    return [
        PART if said == REFUSED and name.rpartition(".")[0] in _OF_RUNTIME else said
        for name, said in zip(names, how_imported(names), strict=True)
    ]
