"""`fractune.join`: one bundle for several shapes, and the proof that it may pad."""

import contextlib
import os
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fractune.text.output_files import new_bundle
from fractune.text.rendering import Column, Table
from fractune.text.text import factor_text, marked_time
from fractune_core.analysis.bucket_choice import most_padding
from fractune_core.errors import BadBundle, BadRequest, FractuneError, ShareUnavailable
from fractune_core.files.buckets import Buckets, Padding, elements, input_shapes, open_axes, shape_text
from fractune_core.files.bundles import SUFFIX, Bundle
from fractune_core.files.joined import join_bundles
from fractune_core.files.manifests import disturbed_shares
from fractune_core.files.new_bundle import NewBundle


def shapes_lines(buckets: Sequence[Mapping[str, Sequence[int]]]) -> list[str]:
    """A line for each bucket, with the shapes of its inputs."""
    return [f"{'buckets:' if not at else '':<10} {shape_text(each)}" for at, each in enumerate(buckets)]


def padding_line(padding: Padding) -> str:
    if not padding.proved:
        return f"padding:   none, only these shapes run: {padding.reason}"
    return f"padding:   proved: {padding.reason} (largest difference {padding.max_rel_difference:.1e})"


@dataclass(frozen=True)
class ShapeTime:
    """One shape at one share."""

    inputs: dict[str, list[int]]
    share: str
    timed_s: float | None
    """of the whole model; None if it was not timed"""
    disturbed: bool
    """whether other programs made it too long; then it says nothing of the padding"""
    most_padding: float | None
    """times as long as in the next smaller bucket, which is the most that padding costs; None for the smallest"""


@dataclass(frozen=True)
class BundleTimes:
    name: str
    times: tuple[ShapeTime, ...]
    padding: Padding

    @property
    def table(self) -> Table:
        """A row for each shape and share, the smallest shape first."""
        columns = (
            Column("shape", wraps_at=24),
            Column("share"),
            Column("time", numbers=True),
            Column("padding costs up to", numbers=True),
        )
        return Table(title=f"{self.name} by shape", columns=columns, cells=tuple(map(_cells, self.times)))

    def to_json(self) -> list[dict[str, Any]]:
        return [vars(each) for each in self.times]


def bundle_times(path: Path) -> BundleTimes | None:
    """None for a bundle with one shape. Raises BadBundle."""
    with contextlib.closing(Bundle(path)) as bundle:
        if "buckets" not in bundle.manifest:
            return None
        held = Buckets.from_json(bundle.manifest["buckets"])
        members = [member.manifest for member in bundle.members]
    sizes = [held.axes.sizes(input_shapes(member)) for member in members]
    found = []
    for share in members[-1]["shares"]:
        secs = [member.get("timed", {}).get(share) for member in members]
        busy = [share in disturbed_shares(member) for member in members]
        quiet = [None if disturbed else timed_s for timed_s, disturbed in zip(secs, busy, strict=True)]
        for member, timed_s, disturbed, factor in zip(members, secs, busy, most_padding(sizes, quiet), strict=True):
            found.append(ShapeTime(input_shapes(member), share, timed_s, disturbed, factor))
    return BundleTimes(path.name, tuple(found), held.padding)


def _cells(each: ShapeTime) -> tuple[str, ...]:
    factor = "-" if each.most_padding is None else factor_text(each.most_padding)
    return shape_text(each.inputs), each.share, marked_time(each.timed_s, at_most=each.disturbed), factor


_HOW = "run 'fractune join FILE' where the bundle is served"
_NOT_COMPARED = Padding(proved=False, reason=f"it was not compared; {_HOW}")


@dataclass(frozen=True)
class JoinedBundle:
    """A bundle for several shapes on disk; it can be passed wherever a path is expected."""

    path: Path
    buckets: tuple[dict[str, list[int]], ...]
    """the shapes of the inputs, by name, from the smallest to the largest"""
    padding: Padding
    """whether inputs between two buckets may be padded, and why"""

    def __fspath__(self) -> str:
        return os.fspath(self.path)


def join(
    bundles: Sequence[str | os.PathLike[str]],
    *,
    out: str | os.PathLike[str] | None = None,
    pad: Mapping[str, float] | None = None,
    padding_error: float = 0.0,
    model: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> JoinedBundle:
    """Join the bundles of one model for several shapes; weights are stored once. The file is `out` (`*.fractune`). A
    bundle there that serves shares, shapes or by runtimes that the joined one has not, or another file, is replaced
    with `force` only.

    Then outputs of padded and of exact inputs are compared here. Only if they agree the joined bundle pads inputs whose
    shapes lie between those of its buckets. With `model`, the ONNX file, such inputs are compared with ONNX Runtime,
    where it is installed.

    `pad` has the number to pad an input with, by name (0 for others). `padding_error` accepts outputs that differ by
    this part of their largest value (0.01 = 1 %). Where the bundle cannot run, it pads nothing; join it alone once more
    where it can, which replaces the file.

    Raises BadBundle, BadRequest for bundles that do not belong together, StateUnusable.
    """
    if not bundles:
        raise BadRequest("no bundle to join; name at least two, or one that is joined")
    check_padding_error(padding_error)
    new = None if out is None else new_bundle(out, "", force=force)
    onnx = None if model is None else Path(model)
    if onnx is not None and not onnx.is_file():
        raise BadRequest(f"--model {onnx}: no such file; name the ONNX file that the bundles were made from")
    paths = [Path(bundle) for bundle in bundles]
    with contextlib.ExitStack() as opened:
        read = [opened.enter_context(contextlib.closing(Bundle(path))) for path in paths]
        if onnx is not None and not read[0].is_of(onnx):
            name = read[0].manifest["model"]["name"]
            raise BadRequest(f"--model {onnx}: not the file that {read[0].name} was made from ('{name}')")
        if pad:
            _check_numbers(read[0], pad)
        if len(read) == 1 and "buckets" in read[0].manifest:
            written = NewBundle(paths[0], force=True) if new is None else new
            held = Buckets.from_json(read[0].manifest["buckets"])
            buckets = replace(held, pad=held.pad if pad is None else _checked(pad, held), padding=_NOT_COMPARED)
            _write(read[0], buckets, written)
        else:
            written = _joined(read, new, pad or {})
    return _proved(written.path, padding_error, onnx)


def check_padding_error(padding_error: float) -> None:
    """Raises BadRequest."""
    if not 0 <= padding_error < 1:
        raise BadRequest(f"padding_error is {padding_error}; it must be at least 0 and below 1, 0.01 being 1 %")


def check_pad_names(pad: Collection[str], inputs: Collection[str]) -> None:
    """Raises BadRequest for an input that the model has not."""
    strangers = sorted(set(pad) - set(inputs))
    if strangers:
        raise BadRequest(f"--pad {strangers[0]}: the model has no such input; it takes {', '.join(inputs)}")


def _joined(bundles: Sequence[Bundle], new: NewBundle | None, pad: Mapping[str, float]) -> NewBundle:
    if new is None:
        raise BadRequest(f"--out is missing; name the file of the joined bundle, such as --out model{SUFFIX}")
    if len(bundles) == 1:
        raise BadRequest(f"{bundles[0].name} is one bundle, and not joined; name at least two")
    ordered = sorted(bundles, key=lambda bundle: elements(bundle.manifest))
    axes = open_axes([bundle.manifest for bundle in ordered])
    buckets = Buckets(axes, {}, _NOT_COMPARED)
    buckets = replace(buckets, pad=_checked(pad, buckets))
    with new.writing() as file:
        join_bundles(file, ordered, buckets)
    return new


def _checked(pad: Mapping[str, float], buckets: Buckets) -> dict[str, int | float]:
    check_pad_names(pad, buckets.axes.inputs)
    return dict(pad)


def _check_numbers(bundle: Bundle, pad: Mapping[str, float]) -> None:
    from fractune_runtime.tvm_runtime.tensors import specs_of
    from fractune_runtime.tvm_runtime.variants import check_pad

    check_pad(specs_of(bundle.manifest["inputs"]), pad)


def _proved(path: Path, accepted: float, onnx: Path | None) -> JoinedBundle:
    """The bundle at `path` with the result of the comparison, if it can run here."""
    from fractune.comparing.padded_outputs import compare_padded, exact_outputs
    from fractune_runtime.bucketed_model import BucketedModel

    with contextlib.closing(Bundle(path)) as bundle:
        held = Buckets.from_json(bundle.manifest["buckets"])
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # the variant does not matter here
                model = BucketedModel(bundle, runtimes=False)
                padding = compare_padded(model, accepted, exact_outputs(model, onnx.read_bytes()) if onnx else None)
        except (BadBundle, ShareUnavailable, FractuneError) as error:
            padding = Padding(proved=False, reason=f"it could not be compared here ({error}); {_HOW}")
        _write(bundle, replace(held, padding=padding), NewBundle(path, force=True))
        shapes = tuple(input_shapes(member.manifest) for member in bundle.members)
    return JoinedBundle(path, shapes, padding)


def _write(bundle: Bundle, buckets: Buckets, new: NewBundle) -> None:
    with new.writing() as file:
        bundle.copy_to(file, buckets=buckets.to_json())
