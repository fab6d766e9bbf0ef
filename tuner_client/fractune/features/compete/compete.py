"""`fractune.compete`: a bundle beside other runtimes at its shares; where one of them is faster, it serves."""

import contextlib
import importlib
import importlib.util
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fractune.features.compete.results import CompeteResult, held_contests
from fractune.local.doctor import Finding, Use, gpu_findings, packages
from fractune.local.programs import look_for_cuda
from fractune.local.stack import own_env
from fractune.local.timing_process import timing_process
from fractune.sessions.progress import LineProgress, line_reporter
from fractune.text.output_files import check_writable
from fractune_core.errors import BadBundle, BadRequest, first_line
from fractune_core.files import compared as compared_file
from fractune_core.files.buckets import Buckets, members_of
from fractune_core.files.bundles import JOINED_FORMAT, Bundle
from fractune_core.files.compared import CHECKED, MODEL, ONNX_RUNTIME, OURS, RUNTIMES, Checked, Runtime, all_compared
from fractune_core.files.new_bundle import replacing_file
from fractune_core.share_kinds import CPU
from fractune_core.shares import Share, share_names


def bundle_use(path: Path) -> Use:
    """The use of the bundle at `path` on this machine. Raises BadBundle for a damaged one."""
    with contextlib.closing(Bundle(path)) as bundle:
        findings = [packages("run"), _processor(bundle)]
        if bundle.manifest["device"]["kind"] == CPU:
            findings.append(_cores(bundle))
        else:
            findings += gpu_findings(look_for_cuda())
        findings += _runtimes(bundle)
    return Use("bundle", f"run {path.name}", findings)


def _processor(bundle: Bundle) -> Finding:
    from fractune_runtime.cpu import check_host_code, check_processor

    device = bundle.manifest["device"]
    try:
        (check_processor if device["kind"] == CPU else check_host_code)(bundle)
    except BadBundle as error:
        return Finding("processor", "", str(error))
    return Finding(
        "processor", f"{device['isa']}, as the bundle's" if device["kind"] == CPU else "runs the host's code"
    )


def _cores(bundle: Bundle) -> Finding:
    here = len(os.sched_getaffinity(0))
    shares = {name: int(each["units"]) for name, each in bundle.manifest["shares"].items()}
    fitting = [name for name, units in shares.items() if units <= here]
    remedy = f"the bundle's shares are {', '.join(shares)}, and this process has {here} CPUs; tune for those"
    return Finding("cores of its shares", ", ".join(fitting), remedy)


def _runtimes(bundle: Bundle) -> list[Finding]:
    """One for each runtime that serves a share: without it the bundle's own code runs. Parts of a model need theirs."""
    from fractune_runtime.choosing import installed, is_alike

    several = "buckets" in bundle.manifest
    alone = several and not Buckets.from_json(bundle.manifest["buckets"]).padding.proved
    members = [each.manifest for each in bundle.members] if several else [bundle.manifest]
    compared = [each for member in members for _, each in all_compared(member)]
    found = []
    if "stages" in bundle.manifest:
        wanted = Runtime.from_json(bundle.manifest["runtimes"][ONNX_RUNTIME]).version
        parts = f"{ONNX_RUNTIME}, which runs parts of the model"
        there, why = _usable(ONNX_RUNTIME, installed(ONNX_RUNTIME))
        found.append(Finding(parts, there, f"pip install {ONNX_RUNTIME}=={wanted}; {why}"))
    for name in sorted({name for each in compared for name in each.serving(alone=alone)}):
        wanted, there = Runtime.from_json(bundle.manifest["runtimes"][name]).version, installed(name)
        alike, why = _usable(name, there if is_alike(there, wanted) else "", there)
        how = f"pip install {name}=={wanted}; {why}, so the bundle's own code runs"
        found.append(Finding(f"{name} {wanted}", alike, how, optional=True))
    return found


def _usable(runtime: str, version: str, installed: str = "") -> tuple[str, str]:
    """The version if the runtime can be imported, else nothing; and why not. It is imported only if a version fits."""
    if not version:
        return "", f"{installed or 'none'} is installed"
    try:
        importlib.import_module(runtime)
    except Exception as error:  # noqa: BLE001  a broken installation raises anything
        return "", f"{version} is installed and cannot be imported ({first_line(error)})"
    return version, ""


REPEATS = 12
_LARGEST_MODEL = 2**31 - 1


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
    check_inputs: str | os.PathLike[str] | None = None,
    sizes: Mapping[str, int] | None = None,
    progress: LineProgress = True,
) -> CompeteResult:
    """Time the bundle at each CPU share beside `model`, the ONNX file that it was made from, in other runtimes.

    `runtimes` are "onnxruntime" and "openvino", by default those that are installed. All are confined to the share,
    take turns, have a thread for each core, and do not spin while they wait. A runtime that is faster beyond the noise
    serves the share from then on. The bundle gets the file, the runtime's version and settings, and `fractune.load`
    uses it where that version is installed. The bundle is replaced; a signature is lost. `shares` are some of its own.
    Of several shapes those with these `sizes` by name compete, by default all.
    With `inexact` runtimes compute by their defaults: bfloat16, data rounded to 8 bits, products that may saturate.

    Before that the bundle's outputs are compared with those of `model`, on the arrays of the .npz file `check_inputs`
    too. OutputsDiffer names the first node that computes something else: such a bundle stays as it was.

    Raises BadBundle, BadRequest, OutputsDiffer, ShareUnavailable, StateUnusable, or FractuneError if a runtime is not
    installed.
    """
    inputs = None if check_inputs is None else Path(check_inputs)
    report = line_reporter(progress)

    def check(opened: Bundle, members: Sequence[int | None]) -> dict[int | None, Checked]:
        report(f"comparing outputs with those of {Path(model).name}")
        return _checked_members(opened, Path(bundle), Path(model), members, inputs)

    contest = {"runtimes": check_runtimes(runtimes), "repeats": repeats, "exact": not inexact}
    return _held(Path(bundle), Path(model), contest, shares, report, check, sizes or {})


def compete_tuned(bundle: Path, model: Path, runtimes: Sequence[str], report: Callable[[str], None]) -> CompeteResult:
    """As `compete`, of a bundle that was just made: its job has compared the outputs."""
    contest = {"runtimes": list(runtimes), "repeats": REPEATS, "exact": True}
    return _held(bundle, model, contest, None, report, lambda *_: {}, {})


def _held(
    path: Path,
    onnx: Path,
    contest: dict[str, Any],
    shares: str | Sequence[str] | None,
    report: Callable[[str], None],
    check: Callable[[Bundle, Sequence[int | None]], dict[int | None, Checked]],
    sizes: Mapping[str, int],
) -> CompeteResult:
    with contextlib.closing(Bundle(path)) as opened:
        _check_model(opened, onnx)
        check_writable("BUNDLE", path)
        at = _shares(opened, shares)
        members = _compared_apart(opened, sizes)
        checked = check(opened, members)
        contest = {"onnx": str(onnx), **contest}
        pads = _pads(opened)
        found = {member: _at_shares(path, member, contest, at, report, pads=pads) for member in members}
        _write(opened, path, onnx, found, checked)
        if opened.signature is not None:
            report(f"{path.name} has lost its signature; sign it again (sign_bundle)")
    return replace(held_contests(path), shares=tuple(at))


def check_runtimes(given: str | Sequence[str] | None) -> list[str]:
    """The runtimes that are named, or those that are installed. Raises BadRequest for one that cannot run here."""
    names = installed_runtimes() if given is None else given.split(",") if isinstance(given, str) else list(given)
    for name in names:
        if name not in RUNTIMES:
            raise BadRequest(f"'{name}' is no runtime that can compete; write {', '.join(RUNTIMES)}")
        if importlib.util.find_spec(name) is None:
            raise BadRequest(f"{name} is not installed here, and cannot compete; install it, or leave it out")
    if not names:
        problem = "no other runtime is installed here; install" if given is None else "no runtime is named; name"
        raise BadRequest(f"{problem} one of {', '.join(RUNTIMES)}")
    return list(dict.fromkeys(names))


def _compared_apart(bundle: Bundle, sizes: Mapping[str, int]) -> Sequence[int | None]:
    """The numbers of the members for several shapes that have these sizes; None for a bundle that is compared as a
    whole. Raises BadRequest.
    """
    several = "buckets" in bundle.manifest
    fitting = members_of(bundle.manifest, [each.manifest for each in (bundle.members if several else [bundle])], sizes)
    return fitting if several else [None]


def _checked_members(
    bundle: Bundle, path: Path, onnx: Path, members: Sequence[int | None], given: Path | None
) -> dict[int | None, Checked]:
    """What was compared of each member with the ONNX file; None is a bundle that is compared as a whole. A bundle in
    parts is not among them: each part was checked when it was tuned.

    Both files may be of strangers: a sandboxed process reads them. Raises OutputsDiffer, BadRequest.
    """
    from fractune_workers.reader import CHECKING_CHILD, check_bundle, reader_child

    if "stages" in bundle.written:
        return {}
    with tempfile.TemporaryDirectory(prefix="fractune-check-") as folder:
        also = [path, *([] if given is None else [given])]
        child = reader_child(CHECKING_CHILD, model=onnx, own_dir=Path(folder), also=also, env=own_env())
        try:
            return {
                member: check_bundle(child, path.absolute(), onnx.absolute(), {}, given and given.absolute(), member)
                for member in members
            }
        finally:
            child.stop()


def _check_model(bundle: Bundle, onnx: Path) -> None:
    if onnx.exists() and not onnx.is_file():
        raise BadRequest(f"--model {onnx}: not a file; name the ONNX file that {bundle.name} was made from")
    try:
        is_its_model, size = bundle.is_of(onnx), onnx.stat().st_size
    except OSError as error:
        raise BadRequest(f"--model {onnx}: cannot be read ({error.strerror})") from error
    if not is_its_model:
        name = bundle.manifest["model"]["name"]
        raise BadRequest(f"--model {onnx}: not the file that {bundle.name} was made from ('{name}')")
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
    path: Path,
    member: int | None,
    contest: dict[str, Any],
    shares: list[str],
    report: Callable[[str], None],
    *,
    pads: bool,
) -> dict[str, Any]:
    """What the child found, by share: `compared`, `runtimes`, and `between` for a member of a bundle that pads."""
    found = {}
    for share in shares:
        report(f"timing {', '.join(contest['runtimes'])} beside the bundle at {share}")
        with timing_process(share, own_env(), report_line=report) as call:
            timed = call("compare", bundle=str(path), member=member, **contest)
            at_shape = _beside_others(timed["compared"], timed, share)
            found[share] = {"compared": at_shape, "runtimes": timed["runtimes"]}
            left = [name for name in at_shape["times"] if name != OURS]
            if pads and left:
                report(f"timing {', '.join(left)} beside padded runs at {share}")
                given = {name: each for name, each in contest.items() if name != "runtimes"}
                more = call("compare_between", bundle=str(path), member=member, compared=at_shape, **given)
                found[share]["between"] = [
                    {**each, "compared": _beside_others(each["compared"], more, share)} for each in more["between"]
                ]
    return found


def _beside_others(compared: Any, timed: Mapping[str, Any], share: str) -> Any:
    """A comparison as JSON, with what other programs had while it was `timed`."""
    return compared_file.Compared.from_json(compared).beside(timed["others_cores"], Share.parse(share).cores).to_json()


def _pads(bundle: Bundle) -> bool:
    return "buckets" in bundle.manifest and Buckets.from_json(bundle.manifest["buckets"]).padding.proved


def _write(
    timed: Bundle, path: Path, onnx: Path, found: dict[int | None, dict[str, Any]], checked: dict[int | None, Checked]
) -> None:
    """Write the times into the bundle at `path` as it is now, because another contest may have ended meanwhile.

    Raises BadRequest if it is not the one that was `timed`.
    """
    with contextlib.closing(Bundle(path)) as bundle:
        if _code_digests(bundle) != _code_digests(timed):
            raise BadRequest(f"{path}: another bundle was written there while runtimes were timed; compete again")
        _add_times(bundle, path, onnx, found, checked)


def _code_digests(bundle: Bundle) -> dict[str, str]:
    """The digests of all entries that a contest never changes."""
    return {entry: digest for entry, digest in bundle.manifest["sha256"].items() if entry != MODEL}


def _add_times(
    bundle: Bundle, path: Path, onnx: Path, found: dict[int | None, dict[str, Any]], checked: dict[int | None, Checked]
) -> None:
    """Replace the bundle by one with the times, and with the model file if another runtime serves something of it."""
    before: dict[str, Any] = bundle.written.get("runtimes", {})
    runtimes = dict(before)
    for by_share in found.values():
        for each in by_share.values():
            runtimes |= each["runtimes"]
    changed = {name for name in before if runtimes[name] != before[name]}
    fields: dict[str, Any] = {"runtimes": runtimes}
    if None in found:
        fields |= {**_times(bundle.written, found[None], changed), **_check_field(checked, None)}
        members = [fields]
    else:
        members = fields["members"] = [
            {**member, **_times(member, found.get(number, {}), changed), **_check_field(checked, number)}
            for number, member in enumerate(bundle.written["members"])
        ]
    extra = {}
    alone = "buckets" in bundle.manifest and not _pads(bundle)
    if any(each.serving(alone=alone) for member in members for _, each in all_compared(member)):
        fields["format"] = JOINED_FORMAT
        extra[MODEL] = onnx.read_bytes()
    with replacing_file(path) as file:
        bundle.copy_to(file, extra=extra, **fields)


def _check_field(checked: dict[int | None, Checked], member: int | None) -> dict[str, Any]:
    return {CHECKED: checked[member].to_json()} if member in checked else {}


def _times(manifest: Mapping[str, Any], found: Mapping[str, Any], changed: set[str]) -> dict[str, Any]:
    """The comparisons of a bundle or a member, by share: those that it holds and those that were `found`, without those
    of runtimes that have changed since.
    """
    compared = {
        share: each for share, each in manifest.get("compared", {}).items() if not changed & each["times"].keys()
    }
    between = {share: each for share, each in manifest.get("between", {}).items() if share in compared}
    compared |= {share: each["compared"] for share, each in found.items()}
    between |= {share: each["between"] for share, each in found.items() if "between" in each}
    return {"compared": compared, **({"between": between} if between or "between" in manifest else {})}
