"""`fractune.compete`: a bundle beside other runtimes at its shares; where one of them is faster, it serves."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fractune.features.compete.table import compared_table
from fractune.features.shapes.text import shape_text
from fractune.local.stack import own_env
from fractune.local.timing_process import timing_process
from fractune.sessions.progress import LineProgress, line_reporter
from fractune.text.rendering import Table
from fractune_core.errors import BadRequest
from fractune_core.files.buckets import input_shapes
from fractune_core.files.bundles import JOINED_FORMAT, Bundle
from fractune_core.files.compared import MODEL, RUNTIMES, Compared
from fractune_core.files.replacing import replacing_file
from fractune_core.shares import Share, share_names

_CHILD = "fractune.features.compete.child"
REPEATS = 12
_LARGEST_MODEL = 2**31 - 1


@dataclass(frozen=True)
class Contest:
    """One shape at one share."""

    shape: str
    """of a bundle for several shapes; empty for any other"""
    share: str
    compared: Compared


@dataclass(frozen=True)
class CompeteResult:
    """The contests of a bundle, which it holds now."""

    path: Path
    contests: tuple[Contest, ...]

    @property
    def table(self) -> Table:
        """A row for each contender at each share."""
        return compared_table(self.path.name, self.contests)


def installed_runtimes() -> list[str]:
    """Those that can compete here. Nothing is imported."""
    return [name for name in RUNTIMES if importlib.util.find_spec(name) is not None]


def compete(
    bundle: str | os.PathLike[str],
    model: str | os.PathLike[str],
    *,
    runtimes: str | Sequence[str] | None = None,
    shares: str | Sequence[str] | None = None,
    repeats: int = REPEATS,
    inexact: bool = False,
    progress: LineProgress = True,
) -> CompeteResult:
    """Time the bundle at each CPU share beside `model`, the ONNX file that it was made from, in other runtimes.

    `runtimes` are "onnxruntime" and "openvino", by default those that are installed. All are confined to the share,
    take turns, have a thread for each core, and do not spin while they wait. A runtime that is faster beyond the noise
    serves the share from then on. The bundle gets the file, the runtime's version and settings, and `fractune.load`
    uses it where that version is installed. The bundle is replaced; a signature is lost. `shares` are some of its own.
    With `inexact` runtimes compute by their defaults: bfloat16, data rounded to 8 bits, products that may saturate.

    Raises BadBundle, BadRequest, ShareUnavailable, StateUnusable, or FractuneError if a runtime is not installed.
    """
    path, onnx = Path(bundle), Path(model)
    named = check_runtimes(runtimes)
    report = line_reporter(progress)
    with contextlib.closing(Bundle(path)) as opened:
        _check_model(opened, onnx)
        at = _shares(opened, shares)
        members = _compared_apart(opened)
        contest = {"onnx": str(onnx), "runtimes": named, "repeats": repeats, "exact": not inexact}
        found = {member: _at_shares(path, member, contest, at, report) for member in members}
        _write(opened, path, onnx, found)
    return held_contests(path)


def held_contests(path: Path) -> CompeteResult:
    """The contests that the bundle at `path` holds. Raises BadBundle."""
    return CompeteResult(path, tuple(_contests(path)))


def check_runtimes(given: str | Sequence[str] | None) -> list[str]:
    """The runtimes that are named, or those that are installed. Raises BadRequest for one that cannot run here."""
    names = installed_runtimes() if given is None else given.split(",") if isinstance(given, str) else list(given)
    for name in names:
        if name not in RUNTIMES:
            raise BadRequest(f"'{name}' is no runtime that can compete; write {', '.join(RUNTIMES)}")
        if importlib.util.find_spec(name) is None:
            raise BadRequest(f"{name} is not installed here, and cannot compete; install it, or leave it out")
    if not names:
        raise BadRequest(f"no other runtime is installed here; install one of {', '.join(RUNTIMES)}")
    return list(dict.fromkeys(names))


def _compared_apart(bundle: Bundle) -> Sequence[int | None]:
    """The numbers of the members for several shapes; None for a bundle that is compared as a whole."""
    return list(range(len(bundle.members))) if "buckets" in bundle.manifest else [None]


def _check_model(bundle: Bundle, onnx: Path) -> None:
    try:
        with onnx.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = onnx.stat().st_size
    except OSError as error:
        raise BadRequest(f"--model {onnx}: cannot be read ({error.strerror})") from error
    held = bundle.manifest["model"]
    if digest != held["sha256"]:
        raise BadRequest(f"--model {onnx}: not the file that {bundle.name} was made from ('{held['name']}')")
    if size > _LARGEST_MODEL:
        raise BadRequest(f"--model {onnx}: it has {size} bytes, and a bundle can hold {_LARGEST_MODEL}")
    if "slots" in bundle.manifest or bundle.manifest.get("constants"):
        raise BadRequest(f"{bundle.name} is of a fused model, or has inputs that are constants: nothing can compete")


def _shares(bundle: Bundle, given: str | Sequence[str] | None) -> list[str]:
    held = [share for share in bundle.manifest["shares"] if Share.parse(share).device_kind == "cpu"]
    named = held if given is None else list(share_names(given))
    strangers = [share for share in named if share not in held]
    if strangers or not named:
        raise BadRequest(
            f"--shares {','.join(strangers)}: {bundle.name} has the CPU shares {', '.join(held) or 'none'}; name some"
        )
    return named


def _at_shares(
    path: Path, member: int | None, contest: dict[str, Any], shares: list[str], report: Callable[[str], None]
) -> dict[str, Any]:
    """What the child found, by share."""
    found = {}
    for share in shares:
        report(f"timing {', '.join(contest['runtimes'])} beside the bundle at {share}")
        with timing_process(_CHILD, share, own_env(), report_line=report) as call:
            found[share] = call("compare", bundle=str(path), member=member, **contest)
    return found


def _write(bundle: Bundle, path: Path, onnx: Path, found: dict[int | None, dict[str, Any]]) -> None:
    """Write the times into the bundle, and the model file if another runtime serves a share of it."""
    before: dict[str, Any] = bundle.written.get("runtimes", {})
    runtimes = dict(before)
    for by_share in found.values():
        for each in by_share.values():
            runtimes |= each["runtimes"]
    changed = {name for name in before if runtimes[name] != before[name]}
    compared = {
        member: {share: each["compared"] for share, each in by_share.items()} for member, by_share in found.items()
    }
    fields: dict[str, Any] = {"runtimes": runtimes}
    if None in compared:
        fields["compared"] = {**_still_true(bundle.written, changed), **compared[None]}
        all_compared = list(fields["compared"].values())
    else:
        fields["members"] = [
            {**member, "compared": {**_still_true(member, changed), **compared.get(number, {})}}
            for number, member in enumerate(bundle.written["members"])
        ]
        all_compared = [each for member in fields["members"] for each in member["compared"].values()]
    extra = {}
    if any(Compared.from_json(each).winners for each in all_compared):
        fields["format"] = JOINED_FORMAT
        extra[MODEL] = onnx.read_bytes()
    with replacing_file(path) as file:
        bundle.copy_to(file, extra=extra, **fields)


def _still_true(manifest: Mapping[str, Any], changed: set[str]) -> dict[str, Any]:
    """The comparisons that a bundle holds, without those of runtimes that have changed since."""
    held = manifest.get("compared", {})
    return {share: each for share, each in held.items() if not changed & each["times"].keys()}


def _contests(path: Path) -> Iterator[Contest]:
    with contextlib.closing(Bundle(path)) as bundle:
        several = "buckets" in bundle.manifest
        for each in bundle.members if several else [bundle]:
            shape = shape_text(input_shapes(each.manifest)) if several else ""
            for share, compared in each.manifest.get("compared", {}).items():
                yield Contest(shape, share, Compared.from_json(compared))
