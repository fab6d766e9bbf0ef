"""Devices and their shares: the part of a device that a model runs on, as requested (`Share`) and as proved from inside
(`GrantedShare`). A device is one processor, identified by the facts that decide speed; the product name is only a
label.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from fractune_core.codec.plain_json import JsonObject
from fractune_core.cpu_limits import GrantedLimit
from fractune_core.errors import BadRequest, shortened
from fractune_core.share_kinds import CPU, CUDA, SHARE_KINDS, ShareKind, kind_of, range_ends, write_one

_UNITS_IN_KEY = re.compile(r"-(\d+)u-")
_SHOWN = 200
MOST_SHARES = 64
"""in a list: work for each pair of them is common"""
"""characters of a list of shares in a message"""
MOST_MEASURERS = 4
"""at one share, where the noise was never measured"""
QUIET_BELOW_CORES = 4
"""On a host with fewer cores, a measurement has the whole host to itself: a build on the other core would take memory
bandwidth and clock speed from it."""


@dataclass(frozen=True)
class Device(JsonObject):
    """A GPU or the host CPU."""

    kind: str
    """`cpu` or `cuda`"""
    isa: str
    """LLVM's name of the CPU (`rocketlake`), or the compute capability (`sm_90`)"""
    units: int
    """cores or SMs of the whole device"""
    memory_gib: int
    """rounded, so that a few pages more or less do not make another device"""
    l2_kib: int
    """second-level cache of one core, or of the GPU; 0 when the system does not report it"""
    label: str = ""
    """product name, for people"""

    @cached_property
    def key(self) -> str:
        """Identity for lookups, without `label`, because one silicon is sold under several names."""
        return f"{self.kind}-{self.isa}-{self.units}u-{self.memory_gib}gib-l2.{self.l2_kib}kib"


@dataclass(frozen=True, order=True)
class Share:
    """A share as a user requests it: `mechanism` and its `size` as text (empty for `full` and `none`)."""

    mechanism: str
    size: str = ""

    def __str__(self) -> str:
        return f"{self.kind.word}:{self.size}" if self.size else self.kind.word

    @classmethod
    def parse(cls, text: str) -> Share:
        """Read `cpu:1`, `cpu:1500m`, `mps:25..50`, `mig:1g.18gb`, `full`: the text of a kind in SHARE_KINDS.

        Raises BadRequest for any other text.
        """
        text = text.strip()
        if "," in text:
            raise BadRequest(
                f"share '{text}': this is a list; name one share, such as {text.partition(',')[0].strip()}"
            )
        word, _, size = text.partition(":")
        kinds = [kind for kind in SHARE_KINDS if kind.word == word]
        for kind in kinds:
            share = cls(kind.mechanism, size)
            if re.fullmatch(kind.size_form, size) and str(share) == text:
                share._check_size()
                return share
        if not kinds:
            raise BadRequest(f"share '{text}': unknown mechanism '{word}'; {write_one(SHARE_KINDS)}")
        sizes = " or ".join(filter(None, (kind.sizes for kind in kinds))) or "nothing"
        wrong = f"'{size}' is not a size of {word}, which takes {sizes}"
        raise BadRequest(f"share '{text}': {wrong}; {write_one(kinds)}")

    def _check_size(self) -> None:
        try:
            self.kind.check_size(self.size)
        except BadRequest as error:
            raise BadRequest(f"share '{self}': {error}") from error

    @property
    def kind(self) -> ShareKind:
        return kind_of(self.mechanism)

    @property
    def device_kind(self) -> str:
        """`cpu` or `cuda`: what kind of device has such shares"""
        return self.kind.device_kind

    @property
    def cores(self) -> int:
        """Cores that a CPU share requests. Raises BadRequest for a share of a GPU."""
        if self.device_kind != CPU:
            raise BadRequest(f"share '{self}' is not a CPU share")
        return self.host_cores

    @property
    def host_cores(self) -> int:
        """Cores of the host that its measurer computes on: for a GPU share one, from which kernels are launched."""
        return self.kind.cores(self.size)

    @property
    def kernel_shares(self) -> tuple[Share, ...]:
        """Where kernels are measured for this share: for a CPU limit at the whole cores that it spans, for a range at
        its ends and between them, else here.
        """
        at = self.kind.kernels_at
        return (self,) if at is None else tuple(map(Share.parse, at(self.size)))

    @property
    def ends(self) -> tuple[Share, Share] | None:
        """The guarantee and the burst of a range; None for a single share."""
        if not self.kind.range_of:
            return None
        guarantee, burst = map(str, range_ends(self.size))
        return Share(self.kind.range_of, guarantee), Share(self.kind.range_of, burst)

    def spans(self, share: str) -> bool:
        """Whether it is a range and the share within it."""
        if self.ends is None:
            return False
        least, most, other = int(self.ends[0].size), int(self.ends[1].size), Share.parse(share)
        return other.mechanism == self.kind.range_of and least <= int(other.size) <= most

    @property
    def mig_uuid(self) -> str:
        """UUID of the MIG instance that the share names; empty for any other share."""
        return self.size if self.size.startswith("MIG-") else ""

    @property
    def default_measurers(self) -> int:
        """Measurers of a stack where the noise was never measured: as many as one device may have room for, at most
        MOST_MEASURERS; one where measurements take turns.

        The text of the share alone decides. Where there is less room (fewer instances, larger chunks), the workers
        that start last find out.
        """
        return max(1, min(self.kind.room(self.size), MOST_MEASURERS))

    def check_measures_kernels(self) -> None:
        """Raises BadRequest for a share under which no kernel is measured."""
        if not self.kind.measures_kernels:
            why = (
                "this is a range, and a process that measures is at one share of it"
                if self.ends
                else "under a CPU limit only whole models are timed, and their kernels at whole cores"
            )
            raise BadRequest(f"share '{self}': {why}; write {', '.join(map(str, self.kernel_shares))}")

    def check_serves(self, device_kind: str) -> None:
        """Raises BadRequest unless a model for such a device can be served at this share."""
        serving = [kind for kind in SHARE_KINDS if kind.serves and kind.device_kind == device_kind]
        if self.device_kind != device_kind:
            own, other = ("GPU", "CPU") if device_kind == CUDA else ("CPU", "GPU")
            raise BadRequest(f"share '{self}' is of a {other}, and the bundle is for a {own}; {write_one(serving)}")
        if not self.kind.serves and not self.kind.measures_kernels:
            raise BadRequest(
                f"share '{self}': a process cannot put itself under a CPU limit; start it in a container with the "
                "limit, without a share: the model then chooses its threads by the limit"
            )
        if not self.kind.serves:
            raise BadRequest(
                f"share '{self}': a process that serves a model must be under its share as a whole, which this share "
                f"does not allow; {write_one(serving)}"
            )


def parse_shares(text: str) -> list[Share]:
    """Read a comma-separated list of shares; order kept. Raises BadRequest when empty, wrong, repeated or too long: a
    range counts as the shares at which it is measured.
    """
    too_many = BadRequest(f"more than {MOST_SHARES} shares in '{shortened(text, _SHOWN)}'; name less")
    if text.count(",") >= MOST_SHARES:
        raise too_many
    shares = [Share.parse(part) for part in text.split(",") if part.strip()]
    if not shares:
        raise BadRequest(f"no share in '{text}'; {write_one(SHARE_KINDS)}")
    if sum(len(share.kernel_shares) if share.ends else 1 for share in shares) > MOST_SHARES:
        raise too_many
    repeated = {str(share) for share, count in Counter(shares).items() if count > 1}
    if repeated:
        raise BadRequest(f"share '{min(repeated)}' is named twice in '{shortened(text, _SHOWN)}'; name each share once")
    return shares


def with_kernel_shares(shares: Iterable[str]) -> tuple[str, ...]:
    """The shares that workers measure at, each behind those at which its kernels are measured; all once. A range is not
    one of them. Raises BadRequest.
    """
    parsed = map(Share.parse, shares)
    found = (each for share in parsed for each in (*share.kernel_shares, *([] if share.ends else [share])))
    return tuple(dict.fromkeys(map(str, found)))


def share_names(shares: str | Sequence[str]) -> tuple[str, ...]:
    """`"cpu:1,cpu:2"` or `["cpu:1", "cpu:2"]` as names of shares. Raises BadRequest as `parse_shares`."""
    return tuple(map(str, parse_shares(shares if isinstance(shares, str) else ",".join(map(str, shares)))))


@dataclass(frozen=True)
class GrantedShare(JsonObject):
    """A share as a worker proved it from inside, after confinement."""

    share: str
    """the requested share, as text"""
    units: int
    """granted, counted in `unit`"""
    units_total: int
    """of the whole device"""
    unit: str
    """`core`, `sm`, or `millicore` for a CPU limit"""
    memory_bytes: int
    """memory that this share may use"""
    reserved: bool
    """True when only this share may use the units, False when they are only a cap"""
    ids: tuple[int, ...] = ()
    """ids of the cores or SMs, where the mechanism reports them"""
    limit: GrantedLimit | None = None
    """of a CPU limit; None for all other shares"""
    physical_cores: int = 0
    """that the CPUs in `ids` belong to, as the kernel shows them; 0 for a GPU"""

    @cached_property
    def kind(self) -> ShareKind:
        return Share.parse(self.share).kind

    @property
    def mechanism(self) -> str:
        return self.kind.mechanism

    @property
    def fraction(self) -> float:
        """granted over total units, 0 to 1"""
        return self.units / self.units_total

    @property
    def key(self) -> str:
        """Identity for lookups: two measurements with the same key ran under the same share.

        The granted units count, not the requested text: `mps:25` and `mps:26` may grant the same SMs. For a MIG
        instance the memory counts too. It has its own part of the bandwidth and the cache, and 14 SMs of an A100 come
        with one slice of them or with two.
        """
        key = f"{self.mechanism}/{self.units}of{self.units_total}{self.unit}"
        if self.limit is not None:
            return f"{key}-{self.limit.key}"
        return f"{key}-{round(self.memory_bytes / 2**30)}gib" if self.kind.has_own_memory else key


def expected_units(device_key: str, shares: Iterable[str]) -> list[int]:
    """The units that shares of the device are expected to grant, as far as their texts tell; empty for another key."""
    found = _UNITS_IN_KEY.search(device_key)
    if found is None:
        return []
    parsed = map(Share.parse, shares)
    return [each.kind.units(each.size, int(found[1])) for each in parsed]


def units_text(units: int | Sequence[int], unit: str) -> str:
    """`1 core`, `4 cores`, `1, 2 cores`, `132 SMs`."""
    numbers = [units] if isinstance(units, int) else list(units)
    return f"{', '.join(map(str, numbers))} {unit_name(unit)}{'' if numbers == [1] else 's'}"


def unit_name(unit: str) -> str:
    """`core`, `SM`, `millicore`: a unit for people."""
    return "SM" if unit == "sm" else unit
