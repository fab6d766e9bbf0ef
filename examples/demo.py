"""The demo: tune a real model for one core and for two, then run the bundle at both. `make demo` runs it.

It types the commands that a user would type. All state goes to build/demo; run it again and nothing is measured
twice. Exit code 1 when the tuned model is not clearly faster than the untuned one.
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
    slow = [share for share in SHARES if run_at(bundle, share) < SPEED_UP_WANTED]
    print(f"\nthe table as a picture: {picture}")
    print(f"the demo took {time.monotonic() - started:.0f} s")
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


def run_at(bundle: Path, share: str) -> float:
    """Run the bundle at a share, in a process of its own; tell and return the speed-up over untuned."""
    args = ["run", str(bundle), "--share", share, "--json"]
    print("\n$ fractune", *args, flush=True)
    report: dict[str, Any] = json.loads(subprocess.run(command(*args), check=True, capture_output=True).stdout)
    speed_up = float(report["untuned_s"] / report["tuned_s"])
    print(f"{share}: variant {report['variant']} ({report['reason']})")
    print(
        f"{share}: untuned {report['untuned_s'] * 1e3:.1f} ms, tuned {report['tuned_s'] * 1e3:.1f} ms, {speed_up:.2f}x"
    )
    print(f"{share}: largest output difference {report['max_rel_difference']:.1e} of the largest output")
    return speed_up


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "fractune.cli", *args]


if __name__ == "__main__":
    raise SystemExit(main())
