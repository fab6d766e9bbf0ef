"""Devices and their shares: what part of a device a model runs on, as asked for (`Share`) and as proved from inside
(`GrantedShare`). A device is one processor, by the facts that decide speed; the product name is only a label.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fractune_core.errors import BadRequest
from fractune_core.fields import known_fields, own_fields


@dataclass(frozen=True)
class Device:
    """A GPU or the host CPU."""

    kind: str
    """`cpu` or `cuda`"""
    isa: str
    """LLVM's name of the CPU (`rocketlake`), or the compute capability (`sm_90`)"""
    units: int
    """cores or SMs of the whole device"""
    memory_gib: int
    """rounded, so that a few pages more or less make no other device"""
    l2_kib: int
    """second-level cache of one core, or of the GPU; 0 when the system does not tell"""
    label: str = ""
    """product name, for people"""

    @cached_property
    def key(self) -> str:
        """Identity for lookups; `label` is left out on purpose (one silicon is sold under several names)."""
        return f"{self.kind}-{self.isa}-{self.units}u-{self.memory_gib}gib-l2.{self.l2_kib}kib"

    def to_json(self) -> dict[str, Any]:
        return own_fields(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Device:
        return cls(**known_fields(cls, data))


_MIG_PROFILE = r"[1-7]g\.[1-9][0-9]{0,2}gb(\+me)?"
_MIG_UUID = r"MIG-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_FORMS = {
    "cpu": re.compile(r"[1-9][0-9]{0,3}"),
    "mps": re.compile(r"[1-9][0-9]?|100"),
    "mps-sm": re.compile(r"[1-9][0-9]{0,3}"),
    "mig": re.compile(f"{_MIG_PROFILE}|{_MIG_UUID}"),
    "green": re.compile(r"[1-9][0-9]{0,3}"),
}
_WITHOUT_SIZE = ("full", "none")
_HINT = "write cpu:N, mps:PERCENT, mps-sm:CHUNKS, mig:PROFILE, mig:UUID, green:SMS, full or none"


@dataclass(frozen=True, order=True)
class Share:
    """A share as a user asks for it: `mechanism` and its `size` as text (empty for `full` and `none`)."""

    mechanism: str
    size: str = ""

    def __str__(self) -> str:
        return f"{self.mechanism}:{self.size}" if self.size else self.mechanism

    @classmethod
    def parse(cls, text: str) -> Share:
        """Read `cpu:1`, `mps:25`, `mps-sm:4`, `mig:1g.18gb`, `mig:MIG-<uuid>`, `green:32`, `full` or `none`.

        `full` is a whole GPU, proved. `none` is a GPU as it is found: nothing is proved, and its records say so.
        Raises BadRequest for any other text.
        """
        mechanism, _, size = text.strip().partition(":")
        if text.strip() in _WITHOUT_SIZE:
            return cls(text.strip())
        form = _FORMS.get(mechanism)
        if form is None:
            raise BadRequest(f"share '{text}': unknown mechanism '{mechanism}'; {_HINT}")
        if not form.fullmatch(size):
            raise BadRequest(f"share '{text}': '{size}' is no size for {mechanism}; {_HINT}")
        return cls(mechanism, size)

    @property
    def device_kind(self) -> str:
        """`cpu` or `cuda`: what kind of device has such shares"""
        return "cpu" if self.mechanism == "cpu" else "cuda"

    @property
    def cores(self) -> int:
        """Cores that a `cpu` share asks for. Raises BadRequest for another mechanism."""
        if self.mechanism != "cpu":
            raise BadRequest(f"share '{self}' is not a CPU share")
        return int(self.size)

    @property
    def host_cores(self) -> int:
        """Cores of the host that its measurer computes on: for a GPU share one, from which kernels are launched."""
        return self.cores if self.device_kind == "cpu" else 1


def parse_shares(text: str) -> list[Share]:
    """Read a comma-separated list of shares; order kept. Raises BadRequest when empty, wrong or repeated."""
    shares = [Share.parse(part) for part in text.split(",") if part.strip()]
    if not shares:
        raise BadRequest(f"no share in '{text}'; {_HINT}")
    repeated = {str(share) for share in shares if shares.count(share) > 1}
    if repeated:
        raise BadRequest(f"share '{min(repeated)}' is named twice in '{text}'; name each share once")
    return shares


@dataclass(frozen=True)
class GrantedShare:
    """What a worker proved from inside after it was confined."""

    share: str
    """the share asked for, as text"""
    units: int
    """cores or SMs granted"""
    units_total: int
    """cores or SMs of the whole device"""
    unit: str
    """`core` or `sm`"""
    memory_bytes: int
    """memory this share may use"""
    reserved: bool
    """True when the units are this share's alone, False when they are only a cap"""
    ids: tuple[int, ...] = ()
    """which units, where the mechanism can tell"""

    @cached_property
    def mechanism(self) -> str:
        return Share.parse(self.share).mechanism

    @property
    def fraction(self) -> float:
        """granted over total units, 0 to 1"""
        return self.units / self.units_total

    @property
    def key(self) -> str:
        """Identity for lookups: two measurements with the same key ran under the same share.

        The granted units count, not the text asked for: `mps:25` and `mps:26` may grant the same SMs. Of a MIG instance
        the memory counts too: it has its own part of the bandwidth and the cache, and 14 SMs of an A100 come with one
        slice of them or with two.
        """
        key = f"{self.mechanism}/{self.units}of{self.units_total}{self.unit}"
        return f"{key}-{round(self.memory_bytes / 2**30)}gib" if self.mechanism == "mig" else key

    def to_json(self) -> dict[str, Any]:
        return {**own_fields(self), "ids": list(self.ids)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> GrantedShare:
        known = known_fields(cls, data)
        return cls(**{**known, "ids": tuple(known.get("ids", ()))})


def units_text(units: int | Sequence[int], unit: str) -> str:
    """`1 core`, `4 cores`, `1, 2 cores`, `132 SMs`."""
    numbers = [units] if isinstance(units, int) else list(units)
    return f"{', '.join(map(str, numbers))} {unit_name(unit)}{'' if numbers == [1] else 's'}"


def unit_name(unit: str) -> str:
    """`core`, `SM`: a unit as people write it."""
    return "SM" if unit == "sm" else unit
