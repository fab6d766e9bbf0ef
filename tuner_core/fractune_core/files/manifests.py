"""What a bundle's manifest must hold, as plain JSON. `docs/bundle.md` tells it to readers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

from fractune_core.names import ROBUST_VARIANT, UNTUNED_VARIANT

_Check = Callable[[Any], bool]
_HEX_DIGEST = re.compile(r"[0-9a-f]{64}")


def complaint(manifest: dict[str, Any]) -> str:
    """The first thing that is wrong with the manifest, empty when it is sound."""
    return next(_complaints(manifest), "")


def _complaints(manifest: dict[str, Any]) -> Iterator[str]:
    for field, (check, what) in _FIELDS.items():
        if field not in manifest:
            yield f"'{field}' is missing"
        elif not check(manifest[field]):
            yield f"'{field}' is not {what}"
    yield from _slot_complaints(manifest)
    yield from _variant_complaints(manifest)
    yield from _measured_complaints(manifest)


def _slot_complaints(manifest: dict[str, Any]) -> Iterator[str]:
    """Of a fused model: whose slot each is, and what is called once for each."""
    if "slots" not in manifest:
        return
    if not _are_slots(manifest["slots"]) or not _list_of(_is_text)(manifest.get("apart")):
        yield "'slots' and 'apart' are not a list of names or nulls, and one of names"
        return
    for tensor in (*manifest["inputs"], *manifest["outputs"]):
        if tensor["shape"][:1] != [len(manifest["slots"])]:
            yield f"'{tensor['name']}' does not have the slots as its first dimension"


def _variant_complaints(manifest: dict[str, Any]) -> Iterator[str]:
    variants = {variant["name"] for variant in manifest["variants"]}
    if len(variants) != len(manifest["variants"]):
        yield "two of 'variants' have one name"
    for variant in manifest["variants"]:
        if not _are_places(variant.get("weights", []), len(manifest["weights"])):
            yield f"the 'weights' of the variant '{variant['name']}' are not places in 'weights'"
    strangers = variants - {*manifest["shares"], ROBUST_VARIANT, UNTUNED_VARIANT}
    if strangers:
        yield f"the variant '{min(strangers)}' is not among 'shares'"


def _measured_complaints(manifest: dict[str, Any]) -> Iterator[str]:
    variants = {variant["name"] for variant in manifest["variants"]}
    measured = manifest.get("measured", {})
    if not _is_measured(measured):
        yield "'measured' is not seconds by share and variant"
    for share, times in measured.items():
        if share not in manifest["shares"]:
            yield f"'measured' has the share '{share}', 'shares' has not"
        if not set(times) <= variants:
            yield f"'measured' has a variant '{min(set(times) - variants)}' that is not there"
    choosing = manifest.get("choosing", measured)
    if not _is_measured(choosing) or _known_times(choosing) != _known_times(measured):
        yield "'choosing' is not seconds of the shares and variants of 'measured'"


def _known_times(held: dict[str, dict[str, float]]) -> set[tuple[str, str]]:
    """Shares and variants that there is a time of."""
    return {(share, name) for share, times in held.items() for name, secs in times.items() if secs > 0}


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_amount(value: Any) -> bool:
    return _is_count(value) and bool(value > 0)


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and _HEX_DIGEST.fullmatch(value) is not None


def _are_places(value: Any, count: int) -> bool:
    return isinstance(value, list) and all(_is_count(place) and place < count for place in value)


def _list_of(check: _Check, fewest: int = 0) -> _Check:
    return lambda value: isinstance(value, list) and len(value) >= fewest and all(map(check, value))


def _map_of(check: _Check) -> _Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _object_with(**fields: _Check) -> _Check:
    """Other fields than these may be there, for later versions to add."""
    return lambda value: (
        isinstance(value, dict) and all(name in value and check(value[name]) for name, check in fields.items())
    )


_are_slots = _list_of(lambda slot: slot is None or _is_text(slot), fewest=1)
_is_shape = _list_of(_is_count)
_is_tensor = _object_with(name=_is_text, dtype=_is_text, shape=_is_shape)
_is_output = _object_with(
    # a dimension that depends on the data is null
    name=_is_text,
    dtype=_is_text,
    shape=_list_of(lambda dim: dim is None or _is_count(dim)),
)
_is_weight = _object_with(dtype=_is_text, shape=_is_shape, offset=_is_count, size=_is_count)
_is_variant = _object_with(name=_is_text, objects=_list_of(_is_text, fewest=1))
_is_measured = _map_of(_map_of(_is_time))

_FIELDS: dict[str, tuple[_Check, str]] = {
    "model": (_object_with(name=_is_text, sha256=_is_text), "an object with name and sha256"),
    "device": (
        _object_with(kind=_is_text, isa=_is_text, units=_is_amount, memory_gib=_is_count, l2_kib=_is_count),
        "an object with kind, isa, units, memory_gib and l2_kib",
    ),
    "target": (_is_text, "a text"),
    "code": (
        _object_with(architecture=_is_text, features=_list_of(_is_text)),
        "an object with architecture and features",
    ),
    "inputs": (_list_of(_is_tensor), "a list of name, dtype and shape"),
    "outputs": (_list_of(_is_output), "a list of name, dtype and shape"),
    "weights": (_list_of(_is_weight), "a list of dtype, shape, offset and size"),
    "shares": (
        _map_of(_object_with(units=_is_amount)),
        "an object of shares with units",
    ),
    "variants": (_list_of(_is_variant, fewest=1), "a list of name and objects"),
    "sha256": (_map_of(_is_digest), "an object of digests"),
}
