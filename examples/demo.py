"""The demo: tune a real model for one core and for two, then run the bundle at both, beside ONNX Runtime.

`make demo` runs it. It types the commands that a user would type. All state goes to build/demo; run it again and
nothing is measured twice. Exit code 1 when the tuned model is not clearly faster than the untuned one.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SHARES = ("cpu:1", "cpu:2")
TRIALS = 256
SPEED_UP_WANTED = 1.3
FOLDER = Path(__file__).resolve().parents[1] / "build" / "demo"


def main() -> int:
    started = time.monotonic()
    model = find_model()
    FOLDER.mkdir(parents=True, exist_ok=True)
    bundle, picture = FOLDER / f"{model.stem}.fractune", FOLDER / "tuned-at-run-at.svg"
    tune = ["tune", str(model), "--shares", ",".join(SHARES), "--trials", str(TRIALS)]
    tune += ["--state", str(FOLDER / "state"), "--out", str(FOLDER), "--picture", str(picture)]
    code = fractune(*tune)
    if code:
        return code
    reports = {share: run_at(bundle, share, model) for share in SHARES}
    print(table(reports))
    print(f"\nthe table as a picture: {picture}")
    print(f"the demo took {time.monotonic() - started:.0f} s")
    slow = [share for share, each in reports.items() if each["untuned_s"] / each["tuned_s"] < SPEED_UP_WANTED]
    if slow:
        print(f"demo: less than {SPEED_UP_WANTED}x faster at {', '.join(slow)}; was the machine busy?", file=sys.stderr)
        return 1
    return 0


def find_model() -> Path:
    """SqueezeNet as the `onnx` package ships it: a real graph, not written here."""
    spec = importlib.util.find_spec("onnx")
    if spec is None or spec.origin is None:
        raise SystemExit("demo: the package onnx is not installed; run 'make demo', or install 'fractune[local]'")
    return Path(spec.origin).parent / "backend" / "test" / "data" / "light" / "light_squeezenet.onnx"


def fractune(*args: str) -> int:
    """Show a command and run it; its exit code."""
    print("\n$ fractune", *args, flush=True)
    return subprocess.run(command(*args), check=False).returncode


def run_at(bundle: Path, share: str, model: Path) -> dict[str, Any]:
    """Run the bundle at a share, in a separate process and interleaved with ONNX Runtime; print and return the
    report.
    """
    args = ["run", str(bundle), "--share", share, "--compare", "onnxruntime", "--model", str(model), "--json"]
    print("\n$ fractune", *args, flush=True)
    report: dict[str, Any] = json.loads(subprocess.run(command(*args), check=True, capture_output=True).stdout)
    print(f"{share}: variant {report['variant']} ({report['reason']})")
    print(f"{share}: largest output difference {report['max_rel_difference']:.1e} of the largest output")
    return report


def table(reports: dict[str, dict[str, Any]]) -> str:
    """Each share's latencies: ours, untuned and tuned, and ONNX Runtime's."""
    lines = [f"\n{'share':8}{'untuned TVM':>14}{'ONNX Runtime':>14}{'fractune':>12}{'over ONNX Runtime':>20}"]
    for share, each in reports.items():
        ours_s, theirs_s = each["tuned_s"], each["beside"]["median_s"]
        times = f"{each['untuned_s'] * 1e3:11.1f} ms{theirs_s * 1e3:11.2f} ms{ours_s * 1e3:9.2f} ms"
        lines.append(f"{share:8}{times}{ours_s / theirs_s:20.2f}")
    return "\n".join(lines)


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "fractune.cli", *args]


if __name__ == "__main__":
    raise SystemExit(main())
