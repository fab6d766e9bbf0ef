"""What a bundle needs of the machine that loads it, for `fractune doctor`."""

from __future__ import annotations

import contextlib
import importlib
import os
from pathlib import Path

from fractune.local.doctor import Finding, Use, gpu_findings, packages
from fractune.local.programs import look_for_cuda
from fractune_core.errors import BadBundle, first_line
from fractune_core.files.buckets import Buckets
from fractune_core.files.bundles import Bundle
from fractune_core.files.compared import ONNX_RUNTIME, Runtime, all_compared
from fractune_core.share_kinds import CPU


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
    from fractune.inference.cpu import check_host_code, check_processor

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
    from fractune.inference.choosing import installed, is_alike

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
