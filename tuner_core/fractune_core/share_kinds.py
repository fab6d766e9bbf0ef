"""Kinds of shares: one descriptor for each mechanism, with everything that the rest of fractune knows of the mechanism.

A share without a descriptor cannot be parsed. The proof (probe, enter, verify, leave) stands in the mechanism's file in
`fractune_workers/confinement/`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from fractune_core.cpu_limits import SIZE_FORM, LimitSize
from fractune_core.errors import BadRequest

CPU, CUDA = "cpu", "cuda"
"""kinds of devices"""

_MIG_PROFILE = r"[1-7]g\.[1-9][0-9]{0,2}gb(\+me)?"
_MIG_UUID = r"MIG-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_MIG_SLICES = 7
_CHUNKS = 16
"""of SMs, on an H100; GPUs with more chunks are not filled by default"""
_TO = ".."
"""between the ends of a range"""


def _one(_size: str) -> int:
    return 1


def _all(_size: str, total: int) -> int:
    return total


def _own(size: str, _total: int) -> int:
    return int(size)


def _fits(_size: str) -> None:
    """Its form is enough."""


@dataclass(frozen=True)
class ShareKind:
    """Properties of a mechanism that are the same on all machines. `size` is the text after the colon of a share."""

    mechanism: str
    """identity: records of one mechanism say nothing about another"""
    text: str
    """how people write such a share; two kinds may have the same word before the colon, if their sizes differ"""
    size_form: str
    """regular expression of `size`; empty where the share has no colon. No size fits two kinds of one word"""
    sizes: str
    """the sizes in words, for an error message; empty where the share has no colon"""
    device_kind: str
    """CPU or CUDA"""
    unit: str
    """of a granted share: `core` or `sm`"""
    proof: str
    """what the confinement's `verify` reads from inside"""
    serves: bool = True
    """whether a whole process can be under such a share, so that it can serve a model there"""
    kernels_at: Callable[[str], Iterable[str]] | None = None
    """by size, the shares at which kernels are measured for such a share; None = at the share itself"""
    check_size: Callable[[str], object] = _fits
    """raises BadRequest that says what is wrong with a size of this form"""
    cores: Callable[[str], int] = _one
    """cores of the host by size; a GPU share needs one, from which kernels are launched"""
    units: Callable[[str, int], int] = _all
    """by size and the device's units: those that such a share is expected to grant. A worker proves the real number"""
    side_by_side: bool = False
    """whether several measurements under such shares run on one device at the same time, each on its part; otherwise
    a measurement has the device to itself"""
    room: Callable[[str], int] = _one
    """how many shares of a size one device may have room for"""
    whole: str = ""
    """the size of the whole device, where sizes are numbers that add up to it and it exists beside its parts"""
    has_own_memory: bool = False
    """whether memory, its bandwidth and its cache are divided too, so that the amount is part of a share's identity"""
    range_of: str = ""
    """of a range, the mechanism of the shares within it. A process may be anywhere in it, and no worker is under it"""

    @property
    def measures_kernels(self) -> bool:
        """Whether kernels are measured under such a share; otherwise only whole models are."""
        return self.kernels_at is None

    @property
    def word(self) -> str:
        """The text before the colon."""
        return self.text.partition(":")[0]


def range_ends(size: str) -> tuple[int, int]:
    """The guarantee and the burst of a range: the size that a process always has, and the most that it may use."""
    guarantee, _, burst = size.partition(_TO)
    return int(guarantee), int(burst)


def _sizes_within(size: str) -> list[int]:
    """The ends of a range, and between them the doubles of its guarantee. So every process in the range is near a
    measured share (`match.NEAR_FACTOR`).
    """
    at, burst = range_ends(size)
    found = []
    while at < burst:
        found.append(at)
        at *= 2
    return [*found, burst]


def _range_of(kind: ShareKind, text: str, example: str) -> ShareKind:
    def check_size(size: str) -> None:
        guarantee, burst = range_ends(size)
        if guarantee >= burst:
            better = f"{burst}{_TO}{guarantee}" if burst < guarantee else guarantee
            raise BadRequest(
                f"a range goes from the guarantee up to the burst, and {guarantee} is not below {burst}; "
                f"write {kind.word}:{better}"
            )

    return replace(
        kind,
        mechanism=f"{kind.mechanism}-range",
        text=text,
        size_form=rf"(?:{kind.size_form})\.\.(?:{kind.size_form})",
        sizes=f"a range such as {example}",
        proof="nothing: the shares within it are proved",
        kernels_at=lambda size: (f"{kind.word}:{each}" for each in _sizes_within(size)),
        check_size=check_size,
        cores=lambda size: kind.cores(str(range_ends(size)[1])),
        units=lambda size, total: kind.units(str(range_ends(size)[1]), total),
        side_by_side=False,
        room=_one,
        whole="",
        range_of=kind.mechanism,
    )


_CORES = ShareKind(
    "cpu",
    "cpu:N",
    r"[1-9][0-9]{0,3}",
    "1 to 9999 cores",
    CPU,
    "core",
    "affinity of every thread, cgroup quota",
    cores=int,
)
_PERCENTAGE = ShareKind(
    "mps",
    "mps:PERCENT",
    r"[1-9][0-9]?|100",
    "1 to 100, without %",
    CUDA,
    "sm",
    "MPS attribute, SM count, %smid",
    side_by_side=True,
    units=lambda size, total: max(2, total * int(size) // 100 // 2 * 2),
    room=lambda size: 100 // int(size),
    whole="100",
)
SHARE_KINDS = (
    _CORES,
    _range_of(_CORES, "cpu:N..MOST", "1..2"),
    ShareKind(
        "cpu-limit",
        "cpu:LIMITm",
        SIZE_FORM,
        "a limit such as 1500m",
        CPU,
        "millicore",
        "affinity and cgroup of every thread, cgroup quota, CPU time of busy processes",
        serves=False,
        kernels_at=lambda size: (f"cpu:{cores}" for cores in LimitSize.parse(size).thread_counts),
        check_size=LimitSize.parse,
        cores=lambda size: LimitSize.parse(size).cores,
    ),
    _PERCENTAGE,
    _range_of(_PERCENTAGE, "mps:PERCENT..MOST", "25..50"),
    ShareKind(
        "mps-sm",
        "mps-sm:CHUNKS",
        r"[1-9][0-9]{0,3}",
        "1 to 9999 chunks of SMs",
        CUDA,
        "sm",
        "MPS attribute, SM count, %smid",
        side_by_side=True,
        units=lambda size, total: max(1, total * int(size) // _CHUNKS),
        room=lambda size: _CHUNKS // int(size),
    ),
    ShareKind(
        "mig",
        "mig:PROFILE, mig:UUID",
        f"{_MIG_PROFILE}|{_MIG_UUID}",
        "a profile such as 1g.18gb, or an instance such as MIG-<uuid>",
        CUDA,
        "sm",
        "UUID, SM count, %smid",
        side_by_side=True,
        units=lambda size, total: total * int(size[0]) // _MIG_SLICES if size[0].isdigit() else total,
        room=lambda size: _MIG_SLICES // int(size[0]) if size[0].isdigit() else 1,
        has_own_memory=True,
    ),
    ShareKind(
        "green",
        "green:SMS",
        r"[1-9][0-9]{0,3}",
        "1 to 9999 SMs",
        CUDA,
        "sm",
        "resources of the context, %smid on its stream",
        serves=False,
        units=_own,
    ),
    ShareKind("full", "full", "", "", CUDA, "sm", "UUID, SM count, %smid"),
    ShareKind("none", "none", "", "", CUDA, "sm", "nothing", serves=False),
)
"""`full` is a whole GPU, proved. `none` is a GPU as it is found: nothing is proved, and its records say so."""

_BY_MECHANISM = {kind.mechanism: kind for kind in SHARE_KINDS}


def kind_of(mechanism: str) -> ShareKind:
    """The descriptor of a mechanism. Raises BadRequest where there is none."""
    if mechanism not in _BY_MECHANISM:
        raise BadRequest(f"unknown mechanism '{mechanism}'; {write_one(SHARE_KINDS)}")
    return _BY_MECHANISM[mechanism]


def write_one(kinds: Iterable[ShareKind]) -> str:
    """The hint of an error message: `write cpu:N, mps:PERCENT or full`."""
    *texts, last = (kind.text for kind in kinds)
    return f"write {', '.join(texts)} or {last}" if texts else f"write {last}"
