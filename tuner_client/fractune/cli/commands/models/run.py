"""`fractune run`: a bundle at the share of this process."""

from __future__ import annotations

import math
import statistics
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from fractune.cli import options
from fractune.cli.printing import print_json, print_tables
from fractune.comparing.beside import Beside, accepted_inputs, nothing_shown_of, time_beside
from fractune.comparing.interleaved import PACED, Times, time_interleaved, time_single_calls
from fractune.features.fuse import apart_text, slots_text
from fractune.features.inside import inside_rows, inside_table
from fractune.text.output_files import check_writable
from fractune.text.rendering import Table
from fractune.text.text import common_unit, factor_text, time_text
from fractune_core.agreement import differences
from fractune_core.analysis.match import DEFAULT_POLICY, Policy
from fractune_core.analysis.slowdown_ci import slowdown
from fractune_core.cpu_limits import threads_text
from fractune_core.errors import BadRequest
from fractune_core.files.buckets import members_of
from fractune_core.files.compared import EXACT_ONNX_RUNTIME, ONNX_RUNTIME, RUNTIMES
from fractune_core.files.new_bundle import replacing_file
from fractune_core.names import UNTUNED_VARIANT
from fractune_core.served import ServiceGoal
from fractune_core.shares import Share, units_text
from fractune_runtime.bucketed_model import BucketedModel
from fractune_runtime.choosing import VariantChoice
from fractune_runtime.cpu import confine
from fractune_runtime.gpu import confine_gpu
from fractune_runtime.loading import load
from fractune_runtime.model import Model

if TYPE_CHECKING:
    from fractune_runtime.tvm_runtime.tensors import Array, TensorSpec


_NOTICED_OVERHEAD = 1 / 3
"""least part of a call at which its overhead is printed"""
_SHORT_S = 1e-3
"""a call for which the overhead may matter"""
_DISAGREE = "DO NOT AGREE: compare on inputs of your own (--inputs); a bundle takes numbers below 1.2e-38 as zero"
_SINGLE_CALLS = 201
_SUFFIX = ".npy"
_LONGEST_NAME = 200
"""characters of the name of an array in a file"""


class Peer(StrEnum):
    """Runtimes for comparison."""

    ONNXRUNTIME = ONNX_RUNTIME


def run(
    bundle: Annotated[Path, typer.Argument(help="Bundle file.")],
    share: Annotated[
        str | None, typer.Option("--share", help="Confine this process to the share first (default: no change).")
    ] = None,
    inputs: Annotated[Path | None, typer.Option("--inputs", help=".npz file with the inputs by name.")] = None,
    sizes: options.SizesOfBundle = None,
    slot: Annotated[
        int | None, typer.Option("--slot", help="Run only this slot of a fused model (default: all).")
    ] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", min=3, help="Number of timings, at least 3; fewer of a slow untuned variant.")
    ] = 15,
    save_outputs: Annotated[Path | None, typer.Option("--save-outputs", help=".npz file for the outputs.")] = None,
    compare: Annotated[Peer | None, typer.Option("--compare", help="Time the model in this runtime too.")] = None,
    model_file: Annotated[
        Path | None, typer.Option("--model", help="The ONNX file that the bundle was made from, for --compare.")
    ] = None,
    public_key: Annotated[
        Path | None, typer.Option("--public-key", help="PEM file; refuse a bundle that its owner did not sign.")
    ] = None,
    goal: Annotated[
        ServiceGoal, typer.Option("--goal", help="What the variant and its threads are chosen for.")
    ] = "latency",
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Threads of a CPU model (default: chosen by the share).")
    ] = None,
    unmeasured: Annotated[
        bool, typer.Option("--allow-unmeasured", help="Allow a variant that was never measured at this share.")
    ] = False,
    profile: Annotated[bool, typer.Option("--profile", help="Time each call inside the model too (CPU only).")] = False,
    as_json: options.Json = False,
) -> None:
    """Run a bundle at this process's share and time it, tuned and untuned."""
    if (compare is None) != (model_file is None):
        raise BadRequest("--compare and --model go together: --compare onnxruntime --model FILE.onnx")
    if inputs is not None and sizes:
        raise BadRequest("--inputs and --size exclude each other: the arrays of the file have their sizes; give one")
    if save_outputs is not None:
        check_writable("--save-outputs", save_outputs)
    key = options.read_key("--public-key", public_key) if public_key else None
    if share:
        _confine(Share.parse(share))
    policy = Policy(allow_unmeasured=True) if unmeasured else DEFAULT_POLICY
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of an untuned variant: the report says it
        model = load(bundle, share=share, public_key=key, policy=policy, goal=goal, threads=threads)
    given = read_inputs(inputs) if inputs else _random_inputs(model, slot, options.parse_one_size(sizes))
    choice = model.choice_for(given) if isinstance(model, BucketedModel) else model.choice
    if compare is not None and model_file is not None:
        _check_compare(bundle.name, model, choice)
        given = given if inputs else accepted_inputs(model_file, model, given)
    if choice.variant in RUNTIMES and isinstance(model, BucketedModel) and not model.padding.proved:
        raise BadRequest(
            f"{choice.variant} runs these inputs, and the bundle's own code cannot, so there is nothing to time beside "
            "it; give inputs of a bucket's shapes"
        )
    table = _profile(model, given, slot) if profile else None
    report = _report(model, choice, given, slot, repeats, model_file)
    if save_outputs is not None:
        _save(save_outputs, dict(zip(array_names(model.outputs), model.run(given, slot=slot), strict=True)))
    if as_json:
        print_json(report | ({"inside": table.rows} if table else {}))
        return
    _print(report, given_by="random inputs" if inputs is None else str(inputs))
    if table:
        print_tables(table)


def _check_compare(bundle: str, model: Model, choice: VariantChoice) -> None:
    """Raises BadRequest for a bundle that ONNX Runtime cannot be timed beside."""
    if model.share.unit != "core":
        raise BadRequest(f"--compare runs on the CPU, and {bundle} runs on a GPU; leave it out")
    if choice.variant in RUNTIMES:
        raise BadRequest(
            f"--compare: {choice.variant} serves {bundle} here, so there is nothing to compare; 'fractune compete' has "
            "timed both"
        )
    if model.slots:
        raise BadRequest(f"--compare takes one model, and {bundle} holds several fused ones; leave it out")


def _profile(model: Model, inputs: dict[str, Array], slot: int | None) -> Table:
    """The calls inside the model. Raises BadRequest for several models, and for a slot of a fused one."""
    if isinstance(model, BucketedModel) or slot is not None or "stages" in model.bundle.written:
        raise BadRequest(
            "--profile takes a bundle of one shape that is not in parts, and no --slot; leave --profile out"
        )
    inside = model.time_inside(inputs)
    return inside_table(inside_rows(model.bundle, model.choice.variant, inside), inside)


def _confine(share: Share) -> None:
    if share.device_kind == "cpu":
        confine(share)
    else:
        confine_gpu(share)


def _random_inputs(model: Model, slot: int | None, sizes: Mapping[str, int]) -> dict[str, Array]:
    """Inputs of the slot if it exists, else of all slots; of several shapes those of the largest with these sizes."""
    members = model.bundle.members if isinstance(model, BucketedModel) else [model.bundle]
    fitting = members_of(model.bundle.manifest, [each.manifest for each in members], sizes)
    inputs = model.random_inputs(bucket=fitting[-1]) if isinstance(model, BucketedModel) else model.random_inputs()
    if slot is None or not 0 <= slot < len(model.slots):
        return inputs
    return {name: array[slot] for name, array in inputs.items()}


def _report(
    model: Model,
    choice: VariantChoice,
    inputs: dict[str, Array],
    slot: int | None,
    repeats: int,
    peer_file: Path | None,
) -> dict[str, Any]:
    outputs, reference = model.run(inputs, slot=slot), model.run(inputs, UNTUNED_VARIANT, slot=slot)
    absolute, relative = differences(outputs, reference)
    variants = tuple(dict.fromkeys((UNTUNED_VARIANT, choice.variant)))
    brief = UNTUNED_VARIANT if choice.variant != UNTUNED_VARIANT else ""
    if peer_file is None:
        peer = None
        # What was chosen has no name here: it may be a runtime that runs inputs between the shapes of a bundle.
        calls = {name: _call(model, inputs, slot, None if name == choice.variant else name) for name in variants}
        times = time_interleaved(calls, repeats, brief=brief)
    else:
        peer = time_beside(peer_file, model, inputs, variants, repeats, brief=brief)
        times = peer.ours
    unproved = peer.unproved if peer else nothing_shown_of(partial(model.run, slot=slot), inputs)
    report: dict[str, Any] = {
        "variant": choice.variant,
        "how": choice.how.value,
        "regret": None if math.isnan(choice.regret) else choice.regret,
        "exact": choice.exact,
        "reason": choice.reason,
        "units": model.share.units,
        "unit": model.share.unit,
        "threads": model.threads,
        "quota_m": model.share.quota.millicores if model.share.quota else None,
        "share": model.share.reason,
        "warning": model.share.warning,
        **_times_json(times[choice.variant], "tuned_"),
        **_times_json(times[UNTUNED_VARIANT], "untuned_"),
        "call_s": None,
        "bound_s": None,
        **_single_calls_s(model, inputs, slot, statistics.median(times[choice.variant].loop_secs)),
        "max_abs_difference": absolute,
        "max_rel_difference": relative,
        "unproved": unproved,
        "outputs": [
            {"name": spec.name, "dtype": str(output.dtype), "shape": list(output.shape)}
            for spec, output in zip(model.outputs, outputs, strict=True)
        ],
    }
    if choice.variant == UNTUNED_VARIANT:
        report["tuned_shares"] = sorted(model.bundle.units(model.share.mechanism))
    if model.slots:
        report |= {"slots": list(model.slots), "apart": model.bundle.manifest["apart"], "slot": slot}
    if peer is not None:
        report["beside"] = _peer_json(peer)
    return report


def _call(model: Model, inputs: dict[str, Array], slot: int | None, variant: str | None) -> Callable[[], Any]:
    """One inference for timing; on a GPU from and to its memory."""
    if model.share.unit == "core" or slot is not None:
        return lambda: model.run(inputs, variant, slot=slot)
    placed = model.placed(inputs)
    return lambda: model.run_tensors(placed, variant)


def _single_calls_s(model: Model, inputs: dict[str, Array], slot: int | None, loop_s: float) -> dict[str, float]:
    """Medians of single calls by `run` and by `bind`, which alternate: a disturbed call does not move a median. Empty
    for longer calls, on a GPU, where calls are timed without copies, and where `bind` cannot make the same call.
    """
    can_bind = slot is None and all(None not in spec.shape for spec in model.outputs)
    if loop_s >= _SHORT_S or model.share.unit != "core" or not can_bind:
        return {}
    bound = model.bind()
    for name, array in inputs.items():
        bound.inputs[name][...] = array
    calls: dict[str, Callable[[], Any]] = {"call_s": lambda: model.run(inputs), "bound_s": bound.run}
    secs = time_single_calls(calls, _SINGLE_CALLS)
    return {name: statistics.median(each) for name, each in secs.items()}


def _times_json(times: Times, prefix: str = "") -> dict[str, Any]:
    return {
        f"{prefix or 'median_'}s": statistics.median(times.loop_secs),
        f"{prefix}run_secs": times.loop_secs,
        f"{prefix}paced_s": statistics.median(times.paced_secs),
        f"{prefix}paced_run_secs": times.paced_secs,
    }


def _peer_json(peer: Beside) -> dict[str, Any]:
    return {
        "name": ONNX_RUNTIME,
        "version": peer.version,
        **_times_json(peer.theirs),
        "exact": None if peer.exact is None else _times_json(peer.exact),
        "max_abs_difference": peer.max_abs_difference,
        "max_rel_difference": peer.max_rel_difference,
        "own_rel_difference": peer.own_rel_difference,
        "outputs_agree": peer.outputs_agree,
    }


def _print(report: dict[str, Any], given_by: str) -> None:
    print(f"share:     {report['share']}")
    if report["warning"]:
        print(f"warning:   {report['warning']}")
    print(f"variant:   {report['variant']} ({report['reason']})")
    if "slots" in report:
        _print_slots(report)
    unit, factor = common_unit(max(report["untuned_s"], report["untuned_paced_s"]))
    print(_columns("", f"in a loop ({unit})", f"paced ({unit})"))
    tuned = report["variant"] != UNTUNED_VARIANT
    labels = {"tuned": "served" if report["variant"] in RUNTIMES else "tuned"} if tuned else {}
    for name, label in {**labels, "untuned": "untuned"}.items():
        print(_columns(f"{label}:", *(_spread(secs, factor) for secs in _repeats(report, f"{name}_"))))
    if tuned:
        gains = map(_gain_text, _repeats(report, "untuned_"), _repeats(report, "tuned_"))
        print(_columns("speed-up:", *gains))
    if "beside" in report:
        for name, peer in _peers(report["beside"]).items():
            print(_columns(name, *(_spread(secs, factor) for secs in _repeats(peer))))
    print(f"           {_place(report)}, {given_by}; paced: {PACED}")
    print("".join(f"{line}\n" for line in _hints(report)), end="")
    absolute, relative = report["max_abs_difference"], report["max_rel_difference"]
    print(f"outputs:   largest difference {absolute:.2e}, relative {relative:.2e}")
    if report["unproved"]:
        print(f"           NOT CHECKED: they are {report['unproved']}; give inputs of your own (--inputs)")
    if "beside" in report:
        _print_verdict(report["beside"], *_repeats(report, "tuned_"), is_proved=not report["unproved"])


def _place(report: dict[str, Any]) -> str:
    """`on 2 cores`; with fewer threads than cores `one thread, on 2 cores`; under a limit `2 threads under ...`"""
    units, unit, threads = report["units"], report["unit"], report["threads"]
    if report["quota_m"] is not None:
        return f"{threads_text(threads)} under a limit of {report['quota_m']}m"
    fewer = "" if unit != "core" or threads == units else "one thread, " if threads == 1 else f"{threads} threads, "
    return f"{fewer}on {units_text(units, unit)}"


def _hints(report: dict[str, Any]) -> list[str]:
    """A way to run a tuned variant if the untuned one ran; the overhead of a call if it is a large part."""
    if report.get("tuned_shares"):
        at = report["tuned_shares"][0]
        return [f"hint:      --share {at} runs the variant that was tuned there; --allow-unmeasured runs it here"]
    call_s, bound_s = report.get("call_s"), report.get("bound_s")
    if call_s and bound_s and call_s - bound_s > _NOTICED_OVERHEAD * call_s:
        saved = f"{time_text(call_s - bound_s)} of a call ({time_text(call_s)}) are copies and checks of arrays"
        return [f"overhead:  {saved}, which model.bind saves"]
    return []


def _print_slots(report: dict[str, Any]) -> None:
    print(f"slots:     {slots_text(report['slots'])}")
    if report["slot"] is not None:
        count = len(report["slots"])
        print(f"           only slot {report['slot']} was requested, of {count} that each run computes")
    if report["apart"]:
        print(f"           {apart_text(report['apart'])}")


def _columns(name: str, in_loop: str, paced: str) -> str:
    return f"{name:<10} {in_loop:<30} {paced}"


def _repeats(times: dict[str, Any], prefix: str = "") -> tuple[list[float], list[float]]:
    """Seconds in a loop and paced."""
    return times[f"{prefix}run_secs"], times[f"{prefix}paced_run_secs"]


def _spread(run_secs: Sequence[float], factor: float) -> str:
    """`1.23 (1.20 .. 1.31)`: median, smallest and largest, in the unit of `factor`; `1.23 (one timing)`."""
    if len(run_secs) == 1:
        return f"{run_secs[0] * factor:.4g} (one timing)"
    return f"{statistics.median(run_secs) * factor:.4g} ({min(run_secs) * factor:.4g} .. {max(run_secs) * factor:.4g})"


def _gain_text(slower: Sequence[float], faster: Sequence[float]) -> str:
    """`1.54x (1.50 .. 1.57)`: the ratio of interleaved repeats with its 95 % interval, if there are enough; `238x (one
    timing)`.
    """
    found = slowdown(slower, faster, interleaved=True)
    gain = factor_text(1 + found.median)
    if math.isnan(found.low):
        return f"{gain} (one timing)" if min(len(slower), len(faster)) == 1 else gain
    low, high = (factor_text(1 + bound).removesuffix("x") for bound in (found.low, found.high))
    return f"{gain} ({low} .. {high}){', a tie' if found.is_tie else ''}"


def _peers(peer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Times of the peer's sessions by the beginning of a line."""
    return {"peer:": peer} | ({"exact:": peer["exact"]} if peer["exact"] else {})


def _print_verdict(
    peer: dict[str, Any], loop_secs: Sequence[float], paced_secs: Sequence[float], *, is_proved: bool = True
) -> None:
    """Print the faster runtime; `loop_secs` and `paced_secs` are the bundle's."""
    for name, each in _peers(peer).items():
        their_loop, their_paced = _repeats(each)
        in_loop, paced = _faster("in a loop", loop_secs, their_loop), _faster("paced", paced_secs, their_paced)
        print(_columns("verdict:" if each is peer else name, f"{in_loop}; {paced}", "").rstrip())
    print(f"           peer: ONNX Runtime {peer['version']} with a thread for each core of the share")
    if peer["exact"]:
        settings = ", ".join(f"{key}={value}" for key, value in EXACT_ONNX_RUNTIME.items())
        print("           exact: the same with exact products; the outputs are compared with its own")
        print(f"           ({settings}; accuracy_level=4 rounds in both)")
    relative = peer["max_rel_difference"]
    verdict = "agree" if peer["outputs_agree"] else _DISAGREE
    if is_proved or not peer["outputs_agree"]:
        print(f"           the outputs {verdict} (largest difference {relative:.2e} of the largest value)")
    if peer["own_rel_difference"]:
        print(f"           right outputs lie up to {peer['own_rel_difference']:.2e} apart: those of exact sessions,")
        print("           optimized or not, also with inputs and weights moved by some roundings")


def _faster(timing: str, ours: Sequence[float], theirs: Sequence[float]) -> str:
    lost = slowdown(ours, theirs, interleaved=True)
    if lost.is_tie and not math.isnan(lost.low):
        return f"a tie {timing}, {_gain_text(theirs, ours).removesuffix(', a tie')}"
    if lost.median > 0:
        return f"ONNX Runtime is faster {timing}, {_gain_text(ours, theirs)}"
    return f"the bundle is faster {timing}, {_gain_text(theirs, ours)}"


def _save(path: Path, outputs: dict[str, Array]) -> None:
    with replacing_file(path) as file:
        write_arrays(file, outputs)


def read_inputs(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file by name. Raises BadRequest for another file, and for a file with Python objects."""
    import numpy as np

    try:
        with path.open("rb") as file:  # NumPy does not close a file that it cannot read
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                raise BadRequest(f"--inputs {path}: one array without a name; write it by numpy.savez(FILE, NAME=...)")
            return {name: loaded[name] for name in loaded.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it is not a whole .npz file"
        raise BadRequest(f"--inputs {path}: {why}; write one with numpy.savez(FILE, NAME=array)") from error


def array_names(specs: Sequence[TensorSpec]) -> list[str]:
    """The names of outputs as names of arrays in a file: the model's own if each can name a file in an archive, else
    `output0` and so on.
    """
    names = [spec.name for spec in specs]
    if all(map(_can_name_a_file, names)):
        return names
    return [f"output{number}" for number in range(len(names))]


def write_arrays(file: IO[bytes], arrays: Mapping[str, Array]) -> None:
    """Write an .npz file as `numpy.savez` does, which cannot write an array named `file`. Raises OSError."""
    import numpy as np

    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(name + _SUFFIX, "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)


def _can_name_a_file(name: str) -> bool:
    """Return True if the name stays inside when the archive is unpacked, and is read back unchanged."""
    steps = name.split("/")
    is_plain = name.isprintable() and "\\" not in name and not name.endswith(_SUFFIX)
    return is_plain and 0 < len(name) <= _LONGEST_NAME and all(step not in ("", ".", "..") for step in steps)
