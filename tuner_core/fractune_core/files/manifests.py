"""The shape of a bundle's manifest, as plain JSON; `docs/bundle.md` describes it."""

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, get_args

from fractune_core.codec.plain_json import is_storable
from fractune_core.errors import BadRequest
from fractune_core.files.buckets import bucket_complaint
from fractune_core.files.compared import CHECKED, Checked, compared_complaint
from fractune_core.files.staged import Stages, stages_complaint
from fractune_core.names import ROBUST_VARIANT, UNTUNED_VARIANT, plain_variant
from fractune_core.served import ServiceGoal, is_disturbed
from fractune_core.shares import Share
from fractune_core.targets import read_attributes

ALIGNMENT_BYTES = 64
"""Weights begin at multiples of it, as the compiled code expects of memory"""
MAIN = "main"
"""The entry of a variant's code"""
LOGITS, NEXT_TOKEN = "logits", "next_token"
"""Outputs of a decoder: the scores of all words at each position, or the best word there"""
MASK = ("attention_mask", "decoder_attention_mask")
"""Inputs of a decoder that say which rows of its cache are in use"""
MAIN_CACHED = "main_cached"
"""The entry of a variant that appends to caches in memory of the caller"""
MAIN_LAST = "main_last"
"""The same, with an output of all tokens for one of them alone"""
ITEM_BYTES = {
    **dict.fromkeys(("bool", "int8", "uint8"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64"), 8),
    **dict.fromkeys(("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz"), 1),
    **dict.fromkeys(("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
}
"""Bytes of one element by type, of the types that tensors of a bundle may have"""
_MOST_ELEMENTS = 2**31 - 1
"""Of one tensor. Weights of a model file have no more, as it has at most 2 GiB"""
_MOST_DIMENSIONS = 32
"""NumPy 1 has no more"""
_LARGEST_COUNT = 2**63 - 1
_MOST_NAME_CHARACTERS = 200
"""of an axis"""
_SHORTEST_S, _LONGEST_S = 1e-9, 1e9
"""No model's time is shorter or longer"""

MOST_MEMBERS = 64
"""of a joined bundle"""
_OF_JOINED = ("members", "buckets", "stages")
"""Fields that a joined bundle has and its members have not"""

_LARGEST_DRAWN = 2**31 - 1

_Check = Callable[[Any], bool]
_HEX_DIGEST = re.compile(r"[0-9a-f]{64}")
_OBJECT_NAME = re.compile(r"[A-Za-z0-9_.-]+\.o")


def complaint(manifest: dict[str, Any]) -> str:
    """The first thing that is wrong with the manifest, empty when it is sound."""
    if "members" in manifest:
        return next(_joined_complaints(manifest), "")
    return next(_complaints(manifest), "")


def disturbed_shares(manifest: Mapping[str, Any]) -> set[str]:
    """The shares at which other programs disturbed the times of the whole model in `timed`."""
    return {share for share, cores in manifest.get("others_cores", {}).items() if is_disturbed(cores)}


def checked_of(manifest: Mapping[str, Any]) -> Checked | None:
    """That of a bundle or a member; None where a bundle does not say. Raises ValueError."""
    return Checked.from_json(manifest[CHECKED]) if CHECKED in manifest else None


def of_member(manifest: dict[str, Any], number: int) -> dict[str, Any]:
    """The manifest of a joined bundle's member: its fields, and those that all members share."""
    of_whole = (*_OF_JOINED, "compared") if "stages" in manifest else _OF_JOINED
    common = {name: value for name, value in manifest.items() if name not in of_whole}
    return {**common, **manifest["members"][number]}


def _joined_complaints(manifest: dict[str, Any]) -> Iterator[str]:
    """Each member is checked as a bundle of its own; the weights and the digests are those of all."""
    members = manifest["members"]
    if not _list_of(_is_object, fewest=1)(members) or len(members) > MOST_MEMBERS:
        yield f"'members' is not a list of 1 to {MOST_MEMBERS} objects"
        return
    for number, member in enumerate(members):
        strangers = {"members", "weights", "sha256", "format"} & set(member)
        if strangers:
            yield f"members[{number}] has '{min(strangers)}', which all members share"
        yield from (f"members[{number}]: {wrong}" for wrong in _complaints(of_member(manifest, number)))
    if ("buckets" in manifest) == ("stages" in manifest):
        yield "one of 'buckets' and 'stages' must be there, which say what its members are for"
    else:
        if wrong := compared_complaint({**manifest, "shares": members[0]["shares"]}):
            yield wrong
        if "stages" in manifest:
            yield from _stages_complaints(manifest)
        elif wrong := bucket_complaint(manifest, members):
            yield wrong


def _stages_complaints(manifest: dict[str, Any]) -> Iterator[str]:
    if wrong := stages_complaint(manifest, manifest["members"]):
        yield wrong
    for described in Stages.from_json(manifest["stages"]).tensors:
        shapes = [size for each in described for size in each.shape]
        if not all(size is None or _is_dimension(size) for size in shapes):
            yield "'stages' have a shape with a negative size"
        yield from _tensor_complaints("'stages': tensors", [each.to_json() for each in described])


def _complaints(manifest: dict[str, Any]) -> Iterator[str]:
    for field, (check, what) in _FIELDS.items():
        if field not in manifest:
            yield f"'{field}' is missing"
        elif not check(manifest[field]):
            yield f"'{field}' is not {what}"
    for field in ("inputs", "outputs", "weights"):
        yield from _tensor_complaints(field, manifest[field])
    for field in ("inputs", "outputs"):
        names = [tensor["name"] for tensor in manifest[field]]
        if len(set(names)) < len(names):
            yield f"two of '{field}' have one name"
    yield from _weight_complaints(manifest["weights"])
    yield from _slot_complaints(manifest)
    yield from _dims_complaints(manifest)
    yield from _cache_complaints(manifest)
    yield from _variant_complaints(manifest)
    yield from _measured_complaints(manifest)
    if wrong := checked_complaint(manifest):
        yield wrong
    if not {"compared", "between"}.isdisjoint(manifest) and (wrong := compared_complaint(manifest)):
        yield wrong


def checked_complaint(manifest: Mapping[str, Any]) -> str:
    """What is wrong with the field `checked`, empty if nothing is."""
    try:
        found = checked_of(manifest)
    except (AttributeError, TypeError, ValueError) as error:
        return f"'{CHECKED}' does not say what was compared ({error})"
    if found is None:
        return ""
    texts = [found.reference, found.reason, *found.variants, *found.sets]
    texts += [text for pair in found.skipped.items() for text in pair]
    texts += found.ranges
    if not all(0 <= least <= largest <= _LARGEST_DRAWN for least, largest in found.ranges.values()):
        return f"'{CHECKED}' has no range of numbers from 0 on"
    if not all(map(str.isprintable, texts)):
        return f"'{CHECKED}' has a text that is not printable"
    if not all(0 <= difference < math.inf for difference in found.sets.values()):
        return f"'{CHECKED}' has a difference that is not a number from 0 on"
    return ""


def _tensor_complaints(field: str, tensors: Sequence[dict[str, Any]]) -> Iterator[str]:
    for number, tensor in enumerate(tensors):
        if tensor["dtype"] not in ITEM_BYTES:
            yield f"{field}[{number}] has the unknown type '{tensor['dtype'][:80]}'"
        shape = tensor["shape"]
        # A dimension of 0 makes a tensor empty, and its other dimensions must be possible all the same.
        if len(shape) > _MOST_DIMENSIONS or math.prod(dim or 1 for dim in shape) > _MOST_ELEMENTS:
            yield f"{field}[{number}] has the shape {str(shape)[:80]}, which is too large for a tensor"


def _weight_complaints(weights: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Weights lie apart, so that together they are no larger than the file."""
    end = 0
    for number, weight in enumerate(weights):
        if weight["size"] != math.prod(weight["shape"]) * ITEM_BYTES[weight["dtype"]]:
            yield f"weights[{number}] has {weight['size']} bytes, and its type and shape have not"
        if weight["offset"] < end or weight["offset"] % ALIGNMENT_BYTES:
            yield f"weights[{number}] does not begin at a multiple of {ALIGNMENT_BYTES} after the weight before it"
        end = weight["offset"] + weight["size"]


def _slot_complaints(manifest: dict[str, Any]) -> Iterator[str]:
    """Of a fused model: whose slot each is, and what is called once for each."""
    if "slots" not in manifest:
        return
    if not _are_slots(manifest["slots"]) or not _list_of(is_storable)(manifest.get("apart")):
        yield "'slots' and 'apart' are not a list of printable names or nulls, and one of names"
        return
    for tensor in (*manifest["inputs"], *manifest["outputs"]):
        if tensor["shape"][:1] != [len(manifest["slots"])]:
            yield f"'{tensor['name']}' does not have the slots as its first dimension"


def _dims_complaints(manifest: dict[str, Any]) -> Iterator[str]:
    """Of an ONNX file: the axes of inputs as it has them. A size there is the input's own."""
    dims, shapes = manifest.get("dims", {}), {each["name"]: each["shape"] for each in manifest["inputs"]}
    if not isinstance(dims, dict) or not all(_list_of(_is_dim)(each) for each in dims.values()):
        yield "'dims' is not lists of sizes, names or nulls by input"
        return
    for name, axes in dims.items():
        shape = shapes.get(name)
        fixed = (
            None
            if shape is None
            else [dim if isinstance(dim, int) else size for dim, size in zip(axes, shape, strict=False)]
        )
        if fixed != shape or len(axes) != len(shape or ()):
            yield f"'dims' has other axes than the input {name[:80]!a}"


def _cache_complaints(manifest: dict[str, Any]) -> Iterator[str]:
    """Each cache is an input and an output. They differ in the rows along one axis alone, and the output has more; or
    they have the same shape, and the new rows have places there.
    """
    inputs, outputs = ({each["name"]: each["shape"] for each in manifest[field]} for field in ("inputs", "outputs"))
    caches = manifest.get("caches", [])
    if not _list_of(_is_object)(caches) or not all(
        isinstance(each.get(key), str) for each in caches for key in ("input", "output")
    ):
        yield "'caches' is not a list of objects with an input and an output"
        return
    if len({each["input"] for each in caches}) < len(caches):
        yield "two of 'caches' have one input"
    for cache in caches:
        past, present, axis = inputs.get(cache["input"]), outputs.get(cache["output"]), cache.get("axis")
        if past is None or present is None or type(axis) is not int or not 0 <= axis < len(past):
            yield "'caches' name an input, an output or an axis that is not there"
        elif len(past) != len(present) or None in (*past, *present) or past[axis] > present[axis]:
            yield f"the cache '{cache['input']}' has fewer rows behind a call than before"
        elif [*past[:axis], *past[axis + 1 :]] != [*present[:axis], *present[axis + 1 :]]:
            yield f"the cache '{cache['input']}' has other shapes before and behind a call"


def _variant_complaints(manifest: dict[str, Any]) -> Iterator[str]:
    variants = {variant["name"] for variant in manifest["variants"]}
    if len(variants) != len(manifest["variants"]):
        yield "two of 'variants' have one name"
    for variant in manifest["variants"]:
        if not _are_places(variant.get("weights"), len(manifest["weights"])):
            yield f"the 'weights' of the variant '{variant['name']}' are not places in 'weights'"
    known = {*manifest["shares"], ROBUST_VARIANT, UNTUNED_VARIANT}
    plain = {name: plain_variant(name) for name in variants}
    strangers = {name for name, share in plain.items() if share not in known and not _is_range(share, known)}
    if strangers:
        yield f"the variant '{min(strangers)}' is not among 'shares'"


def _is_range(name: str, shares: Collection[str]) -> bool:
    """Whether a variant is named after a range with both ends among the shares."""
    try:
        ends = Share.parse(name).ends
    except BadRequest:
        return False
    return ends is not None and all(str(end) in shares for end in ends)


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
    timed = manifest.get("timed", {})
    if not _map_of(_is_time)(timed) or not all(timed.values()) or not set(timed) <= set(manifest["shares"]):
        yield "'timed' is not seconds by some of 'shares'"
    if not _map_of(_is_time)(found := manifest.get("others_cores", {})) or not set(found) <= set(timed):
        yield "'others_cores' is not cores by some of the shares of 'timed'"
    yield from _served_complaints(manifest, variants)
    choosing = manifest.get("choosing", {})
    if not _is_measured(choosing) or _known_times(choosing) != _known_times(measured):
        yield "'choosing' is not seconds of the shares and variants of 'measured'"


def _served_complaints(manifest: dict[str, Any], variants: set[str]) -> Iterator[str]:
    served, limits = manifest.get("served", {}), manifest.get("limits", {})
    if not _map_of(_is_limit)(limits):
        yield "'limits' is not grants with a limit by share"
    if not _map_of(_has_goals)(served) or not set(served) <= {*manifest["shares"], *limits}:
        yield "'served' is not variants with threads and seconds by goal, for some of 'shares' and 'limits'"
    elif not {goals[goal]["variant"] for goals in served.values() for goal in _GOALS} <= variants:
        yield "'served' has a variant that is not there"


def _known_times(held: dict[str, dict[str, float]]) -> set[tuple[str, str]]:
    """Shares and variants that there is a time of."""
    return {(share, name) for share, times in held.items() for name, secs in times.items() if secs > 0}


def _is_shown(value: Any) -> bool:
    """Whether it is text on which no terminal acts: commands print it as it is."""
    return is_storable(value) and bool(value.isprintable())


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_dimension(value: Any) -> bool:
    return type(value) is int and value >= 0


def is_dim_name(value: Any) -> bool:
    """Whether `dims` may have it for an open axis."""
    return _is_shown(value) and len(value) <= _MOST_NAME_CHARACTERS


def _is_dim(value: Any) -> bool:
    return value is None or _is_dimension(value) or is_dim_name(value)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _LARGEST_COUNT


def _is_amount(value: Any) -> bool:
    return _is_count(value) and bool(value > 0)


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and (value == 0 or bool(_SHORTEST_S <= value <= _LONGEST_S))


def _is_device(value: Any) -> bool:
    return _has_device(value) and _is_shown(value.get("label", ""))


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and _HEX_DIGEST.fullmatch(value) is not None


def _is_object_name(value: Any) -> bool:
    """Whether it names a file in the folder of its variant, for programs that unpack bundles too."""
    return isinstance(value, str) and _OBJECT_NAME.fullmatch(value) is not None


def _are_places(value: Any, count: int) -> bool:
    return isinstance(value, list) and all(_is_count(place) and place < count for place in value)


def _list_of(check: _Check, fewest: int = 0) -> _Check:
    return lambda value: isinstance(value, list) and len(value) >= fewest and all(map(check, value))


def _map_of(check: _Check) -> _Check:
    return lambda value: (
        isinstance(value, dict) and all(_is_shown(name) and check(each) for name, each in value.items())
    )


def _object_with(**fields: _Check) -> _Check:
    """Other fields than these may be there, for later versions to add."""
    return lambda value: (
        isinstance(value, dict) and all(name in value and check(value[name]) for name, check in fields.items())
    )


_are_slots = _list_of(lambda slot: slot is None or _is_shown(slot), fewest=1)
_has_device = _object_with(kind=_is_shown, isa=_is_shown, units=_is_amount, memory_gib=_is_count, l2_kib=_is_count)
_is_shape = _list_of(_is_dimension)
_is_tensor = _object_with(name=is_storable, dtype=is_storable, shape=_is_shape)
_is_output = _object_with(
    # a dimension that depends on the data is null
    name=is_storable,
    dtype=is_storable,
    shape=_list_of(lambda dim: dim is None or _is_dimension(dim)),
)


def _is_target(value: Any) -> bool:
    if not _is_shown(value):
        return False
    try:
        read_attributes(value)
    except BadRequest:
        return False
    return True


_is_weight = _object_with(dtype=is_storable, shape=_is_shape, offset=_is_count, size=_is_count)
_are_kernels = _map_of(_is_shown)
_has_objects = _object_with(name=_is_shown, objects=_list_of(_is_object_name, fewest=1))


def _is_variant(value: Any) -> bool:
    return _has_objects(value) and _are_kernels(value.get("kernels", {}))


_is_measured = _map_of(_map_of(_is_time))
_has_times = _object_with(
    variant=_is_shown,
    threads=_is_amount,
    loop_s=_is_time,
    p50_s=_is_time,
    p99_s=lambda value: value is None or _is_time(value),
)
_is_limit = _object_with(
    limit=_object_with(
        quota_m=_is_amount,
        request_m=_is_count,
        span=_is_amount,
        period_us=_is_amount,
        burst_us=_is_count,
        burned_m=_is_amount,
    )
)
_GOALS = get_args(ServiceGoal)
_has_goals = _object_with(**dict.fromkeys(_GOALS, _has_times))

_has_name = _object_with(name=_is_shown, sha256=is_storable)
_OF_METADATA: dict[str, _Check] = {
    "version": lambda value: type(value) is int,
    "custom_metadata_map": lambda value: isinstance(value, dict) and all(map(is_storable, (*value, *value.values()))),
}
"""Other fields are texts"""


def _is_model(value: Any) -> bool:
    return _has_name(value) and _is_metadata(value.get("metadata", {}))


def _is_metadata(value: Any) -> bool:
    return isinstance(value, dict) and all(_OF_METADATA.get(name, is_storable)(value[name]) for name in value)


_FIELDS: dict[str, tuple[_Check, str]] = {
    "model": (_is_model, "an object with a printable name, sha256, and metadata as texts if any"),
    "device": (_is_device, "an object with kind, isa, units, memory_gib and l2_kib"),
    "target": (_is_target, "the JSON of a target"),
    "code": (
        _object_with(architecture=_is_shown, features=_list_of(_is_shown)),
        "an object with architecture and features",
    ),
    "inputs": (_list_of(_is_tensor), "a list of name, dtype and shape"),
    "outputs": (_list_of(_is_output), "a list of name, dtype and shape"),
    "weights": (_list_of(_is_weight), "a list of dtype, shape, offset and size"),
    "shares": (_map_of(_object_with(units=_is_amount)), "an object of printable shares with units"),
    "variants": (_list_of(_is_variant, fewest=1), "a list of printable name and objects such as kernel.o"),
    "sha256": (_map_of(_is_digest), "an object of digests"),
}
