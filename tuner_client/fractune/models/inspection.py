"""What a model file says of its inputs and outputs, with a size for each axis that it leaves open.

And what an ONNX file is made of: its opsets, its operators and what becomes of each, and where its weights lie.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fractune.local.programs import how_imported
from fractune.text.rendering import Column, Table
from fractune_core.errors import BadModel, shortened, some_of
from fractune_core.files.model_files import DEEPEST, NUMBERS, Field, Walk, walk

NATIVE, DECOMPOSED, PART, REFUSED = "native", "decomposed", "part", "refused"
_OF_RUNTIME = frozenset({"", "ai.onnx", "com.microsoft"})
"""domains of ONNX Runtime's own operators"""
_OPERATOR_SHOWN = 60
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
            by_how[each.how].append(f"{shortened(each.name, _OPERATOR_SHOWN)} {each.nodes}")
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


_SHOWN = 80
"""characters of the sizes of one tensor in a table"""
_WHY_WRAPS_AT = 40
_UNKNOWN = "?"


@dataclass(frozen=True)
class InspectedAxis:
    """An axis of an input or output."""

    size: int | None
    """in the file; None = open"""
    name: str = ""
    """of an open axis; open axes of one name have one size"""
    suggested: int | None = None
    """a size for an open axis of an input"""
    why: str = ""
    """the reason for the suggested size"""
    is_guess: bool = False
    """whether the file gives no reason for this size"""
    is_batch: bool = False
    """whether it counts what is computed together: its size is 1 unless another is given"""


@dataclass(frozen=True)
class InspectedTensor:
    """An input or output of a model."""

    name: str
    dtype: str
    """as NumPy's; empty for text and other kinds of values"""
    axes: tuple[InspectedAxis, ...] | None
    """None = the file does not say how many axes there are"""
    is_given: bool = False
    """whether the caller has given its shape, or made it a constant"""

    @property
    def is_open(self) -> bool:
        """Whether a job needs a shape for it."""
        is_known = self.axes is not None and all(axis.size is not None for axis in self.axes)
        return bool(self.dtype) and not (is_known or self.is_given)

    @property
    def suggested(self) -> list[int] | None:
        """A size for each axis; None if the number of axes is not known."""
        if self.axes is None:
            return None
        return [axis.size or axis.suggested or 1 for axis in self.axes]

    @property
    def shape_text(self) -> str:
        """The sizes in the file: `[batch, 3, ?, ?]`."""
        if self.axes is None:
            return "unknown rank"
        return shortened(f"[{', '.join(str(axis.size or axis.name or _UNKNOWN) for axis in self.axes)}]", _SHOWN)

    @property
    def why(self) -> str:
        """Each suggested size with its reason: `1: the batch; 224: a guess for an image`."""
        reasons = dict.fromkeys(f"{axis.suggested}: {axis.why}" for axis in self.axes or () if axis.why)
        return "; ".join(reasons)


@dataclass(frozen=True)
class InspectedSize:
    """A size that open axes of inputs have together."""

    name: str
    """in the file; of an axis without a name its place (`ids:1`)"""
    suggested: int
    several: tuple[int, ...]
    """for `tune`: those of a cache and of its calls, else the suggested one"""
    why: str
    equals: str
    """the sizes that it follows from (`past + s`); empty for one to give"""
    is_given: bool
    has_name: bool
    is_batch: bool
    inputs: tuple[str, ...]
    """those that have it as an axis"""


@dataclass(frozen=True)
class Inspection:
    """The inputs and outputs of a model file, and sizes for what it leaves open."""

    path: str
    inputs: tuple[InspectedTensor, ...]
    outputs: tuple[InspectedTensor, ...]
    sizes: tuple[InspectedSize, ...]
    """the open ones; first those with one name, then sums and products"""
    notes: tuple[str, ...] = ()
    summary: GraphSummary | None = None
    """what the graph is made of; None in an error about its sizes"""

    @property
    def suggested(self) -> dict[str, list[int]]:
        """Shapes of the open inputs by name, as `fractune.tune` takes them in `inputs`."""
        shapes = {each.name: each.suggested for each in self.inputs if each.is_open}
        return {name: shape for name, shape in shapes.items() if shape is not None}

    @property
    def options(self) -> list[str]:
        """Words of a command line that fix the open inputs: sizes by name, and shapes of inputs with axes without."""
        return self._words(several=False)

    def _words(self, *, several: bool) -> list[str]:
        nameless = {name for each in self.sizes if not (each.has_name or each.equals) for name in each.inputs}
        shapes = {name: shape for name, shape in self.suggested.items() if name in nameless}
        words = [
            ("--size", f"{each.name}={','.join(map(str, each.several[: None if several else 1]))}")
            for each in self.sizes
            if each.has_name and not (each.equals or each.is_given or shapes.keys() & set(each.inputs))
        ]
        words += [("--input", f"{name}={','.join(map(str, shape))}") for name, shape in shapes.items()]
        words += [("--input", f"{each.name}=DIM,DIM,...") for each in self.inputs if each.is_open and not each.axes]
        return [word for pair in words for word in pair]

    @property
    def command(self) -> str:
        """A command to copy, which tunes the model with the suggested sizes."""
        return self.command_after([])

    def command_after(self, given: Sequence[str]) -> str:
        """The same, with the words of a command line that gave sizes to `inspect`."""
        return tune_command(self.path, [*given, *self._words(several=True)])

    @property
    def left_open(self) -> dict[str, int] | None:
        """The suggested size of each axis that nothing gives, by its name or place. None if the number of axes of an
        input is not known.
        """
        if any(each.is_open and each.axes is None for each in self.inputs):
            return None
        return {each.name: each.suggested for each in self.sizes if not (each.equals or each.is_given)}

    @property
    def table(self) -> Table:
        """A row for each input and output."""
        rows = [("input", each) for each in self.inputs] + [("output", each) for each in self.outputs]
        return Table(
            columns=(
                *(Column(heading) for heading in ("", "name", "type", "sizes")),
                Column("suggested"),
                Column("why", wraps_at=_WHY_WRAPS_AT),
            ),
            cells=tuple(
                (
                    place,
                    shortened(each.name, _SHOWN),
                    each.dtype or "not numbers",
                    each.shape_text,
                    _suggested_text(place, each),
                    each.why,
                )
                for place, each in rows
            ),
            rows=tuple({"place": place, **asdict(each)} for place, each in rows),
            notes=self.notes,
        )

    def to_json(self) -> dict[str, Any]:
        """As `fractune inspect --json` prints it."""
        return {**asdict(self), "suggested": self.suggested, "command": self.command}

    def __repr__(self) -> str:
        return f"Inspection({self.path}: {len(self.inputs)} inputs, {len(self.suggested)} of them open)"


class OpenSizes(BadModel):
    """A model whose inputs have open sizes that the caller did not give."""

    found: Inspection | None = None
    """the model, with sizes to give"""

    @classmethod
    def of(cls, found: Inspection, left_open: Sequence[str]) -> OpenSizes:
        """The error about the inputs of these names."""
        first = next(each for each in found.inputs if each.name in left_open)
        error = cls(
            f"input '{shortened(first.name, _SHOWN)}' has open sizes ({first.shape_text}); fix them, such as with "
            f"{shlex.join(found.options)} ('fractune inspect' gives the reasons for these sizes)"
        )
        error.found = found
        return error


def tune_command(path: str, words: Sequence[str]) -> str:
    """To copy into a shell."""
    path = f"./{path}" if path.startswith("-") else path
    return f"fractune tune {_word(path)} {shlex.join([*words, '--shares', 'cpu:1'])}"


def _word(text: str) -> str:
    """A word for a shell. Characters that a terminal would act on are written as bytes, within `$'...'`."""
    if text.isprintable():
        return shlex.quote(text)
    shown = (
        each if each.isprintable() and each not in "'\\" else "".join(f"\\x{byte:02x}" for byte in os.fsencode(each))
        for each in text
    )
    return f"$'{''.join(shown)}'"


def _suggested_text(place: str, tensor: InspectedTensor) -> str:
    if place == "output" or not tensor.is_open:
        return ""
    sizes = tensor.suggested
    return _UNKNOWN if sizes is None else shortened(",".join(map(str, sizes)), _SHOWN)
