"""`fractune run`: a bundle at the share that this process is under."""

from __future__ import annotations

import importlib.util
import json
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner_client.bundle import differences, enter_share, load_model, read_inputs, spread_text
from tuner_client.cli import options
from tuner_client.text import ratio_text
from tuner_core.bundles import UNTUNED_VARIANT, Bundle
from tuner_core.errors import FractuneError, StateUnusable
from tuner_core.shares import Share

if TYPE_CHECKING:
    from tuner_client.bundle import Array, Model


def run(
    bundle: Annotated[Path, typer.Argument(help="Bundle file.")],
    share: Annotated[
        str | None, typer.Option("--share", help="Confine this process to cpu:N first (default: as it is).")
    ] = None,
    inputs: Annotated[Path | None, typer.Option("--inputs", help=".npz file with the inputs by name.")] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=3, help="Times that each variant is timed.")] = 15,
    save_outputs: Annotated[Path | None, typer.Option("--save-outputs", help=".npz file for the outputs.")] = None,
    as_json: options.Json = False,
) -> None:
    """Run a bundle at this process's share and time it beside the untuned model."""
    wanted = Share.parse(share) if share else None
    Bundle(bundle)  # a torn file is told before TVM loads
    if importlib.util.find_spec("tvm") is None:
        raise FractuneError("running a bundle needs TVM; install 'fractune[local]'")
    units = enter_share(wanted)
    model = load_model(bundle, units)
    given = read_inputs(inputs) if inputs else model.random_inputs()
    report = _report(model, given, units, repeats)
    if save_outputs is not None:
        _save(save_outputs, model.run(given))
    if as_json:
        print(json.dumps(report))
    else:
        _print(report, given_by="random inputs" if inputs is None else str(inputs))


def _report(model: Model, inputs: dict[str, Array], units: int, repeats: int) -> dict[str, Any]:
    variant = model.choice.variant
    outputs, reference = model.run(inputs), model.run(inputs, UNTUNED_VARIANT)
    absolute, relative = differences(outputs, reference)
    run_secs = model.time_variants(inputs, [UNTUNED_VARIANT, variant], repeats)
    return {
        "variant": variant,
        "exact": model.choice.exact,
        "reason": model.choice.reason,
        "cores": units,
        "tuned_s": statistics.median(run_secs[variant]),
        "untuned_s": statistics.median(run_secs[UNTUNED_VARIANT]),
        "tuned_run_secs": run_secs[variant],
        "untuned_run_secs": run_secs[UNTUNED_VARIANT],
        "max_abs_difference": absolute,
        "max_rel_difference": relative,
        "outputs": [{"dtype": str(output.dtype), "shape": list(output.shape)} for output in outputs],
    }


def _print(report: dict[str, Any], given_by: str) -> None:
    print(f"variant:   {report['variant']} ({report['reason']})")
    print(f"tuned:     {spread_text(report['tuned_run_secs'])}")
    print(f"untuned:   {spread_text(report['untuned_run_secs'])}")
    speed_up = ratio_text(report["untuned_s"], report["tuned_s"])
    print(f"speed-up:  {speed_up} on {report['cores']} core(s), {given_by}")
    absolute, relative = report["max_abs_difference"], report["max_rel_difference"]
    print(f"outputs:   largest difference {absolute:.2e}, relative {relative:.2e}")


def _save(path: Path, outputs: list[Array]) -> None:
    import numpy as np

    try:
        with path.open("wb") as file:
            np.savez(file, allow_pickle=False, **{f"output{index}": output for index, output in enumerate(outputs)})
    except OSError as error:
        raise StateUnusable(f"--save-outputs {path}: {error.strerror}") from error
