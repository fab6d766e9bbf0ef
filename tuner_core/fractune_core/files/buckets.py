"""The shapes of a bundle for several shapes: its open axes, and which member takes a request.

A bucket is the shapes of one member. An axis is open if its sizes differ between members. Axes with the same sizes in
all members have one symbol: a text's length is an axis of its ids and of its mask, and `length` there.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fractune_core.codec.plain_json import JsonObject
from fractune_core.errors import BadRequest
from fractune_core.model_inputs import NamedSizes

BATCH, LENGTH = "batch", "length"
UNKNOWN = "?"
"""the symbol of an output's axis that follows no axis of an input"""

Axes = dict[str, list[str | None]]
"""By tensor: a symbol for each open axis, None for a fixed one"""


@dataclass(frozen=True)
class Padding(JsonObject):
    """Whether inputs may be padded to a larger bucket."""

    proved: bool
    """outputs of padded and of exact inputs were compared, and agree"""
    reason: str
    """what was compared, or why nothing may be padded"""
    max_rel_difference: float | None = None
    """the largest that was found, over the largest value of the output; None if nothing was compared"""


@dataclass(frozen=True)
class OpenAxes(JsonObject):
    inputs: Axes
    outputs: Axes

    @cached_property
    def symbols(self) -> list[str]:
        """Those of the inputs, in their order."""
        found = (symbol for axes in self.inputs.values() for symbol in axes if symbol is not None)
        return list(dict.fromkeys(found))

    def sizes(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """The size of each symbol in the inputs' `shapes`. Raises BadRequest if a symbol has two."""
        sizes: dict[str, int] = {}
        for name, axes in self.inputs.items():
            for symbol, size in zip(axes, shapes[name], strict=True):
                if symbol is not None and sizes.setdefault(symbol, size) != size:
                    raise BadRequest(
                        f"input '{name}' has the shape {list(shapes[name])}, and {symbol} is {sizes[symbol]} in the "
                        f"inputs before it; give inputs of one {symbol}"
                    )
        return sizes

    @property
    def is_batch_first(self) -> bool:
        """Whether the batch is the first axis of every input and output, and no other."""
        tensors = (*self.inputs.values(), *self.outputs.values())
        return all(axes[:1] == [BATCH] and BATCH not in axes[1:] for axes in tensors)


@dataclass(frozen=True)
class Buckets(JsonObject):
    """What a bundle for several shapes holds beside its members."""

    axes: OpenAxes
    pad: dict[str, int | float]
    """numbers that inputs are padded with, by input; 0 for an input that is not here"""
    padding: Padding


def open_axes(members: Sequence[Mapping[str, Any]]) -> OpenAxes:
    """The open axes of members, by the inputs and outputs of their manifests.

    Raises BadRequest unless their inputs and outputs have equal names, types and numbers of axes, and other shapes.
    """
    for field in ("inputs", "outputs"):
        _check_alike(field, members)
    columns = _columns("inputs", members)
    symbols = _named(columns)
    found = OpenAxes(
        {name: [symbols.get(sizes) for sizes in axes] for name, axes in columns.items()},
        {
            name: [symbols.get(sizes, None if _is_fixed(sizes) else UNKNOWN) for sizes in axes]
            for name, axes in _columns("outputs", members).items()
        },
    )
    _check_different(members, found)
    return found


def input_shapes(member: Mapping[str, Any]) -> dict[str, list[int]]:
    return {tensor["name"]: tensor["shape"] for tensor in member["inputs"]}


def shape_text(inputs: Mapping[str, Sequence[int]]) -> str:
    """`ids 1x16, mask 1x16`"""
    return ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in inputs.items())


def elements(member: Mapping[str, Any]) -> int:
    """Numbers in all inputs of a member together; members lie in this order."""
    return sum(math.prod(shape) for shape in input_shapes(member).values())


def shapes_text(member: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={'x'.join(map(str, shape))}" for name, shape in input_shapes(member).items())


def sizes_text(sizes: Mapping[str, int]) -> str:
    """`batch 2 length 16`"""
    return " ".join(f"{symbol} {size}" for symbol, size in sizes.items())


def _check_alike(field: str, members: Sequence[Mapping[str, Any]]) -> None:
    first, *others = ([(each["name"], each["dtype"], len(each["shape"])) for each in one[field]] for one in members)
    for other in others:
        if other != first:
            raise BadRequest(
                f"the bundles differ in the names, types or numbers of axes of their {field} ({first} and {other}); "
                "join bundles of one model"
            )


def _columns(field: str, members: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[Any, ...]]]:
    """By tensor and axis: the sizes in all members."""
    return {
        tensors[0]["name"]: list(zip(*(tensor["shape"] for tensor in tensors), strict=True))
        for tensors in zip(*(member[field] for member in members), strict=True)
    }


def _is_fixed(sizes: tuple[Any, ...]) -> bool:
    return None not in sizes and len(set(sizes)) == 1


def _named(columns: Mapping[str, Sequence[tuple[int, ...]]]) -> dict[tuple[int, ...], str]:
    """A symbol for each sequence of sizes: `batch` if it is the first of several axes wherever it is, else `length`,
    `length2` and so on.
    """
    places: dict[tuple[int, ...], set[bool]] = {}
    for axes in columns.values():
        for place, sizes in enumerate(axes):
            if not _is_fixed(sizes):
                places.setdefault(sizes, set()).add(place == 0 and len(axes) > 1)
    symbols: dict[tuple[int, ...], str] = {}
    for sizes, are_first in places.items():
        lengths = sum(symbol != BATCH for symbol in symbols.values())
        is_batch = all(are_first) and BATCH not in symbols.values()
        symbols[sizes] = BATCH if is_batch else f"{LENGTH}{lengths + 1 if lengths else ''}"
    return symbols


def _check_different(members: Sequence[Mapping[str, Any]], axes: OpenAxes) -> None:
    seen: list[dict[str, int]] = []
    for member in members:
        sizes = axes.sizes(input_shapes(member))
        if sizes in seen:
            raise BadRequest(f"two bundles have the inputs {shapes_text(member)}; join one bundle for each shape")
        seen.append(sizes)


def bucket_complaint(manifest: Mapping[str, Any], members: Sequence[Mapping[str, Any]]) -> str:
    """What is wrong with the field `buckets` of a joined manifest, empty if nothing is."""
    try:
        held, axes = Buckets.from_json(manifest["buckets"]), open_axes(members)
    except (ValueError, BadRequest) as error:
        return f"'buckets' do not fit its members: {error}"
    if held.axes != axes:
        return "'axes' of 'buckets' are not the open axes of its members"
    if not set(held.pad) <= set(axes.inputs):
        return "'pad' of 'buckets' has an input that is not there"
    if not held.padding.reason.isprintable():
        return "'reason' of 'padding' is not printable"
    if list(map(elements, members)) != sorted(map(elements, members)):
        return "'members' are not in the order of their sizes"
    return _between_complaint(members, axes)


def _between_complaint(members: Sequence[Mapping[str, Any]], axes: OpenAxes) -> str:
    """Of the field `between`, which was read before."""
    points = [point for member in members for held in member.get("between", {}).values() for point in held]
    if any(set(point["sizes"]) != set(axes.symbols) for point in points):
        return "'between' has sizes that are not those of its axes"
    return ""


def named_sizes(manifest: Mapping[str, Any]) -> NamedSizes:
    """The open axes of a bundle's model: by the names of its ONNX file, or by the symbols of several shapes."""
    symbols = manifest.get("buckets", {}).get("axes", {}).get("inputs", {})
    return NamedSizes(manifest.get("dims") or {name: [each or 1 for each in axes] for name, axes in symbols.items()})


def members_of(whole: Mapping[str, Any], members: Sequence[Mapping[str, Any]], sizes: Mapping[str, int]) -> list[int]:
    """The members of a bundle, by number, that are for these sizes by name; `whole` and `members` are manifests. Raises
    BadRequest for an unknown name, and for sizes that no member has.
    """
    names = named_sizes(whole)
    wanted = names.solved({}, sizes)
    held = [names.solved(input_shapes(each), {}) for each in members]
    found = [number for number, each in enumerate(held) if wanted.items() <= each.items()]
    if not found:
        known = dict.fromkeys(sizes_text({name: each[name] for name in wanted if name in each}) for each in held)
        raise BadRequest(
            f"--size: the bundle is for {'; '.join(known)}, and not for {sizes_text(wanted)}; give sizes that it has"
        )
    return found
