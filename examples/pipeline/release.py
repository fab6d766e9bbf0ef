r"""A CI job's release of a model: tune it on the server, fetch the bundle, and gate on the last release.

    python examples/pipeline/release.py model.onnx --server tuner.internal:50051 --shares cpu:1,cpu:2 \
        --serve cpu:2 --last release/model.fractune --out build/model.fractune --junit build/release.xml

1. Submits the model, waits for the job, and downloads the bundle.
2. Gate: at the share that the model is served at, the new bundle must not be slower than the last release, beyond the
   noise and beyond `--tolerance`; both are timed alternately, in this process, confined to that share. And its outputs
   must agree.
3. Writes a JUnit file with a test case for each of these.

Exit code 0 = release it, 1 = the gate says no; anything else is the exit code of the step that failed
(docs/exit-codes.md). Without `--last` (the first release) there is nothing to compare with, and the gate is open.
"""

import argparse
import functools
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import fractune
from fractune.errors import FractuneError

LARGEST_DIFFERENCE = 1e-3
"""between the outputs of both releases, relative to the largest: another order of additions makes about 1e-6"""


@dataclass(frozen=True)
class Step:
    """A test case of the report."""

    name: str
    secs: float
    says: str
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
        print(f"{'ok' if step.passed else 'FAILED'}: {step.name}: {step.says}", flush=True)
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
        passed, says = do()
    except FractuneError as error:
        return Step(name, time.monotonic() - began, str(error), passed=False, code=error.exit_code)
    return Step(name, time.monotonic() - began, says, passed)


def _fetch(wanted: argparse.Namespace) -> tuple[bool, str]:
    """Submit, wait, download. Raises what the server refuses, and what ended the job."""
    state = None
    with fractune.connect(wanted.server) as client:
        job = client.submit(wanted.model, wanted.shares, trials=wanted.trials)
        for seen in job.watch():
            if seen.state is not state:
                state = seen.state
                print(f"{job.name}: {state}, {seen.progress.candidates_done} candidates measured", flush=True)
        job.wait()
        job.bundle(wanted.out)
    return True, f"{job.name} made {wanted.out}"


def _same_outputs(wanted: argparse.Namespace) -> tuple[bool, str]:
    difference = _compare(wanted.out, wanted.last, wanted.serve).max_rel_difference
    return difference <= LARGEST_DIFFERENCE, f"largest difference {difference:.1e} of the largest output"


def _not_slower(wanted: argparse.Namespace) -> tuple[bool, str]:
    """Passes unless the new bundle is slower beyond the noise, and by more than the tolerance."""
    found = _compare(wanted.out, wanted.last, wanted.serve)
    lost = found.slowdown
    says = (
        f"{lost.median:+.1%} (95 % interval {lost.low:+.1%} .. {lost.high:+.1%}, tolerance {wanted.tolerance:.0%}); "
        f"new: {found.new.variant} ({found.new.reason})"
    )
    return not found.is_slower(wanted.tolerance), says


@functools.cache
def _compare(new: Path, last: Path, share: str) -> fractune.Comparison:
    """Compare both at the share, once for both questions."""
    return fractune.compare(new, last, share=share)


def _write_junit(steps: Sequence[Step], path: Path) -> None:
    failed = str(sum(not step.passed for step in steps))
    suite = ET.Element("testsuite", name="fractune release", tests=str(len(steps)), failures=failed)
    for step in steps:
        case = ET.SubElement(suite, "testcase", classname="release", name=step.name, time=f"{step.secs:.3f}")
        if step.passed:
            ET.SubElement(case, "system-out").text = step.says
        else:
            ET.SubElement(case, "failure", message=step.says)
    path.parent.mkdir(parents=True, exist_ok=True)
    ET.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)


if __name__ == "__main__":
    sys.exit(main())
