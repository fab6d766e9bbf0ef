"""The pack: candidates of a model's operators, built on one machine to be measured on another one.

    manifest.json            a PackManifest, and the SHA-256 of every other entry
    manifest.sig             Ed25519 signature of manifest.json, in a signed pack only
    operators/<n>.json       a PackedOperator, the n-th of the plan: the one with most to compute comes first
    code/<candidate>         machine code of a candidate: an object file, for a GPU an archive of two
    host/anchor, host/loop   object files of the kernels that a measuring process on a CPU needs for itself

It is a sealed file (`sealed.py`). It has code for one target, and nothing that only a compiler could read.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from fractune_core.codec.plain_json import JsonObject, checked, read_json
from fractune_core.errors import FractuneError
from fractune_core.files.sealed import SealedFile, write_sealed
from fractune_core.names import digest_of
from fractune_core.operators import check_operator, check_workload
from fractune_core.records import UNTUNED, ArtifactItem, Status, candidate_id
from fractune_core.targets import read_attributes, target_key

FORMAT = "pack 1"
SUFFIX = ".pack"
ANCHOR, LOOP = "host/anchor", "host/loop"
MOST_OPERATORS = 4096
MOST_CANDIDATES = 1024
"""of an operator"""
_MOST_OPERATOR_BYTES = 64 << 20
_MOST_CODE_BYTES = 64 << 20
_MOST_ARGUMENT_BYTES = 16 << 30
"""of all arguments of an operator"""
_MOST_DIMENSIONS = 16


@dataclass(frozen=True)
class PackManifest(JsonObject):
    """What the pack is."""

    format: str
    model: str
    """file name of the model: a label"""
    target: str
    """TVM's target as JSON"""
    target_key: str
    operators: int
    """how many"""
    architecture: str
    """of the machine code that runs on the host: `x86_64`"""
    features: list[str]
    """instruction sets that this code may use, by LLVM's names"""
    versions: dict[str, str]
    """of what made the code: tvm, fractune"""
    sha256: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PackedOperator(JsonObject):
    """An operator and its candidates in the order of measuring; the first is the untuned default."""

    name: str
    workload_hash: str
    workload: str
    """the text that the hash is of"""
    weight: int
    """how often it occurs in the model"""
    args_info: list[Any]
    """descriptions of its arguments (`traces.args_of`). Their contents follow from a seed."""
    candidates: list[ArtifactItem]


class Pack(SealedFile):
    """A pack opened for reading. Raises BadBundle for any other file. Operators are checked when they are read."""

    KIND = "pack"
    MADE_BY = "fractune pack MODEL"

    def _check(self) -> None:
        if self.written.get("format") != FORMAT:
            found = ascii(self.written.get("format"))[:20]
            raise self._bad(f"its format is {found}, and this fractune reads '{FORMAT}'")
        try:
            self.manifest = checked(PackManifest, self.written)
            kind = str(read_attributes(self.manifest.target).get("kind"))
            own_key = target_key(self.manifest.target)
        except (FractuneError, ValueError) as error:
            raise self._bad(f"its manifest is not that of a pack ({error})") from error
        if own_key != self.manifest.target_key or not 1 <= self.manifest.operators <= MOST_OPERATORS:
            raise self._bad("its manifest contradicts itself")
        self.device_kind = "cuda" if kind == "cuda" else "cpu"
        """of the shares that it can be measured at"""
        needed = {_operator_entry(number) for number in range(self.manifest.operators)}
        needed |= set() if self.device_kind == "cuda" else {ANCHOR, LOOP}
        missing = needed - self.manifest.sha256.keys()
        if missing:
            raise self._bad(f"'{min(missing)}' is missing")

    @property
    def digest(self) -> str:
        """32 hex digits that name the pack."""
        return digest_of(self.manifest_bytes.decode(errors="replace"))

    def operators(self) -> Iterator[PackedOperator]:
        """The operators, in the order of the plan. Raises BadBundle."""
        for number in range(self.manifest.operators):
            entry = _operator_entry(number)
            self._check_size(entry, _MOST_OPERATOR_BYTES)
            try:
                operator = checked(PackedOperator, read_json(self.read(entry)))
                self._check_operator(operator)
            except (FractuneError, ValueError) as error:
                raise self._bad(f"'{entry}' is not an operator of it ({error})") from error
            yield operator

    def code(self, candidate: str) -> bytes:
        """Machine code of a candidate that was built. Raises BadBundle."""
        entry = _code_entry(candidate)
        self._check_size(entry, _MOST_CODE_BYTES)
        return self.read(entry)

    def host_kernel(self, entry: str) -> bytes:
        """ANCHOR or LOOP; empty in a pack for a GPU. Raises BadBundle."""
        if entry not in self.manifest.sha256:
            return b""
        self._check_size(entry, _MOST_CODE_BYTES)
        return self.read(entry)

    def _check_size(self, entry: str, most_bytes: int) -> None:
        if self.size(entry) > most_bytes:
            raise self._bad(f"'{entry}' is larger than {most_bytes} bytes")

    def _check_operator(self, operator: PackedOperator) -> None:
        """Raises ValueError or FractuneError."""
        check_operator(operator.name, operator.weight, 0.0, 0, 0)
        check_workload(operator.workload_hash, operator.workload)
        _check_arguments(operator.args_info)
        names = [each.candidate for each in operator.candidates]
        if not 1 <= len(names) <= MOST_CANDIDATES or len(set(names)) < len(names):
            raise ValueError(f"it has {len(names)} candidates, {len(set(names))} of them different")
        if operator.candidates[0].trace != UNTUNED:
            raise ValueError("its first candidate is not the untuned default")
        for each in operator.candidates:
            if each.candidate != candidate_id(operator.workload_hash, self.manifest.target_key, each.trace):
                raise ValueError(f"candidate '{each.candidate[:40]}' does not belong to its trace")
            if each.status is Status.OK and _code_entry(each.candidate) not in self.manifest.sha256:
                raise ValueError(f"candidate {each.candidate} has no code")
            if not 0 <= each.build_secs < math.inf:
                raise ValueError(f"candidate {each.candidate} was built in {each.build_secs} s")


def _check_arguments(described: Sequence[Any]) -> None:
    """Raises ValueError for descriptions that no arguments fit."""
    elements = 0
    for each in described:
        kind, dtype, shape, *_ = each if isinstance(each, list) and len(each) >= 3 else ("", "", [])
        if kind != "TENSOR" or not isinstance(dtype, str) or not isinstance(shape, list):
            raise ValueError("an argument is not a tensor")
        if len(shape) > _MOST_DIMENSIONS or not all(type(dim) is int and dim > 0 for dim in shape):
            raise ValueError(f"an argument has the shape {str(shape)[:80]}")
        elements += math.prod(shape)
    if not described or elements * 8 > _MOST_ARGUMENT_BYTES:
        raise ValueError(f"its {len(described)} arguments have {elements} elements")


def write_pack(
    file: IO[bytes],
    manifest: PackManifest,
    operators: Sequence[PackedOperator],
    codes: Mapping[str, bytes],
    host_kernels: Mapping[str, bytes],
) -> None:
    """Write a pack; `codes` by candidate, `host_kernels` by ANCHOR and LOOP. Raises BadRequest for more than a reader
    takes.
    """
    entries = {_operator_entry(at): [json.dumps(each.to_json()).encode()] for at, each in enumerate(operators)}
    entries |= {_code_entry(name): [code] for name, code in codes.items()}
    entries |= {name: [code] for name, code in host_kernels.items()}
    write_sealed(file, Pack.KIND, manifest.to_json(), entries)


def _operator_entry(number: int) -> str:
    return f"operators/{number}.json"


def _code_entry(candidate: str) -> str:
    return f"code/{candidate}"
