"""The part `shares`: every share of the GPU is entered in a separate process, and read back from inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.gpu.command import python
from benchmarks.gpu.part import Finding, PartFailed, Slice
from fractune_workers.inventory.shares import NOT_PROVED, PROOF_FAILED


def run(given: Slice) -> Finding:
    # Not by `fractune`: a failed proof ends the command with 4, and its output counts all the same.
    ended = python(given, "-m", "fractune.cli", "shares", "--prove", "--json")
    devices = [event for event in ended.events if event["event"] == "device" and event["uuid"] == given.gpu.uuid]
    if not devices:
        ended.check("fractune shares --prove")
        raise PartFailed(f"fractune shares prints nothing about {given.gpu.uuid}: {ended.last_words or ended.lines}")
    return judged(devices[0]["offers"], devices[0])


def judged(offers: Sequence[Mapping[str, Any]], device: Mapping[str, Any]) -> Finding:
    proved = [each for each in offers if each["proof"] not in {NOT_PROVED, PROOF_FAILED}]
    failed = [each for each in offers if each["proof"] == PROOF_FAILED]
    refused = sorted({str(each["share"]).partition(":")[0] for each in offers if each["proof"] == NOT_PROVED})
    granted = ", ".join(f"{each['share']} {each['units']}" for each in proved)
    line = f"{len(proved)} of {len(proved) + len(failed)} shares that can be had are proved, SMs granted: {granted}"
    line += f"; not to be had here: {', '.join(refused)}" if refused else ""
    faults = [f"{each['share']}: {each['refusal']}" for each in failed] + ([] if proved else ["nothing was proved"])
    return Finding(line, {"device": dict(device)}, tuple(faults))
