"""Bundles of one model become one, whose members share one copy of the weights.

The members are for several shapes, or they are parts of the model. `bundles.py` reads the file.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

from fractune_core.errors import BadRequest
from fractune_core.files.buckets import Buckets
from fractune_core.files.bundles import JOINED_FORMAT, RECORDS, WEIGHTS, Bundle, member_folder, object_entry
from fractune_core.files.compared import ONNX_RUNTIME, Runtime
from fractune_core.files.manifests import ALIGNMENT_BYTES, MOST_MEMBERS
from fractune_core.files.sealed import write_sealed
from fractune_core.files.staged import Stages

_COMMON = ("model", "device", "target", "target_key", "code")
"""Fields that are equal in all members"""
_OF_FILE = ("format", "weights", "sha256")
"""Fields that describe a whole file"""


def join_bundles(file: IO[bytes], bundles: Sequence[Bundle], buckets: Buckets) -> None:
    """Write one bundle to `file`, with a member for each of the plain `bundles`, in their order: the smallest inputs
    first. Raises BadRequest for bundles that do not belong together, BadBundle for a damaged one.
    """
    _check_joinable(bundles, _COMMON)
    _write(file, bundles, {"model": bundles[0].manifest["model"], "buckets": buckets.to_json()}, {})


def join_stages(
    file: IO[bytes],
    bundles: Sequence[Bundle],
    stages: Stages,
    parts: Mapping[str, bytes],
    model: Mapping[str, str],
    runtime: Runtime,
) -> None:
    """Write one bundle of the `model` (`name`, `sha256`) to `file`. The plain `bundles` are the members of its stages,
    and `parts` are the files that ONNX Runtime runs, by their entries. Raises as `join_bundles`.
    """
    _check_joinable(bundles, [name for name in _COMMON if name != "model"])
    fields = {"model": dict(model), "stages": stages.to_json(), "runtimes": {ONNX_RUNTIME: runtime.to_json()}}
    _write(file, bundles, fields, {entry: [payload] for entry, payload in parts.items()})


def _write(
    file: IO[bytes], bundles: Sequence[Bundle], fields: Mapping[str, Any], others: Mapping[str, list[bytes]]
) -> None:
    weights = _Weights()
    members: list[dict[str, Any]] = []
    entries: dict[str, Iterable[bytes | memoryview]] = {}
    for number, bundle in enumerate(bundles):
        members.append(_member(bundle, weights.add(bundle)))
        entries.update(_objects(bundle, number))
    manifest = {
        "format": JOINED_FORMAT,
        **{name: bundles[0].manifest[name] for name in _COMMON if name in bundles[0].manifest},
        **fields,
        "weights": weights.described,
        "members": members,
    }
    write_sealed(
        file, Bundle.KIND, manifest, {RECORDS: [_records(bundles)], WEIGHTS: weights.pieces, **others, **entries}
    )


def _check_joinable(bundles: Sequence[Bundle], common: Sequence[str]) -> None:
    if not bundles:
        raise BadRequest("no bundle to join; name at least one")
    if len(bundles) > MOST_MEMBERS:
        raise BadRequest(f"{len(bundles)} bundles to join, and {MOST_MEMBERS} is the limit; name fewer")
    first = bundles[0]
    for bundle in bundles:
        if bundle.members:
            raise BadRequest(f"{bundle.name} is joined already; name the bundles that it was made of")
        if "slots" in bundle.manifest:
            raise BadRequest(f"{bundle.name} is of a fused model, which cannot be joined; name another bundle")
        for name in common:
            if bundle.manifest.get(name) != first.manifest.get(name):
                raise BadRequest(
                    f"{bundle.name} and {first.name} differ in '{name}'; join bundles of one model, made for one "
                    "device and target"
                )


def _member(bundle: Bundle, places: Sequence[int]) -> dict[str, Any]:
    """The fields of the member, whose variants take their weights from new places."""
    variants = [
        {**variant, "weights": [places[place] for place in bundle.weights_of(variant["name"])]}
        for variant in bundle.variants
    ]
    own = {name: value for name, value in bundle.manifest.items() if name not in (*_COMMON, *_OF_FILE)}
    return {**own, "variants": variants}


def _objects(bundle: Bundle, number: int) -> Iterator[tuple[str, list[bytes]]]:
    for index, variant in enumerate(bundle.variants):
        for name, code in zip(variant["objects"], bundle.objects(variant["name"]), strict=True):
            yield object_entry(index, name, member_folder(number)), [code]


def _records(bundles: Sequence[Bundle]) -> bytes:
    lines = (json.dumps(record) for bundle in bundles for record in bundle.records())
    return "".join(f"{line}\n" for line in dict.fromkeys(lines)).encode()


class _Weights:
    """The weights of several bundles, each contents once, as they lie in the joined file."""

    def __init__(self) -> None:
        self.described: list[dict[str, Any]] = []
        """their `dtype`, `shape`, `offset` and `size`"""
        self.pieces: list[bytes | memoryview] = []
        """the bytes of the file"""
        self._places: dict[tuple[Any, ...], int] = {}
        self._end = 0

    def add(self, bundle: Bundle) -> list[int]:
        """The places of the bundle's weights, in their order."""
        described = bundle.manifest["weights"]
        parts = bundle.parts(WEIGHTS, ((each["offset"], each["size"]) for each in described))
        return [self._place(each, part) for each, part in zip(described, parts, strict=True)]

    def _place(self, weight: Mapping[str, Any], payload: bytearray) -> int:
        key = (weight["dtype"], *weight["shape"], hashlib.sha256(payload).digest())
        if key not in self._places:
            offset = math.ceil(self._end / ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            self.pieces += [bytes(offset - self._end), memoryview(payload)]
            self._end = offset + len(payload)
            self._places[key] = len(self.described)
            self.described.append({**weight, "offset": offset})
        return self._places[key]
