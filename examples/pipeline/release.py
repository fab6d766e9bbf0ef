r"""What a CI job runs to release a model: tune it on the server, fetch the bundle, and gate on the last release.

    python examples/pipeline/release.py model.onnx --server tuner.internal:50051 --shares cpu:1,cpu:2 \
        --serve cpu:2 --last release/model.fractune --out build/model.fractune --junit build/release.xml

1. Submits the model, waits for the job, and downloads the bundle.
2. Gate: at the share that the model is served at, the new bundle must not be slower than the last release, beyond the
   noise and beyond `--tolerance`; both are timed in turn, in this process, confined to that share. And its outputs
   must agree.
3. Writes a JUnit file with a test case for each of these.

Exit code 0 = release it, 1 = the gate says no; anything else is the exit code of the step that failed
(docs/exit-codes.md). Without `--last` (the first release) there is nothing to compare with, and the gate is open.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from fractune import load
from fractune.client import Client
from fractune.inference.comparing import differences, time_in_turns
from fractune_core.analysis.slowdown_ci import slowdown
from fractune_core.convert import spec_to_proto, state_from_proto
from fractune_core.errors import FractuneError, JobFailed
from fractune_core.jobs import JobSpec
from fractune_core.names import Collection
from fractune_core.shares import parse_shares

TURNS = 21
LARGEST_DIFFERENCE = 1e-3
"""between the outputs of both releases, relative to the largest: another order of additions makes about 1e-6"""


@dataclass(frozen=True)
class Step:
    """A test case of the report."""

    name: str
    secs: float
    told: str
    passed: bool
    code: int = 1
    """the exit code of this script when it did not pass"""


def main(args: Sequence[str] | None = None) -> int:
    wanted = _parse(args)
    steps = [_step("bundle", lambda: _fetch(wanted))]
    if steps[0].passed and wanted.last is not None:
        steps.append(_step("outputs agree with the last release", lambda: _same_outputs(wanted)))
        steps.append(_step(f"not slower than the last release at {wanted.serve}", lambda: _not_slower(wanted)))
    for step in steps:
        print(f"{'ok' if step.passed else 'FAILED'}: {step.name}: {step.told}", flush=True)
    if wanted.junit is not None:
        _write_junit(steps, wanted.junit)
    return next((step.code for step in steps if not step.passed), 0)


def _parse(args: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--server", required=True, help="HOST:PORT or unix:PATH")
    parser.add_argument("--shares", required=True, help="shares to tune for")
    parser.add_argument("--serve", required=True, help="the share that the release is served at; the gate is there")
    parser.add_argument("--trials", type=int, default=256, help="those in the server's log count")
    parser.add_argument("--last", type=Path, help="bundle of the last release")
    parser.add_argument("--tolerance", type=float, default=0.03, help="how much slower still passes (0.03 = 3 %%)")
    parser.add_argument("--out", type=Path, required=True, help="where the new bundle goes")
    parser.add_argument("--junit", type=Path, help="JUnit file to write")
    return parser.parse_args(args)


def _step(name: str, do: Callable[[], tuple[bool, str]]) -> Step:
    """Run a step; an error of fractune's is its failure, with that error's exit code."""
    began = time.monotonic()
    try:
        passed, told = do()
    except FractuneError as error:
        return Step(name, time.monotonic() - began, str(error), passed=False, code=error.exit_code)
    return Step(name, time.monotonic() - began, told, passed)


def _fetch(wanted: argparse.Namespace) -> tuple[bool, str]:
    """Submit, wait, download. Raises what the server refuses, and JobFailed."""
    shares = tuple(str(share) for share in parse_shares(wanted.shares))
    with Client(wanted.server) as client:
        model = Collection.MODELS.parse(client.upload_model(wanted.model).name)
        spec = JobSpec(model=model, model_name=wanted.model.name, shares=shares, trials=wanted.trials)
        name = client.create_job(spec_to_proto(spec)).name
        state = ""
        for job in client.watch_job(name):
            if state_from_proto(job.state).value != state:
                state = state_from_proto(job.state).value
                print(f"{job.name}: {state}, {job.progress.candidates_done} candidates measured", flush=True)
        if not job.result.bundle:
            raise JobFailed(f"{job.name} is {state}: {job.message or 'it has no bundle'}")
        wanted.out.parent.mkdir(parents=True, exist_ok=True)
        client.download_bundle(job.result.bundle, wanted.out.absolute())
    return True, f"{job.name} made {wanted.out}"


def _same_outputs(wanted: argparse.Namespace) -> tuple[bool, str]:
    new, last = (load(path, share=wanted.serve) for path in (wanted.out, wanted.last))
    inputs = new.random_inputs()
    _, relative = differences(new.run(inputs), last.run(inputs))
    return relative <= LARGEST_DIFFERENCE, f"largest difference {relative:.1e} of the largest output"


def _not_slower(wanted: argparse.Namespace) -> tuple[bool, str]:
    """Passes unless the new bundle is slower beyond the noise, and by more than the tolerance."""
    new, last = (load(path, share=wanted.serve) for path in (wanted.out, wanted.last))
    inputs = new.random_inputs()
    calls = {"new": lambda: new.run_tensors(inputs), "last": lambda: last.run_tensors(inputs)}
    run_secs = time_in_turns(calls, TURNS, apart=True)
    lost = slowdown(run_secs["new"], run_secs["last"], in_turn=True)
    told = (
        f"{lost.median:+.1%} (95 % interval {lost.low:+.1%} .. {lost.high:+.1%}, tolerance {wanted.tolerance:.0%}); "
        f"new: {new.choice.variant} ({new.choice.reason})"
    )
    return lost.is_tie or lost.median <= wanted.tolerance, told


def _write_junit(steps: Sequence[Step], path: Path) -> None:
    failed = str(sum(not step.passed for step in steps))
    suite = ET.Element("testsuite", name="fractune release", tests=str(len(steps)), failures=failed)
    for step in steps:
        case = ET.SubElement(suite, "testcase", classname="release", name=step.name, time=f"{step.secs:.3f}")
        if step.passed:
            ET.SubElement(case, "system-out").text = step.told
        else:
            ET.SubElement(case, "failure", message=step.told)
    path.parent.mkdir(parents=True, exist_ok=True)
    ET.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)


if __name__ == "__main__":
    sys.exit(main())
