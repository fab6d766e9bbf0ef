"""`fractune bundle`, `join` and `compete`: a bundle written, checked, joined, compared; `fuse`: models made one."""

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from fractune.cli import options
from fractune.cli.ending import end_without
from fractune.cli.printing import choose_view, print_json, print_tables
from fractune.features.client import Client
from fractune.features.compete.compete import REPEATS, compete as compete_with
from fractune.features.compete.results import checked_json, checked_lines, contest_events
from fractune.features.fuse import apart_text, fuse as fuse_models, slots_text
from fractune.features.join import join as join_files, padding_line, shapes_lines
from fractune.features.tune.bundle import POLICIES, BundleFile, bundle as bundle_model, write_image
from fractune.models.source import check_model_file
from fractune.sessions.session import session
from fractune_core.errors import BadRequest
from fractune_core.files.bundles import SUFFIX
from fractune_runtime.loading import open_bundle
from fractune_runtime.signatures import check_private_key


def compete(
    bundle: Annotated[Path, typer.Argument(help="Bundle file; it gets the times, and is replaced.")],
    model: Annotated[Path, typer.Option("--model", help="The ONNX file that the bundle was made from.")],
    runtimes: Annotated[
        str | None,
        typer.Option("--runtimes", metavar="onnxruntime,openvino", help="Contenders (default: those installed)."),
    ] = None,
    shares: Annotated[
        str | None, typer.Option("--shares", metavar="cpu:1,cpu:2", help="CPU shares of the bundle (default: all).")
    ] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=6, help="Number of timings of each.")] = REPEATS,
    inexact: Annotated[
        bool, typer.Option("--inexact", help="Let runtimes round as they do by default (bfloat16, 8 bits).")
    ] = False,
    check_inputs: options.CheckInputs = None,
    sizes: options.SizesOfBundle = None,
    record: Annotated[bool, typer.Option("--record", help="Keep the times in the log of the server.")] = False,
    as_json: options.Json = False,
    *,
    place: options.Place,
) -> None:
    """Time a bundle beside other runtimes; the faster one serves it."""
    place.check_record(record=record)
    found = compete_with(
        bundle,
        model,
        runtimes=runtimes,
        shares=shares,
        repeats=repeats,
        inexact=inexact,
        check_inputs=check_inputs,
        sizes=options.parse_one_size(sizes),
        progress=not as_json,
    )
    if as_json:
        print_json({"event": "checked", "checked": checked_json(found.path)}, *contest_events(found))
    else:
        print_tables(found.table)
        for line in checked_lines(found.path):
            print(line)
        print(f"bundle: {found.path}", flush=True)
    if record:
        with session(Client, place.state, place.server) as client:
            client.add_runtime_times(found.measured())


def join(
    bundles: Annotated[
        list[Path], typer.Argument(help="Bundles of one model for several shapes, or a joined bundle to compare again.")
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write.")] = None,
    force: options.Force = False,
    *,
    padding: options.Padding,
    model: Annotated[
        Path | None, typer.Option("--model", help="The ONNX file; sizes between shapes are compared with it.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Join bundles of one model for several shapes, and prove its padding."""
    found = join_files(bundles, out=out, force=force, model=model, **padding.parsed())
    if as_json:
        joined = {"bundle": str(found.path), "buckets": list(found.buckets), "padding": found.padding.to_json()}
        print(json.dumps(joined))
        return
    print(f"bundle:    {os.path.relpath(found.path)}")
    for line in shapes_lines(found.buckets):
        print(line)
    print(padding_line(found.padding))


def fuse(
    models: Annotated[list[Path], typer.Argument(help="Model files with the same structure and different weights.")],
    slots: Annotated[
        int | None, typer.Option("--slots", help="Number of slots; spare ones stay empty. [default: one a model]")
    ] = None,
    inputs: options.Inputs = None,
    sizes: options.SizesByName = None,
    run_script: options.RunScript = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write. [default: FIRST_xSLOTS.fused]")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Fuse variants of a model into one model with a slot for each."""
    shapes, by_name = options.parse_inputs(inputs), options.parse_one_size(sizes)
    found = fuse_models(models, slots=slots, inputs=shapes, sizes=by_name, run_script=run_script, out=out)
    if as_json:
        fused = {"slots": list(found.slots), "operators": found.operators, "apart": list(found.apart)}
        print(json.dumps({"path": str(found.path), **fused}))
        return
    print(f"slots:     {slots_text(found.slots)}")
    print(f"operators: {found.operators} to tune, each for all slots at once")
    if found.apart:
        print(f"           {apart_text(found.apart)}")
    print(f"model:     {found.path}")
    print(f"next:      fractune tune {os.path.relpath(found.path)} --shares cpu:1")


@dataclass(frozen=True)
class Schedules:
    """The options that choose the schedules of the log."""

    shares: Annotated[
        str, typer.Option("--shares", metavar="cpu:1,cpu:2", help="Shares that will serve the model.")
    ] = ""
    policy: Annotated[
        str, typer.Option("--policy", help="A variant for each share (shares), or one for all shares (robust).")
    ] = POLICIES[0]
    rerank: Annotated[
        int, typer.Option("--rerank", min=1, help="Number of every share's best trials to measure at the other shares.")
    ] = 1


def bundle(
    source: Annotated[
        str,
        typer.Argument(metavar="MODEL|JOB|BUNDLE", help="Model file, finished job, or with --verify a bundle file."),
    ],
    schedules: Schedules,
    sign: Annotated[
        Path | None, typer.Option("--sign", help="PEM file with the private Ed25519 key to sign the bundle with.")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Check every byte of a bundle file; write nothing.")] = False,
    public_key: Annotated[
        Path | None, typer.Option("--public-key", help="PEM file; with --verify, check the signature too.")
    ] = None,
    image: Annotated[
        Path | None,
        typer.Option(
            "--image",
            metavar="WHEEL",
            help="Write BUNDLE.image, with a Dockerfile; WHEEL: fractune-runtime's. The source may be a bundle file.",
        ),
    ] = None,
    exact: options.Exact = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write (default: MODEL.fractune).")] = None,
    force: options.Force = False,
    as_json: options.Json = False,
    *,
    of_model: options.ModelOptions,
    place: options.JobPlace,
) -> None:
    """Write a bundle of the best schedules in the log, without a search. With a job, download its bundle.

    With --verify: check a bundle file, such as fractune bundle --verify model.fractune --public-key public.pem.
    """
    if verify or public_key is not None:
        others = (schedules != Schedules(), sign, image, exact, out, force, *vars(of_model).values())
        _verify_bundle(Path(source), public_key, alone=verify and not any(others), as_json=as_json)
        return
    key = options.read_key("--sign", sign) if sign else None
    if key is not None:
        check_private_key(key)
    model = Path(source)
    if not model.is_file() and (schedules.shares or model.suffix):
        check_model_file(model)
    if image is not None and model.suffix == SUFFIX and model.is_file():
        made = BundleFile(model)
    elif model.is_file():
        view = choose_view(quiet=False, as_json=as_json)
        given = {**of_model.parsed(), **vars(place), "exact": exact, "out": out, "force": force, "progress": view}
        made = _of_log(model, schedules, given)
    else:
        with session(Client, place.state, place.server) as client:
            made = client.job(source).bundle(out, force=force)
    if key is not None:
        made.sign(key)
    _show_bundle(made, image, as_json=as_json)


def _of_log(model: Path, schedules: Schedules, given: Mapping[str, Any]) -> BundleFile:
    if not schedules.shares:
        raise BadRequest(f"{model}: name the shares that will serve the model, such as --shares cpu:1,cpu:2")
    return bundle_model(model, **vars(schedules), **given)


def _show_bundle(made: BundleFile, image: Path | None, *, as_json: bool) -> None:
    """Print the bundle, write its image, and exit with a code of its own if shares were skipped."""
    skipped = made.skipped_shares
    shown = {"job": made.job, "bundle": str(made.path), "skipped_shares": skipped}
    print(json.dumps(shown) if as_json else f"bundle: {made.path}")
    if image is not None:
        folder = made.path.with_suffix(".image")
        write_image(made.path, image, folder)
        if not as_json:
            print(f"image:  docker build {folder}")
    end_without(skipped)


def _verify_bundle(path: Path, public_key: Path | None, *, alone: bool, as_json: bool) -> None:
    if not alone:
        raise BadRequest(
            "--verify and --public-key check a bundle file (fractune bundle --verify FILE --public-key KEY.pem); leave "
            "the other options out"
        )
    key = options.read_key("--public-key", public_key) if public_key else None
    with contextlib.closing(open_bundle(path, key)) as opened:
        opened.verify()
        is_signed = opened.signature is not None
    if as_json:
        print(json.dumps({"bundle": str(path), "signed": is_signed, "signature_checked": key is not None}))
        return
    if key is not None:
        signature = f"signed by the owner of {public_key}"
    elif is_signed:
        signature = "signed; --public-key FILE.pem checks by whom"
    else:
        signature = "not signed"
    print(f"verified:  every byte of {path} ({signature})")
