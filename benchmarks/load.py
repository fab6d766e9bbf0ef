"""From a bundle to its first inference in a fresh process, and the memory of a loaded model.

Seconds run in each fresh process from `fractune.load` to the first output, with Python started and nothing imported.
Making the random input in between does not count. The imports (NumPy, TVM's runtime) are timed in separate processes,
interleaved with the others. A later inference is the code's own time.

Memory is the growth of the process's private memory (Private_* of its smaps) from the imports to the fifth inference.
The input is made and the loader of machine code started before. It is divided by the model's weights and workspace. The
workspace is the storage that the compiled program plans for values between operators, and the operators' scratch
memory.

Without --bundle the model is compiled but not tuned, with variants for two shares: its inference is slower than tuned
code.

Usage: python -m benchmarks.load [--quick] [--out FILE] [--model NAME] [--repeats N] [--bundle FILE]
"""

import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.support.machine import arguments, write_result
from benchmarks.support.models import Model, find_model
from fractune_workers.child import Child

FIRST_OUTPUT_BAR_S = 0.3
MEMORY_BAR = 1.2
_SHARES = {"cpu:1": {"units": 1}, "cpu:2": {"units": 2}}
_COMPILE_TIMEOUT_S = 600.0


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--model", default="squeezenet")
    parser.add_argument("--repeats", type=int, help="fresh processes of each kind")
    parser.add_argument("--bundle", type=Path, help="a bundle of the model for this machine, such as a tuned one")
    args = parser.parse_args()
    repeats = args.repeats or (2 if args.quick else 11)
    with tempfile.TemporaryDirectory(prefix="fractune-bench-") as folder:
        bundle = args.bundle or _untuned(find_model(args.model), Path(folder) / "untuned.fractune")
        _fresh("seconds", bundle)  # fills the page cache, as on a machine that serves
        both = [(_fresh("seconds", bundle), _fresh("memory", bundle)) for _ in range(repeats)]
    secs, held = [first for first, _ in both], [second for _, second in both]
    over_s = _median(secs, "first_output_s")
    needed = sum(_median(held, name) for name in ("weights_bytes", "planned_bytes", "scratch_bytes"))
    ratio = _median(held, "model_bytes") / needed
    data = {
        "model": args.model,
        "bundle": "untuned" if args.bundle is None else args.bundle.name,
        "seconds": secs,
        "memory": held,
        "first_output_s": over_s,
        "memory_ratio": ratio,
        "bars": {"first_output_s": FIRST_OUTPUT_BAR_S, "memory_ratio": MEMORY_BAR},
    }
    write_result("load", args, data)
    _print_table(secs, held)
    print(
        f"load: {over_s * 1e3:.0f} ms from load() to the first output (bar {FIRST_OUTPUT_BAR_S * 1e3:.0f} ms), "
        f"{_median(secs, 'later_run_s') * 1e3:.0f} ms of it the inference itself; "
        f"{ratio:.2f} of weights and workspace in memory (bar {MEMORY_BAR:g})"
    )


def _untuned(model: Model, out: Path) -> Path:
    """An untuned bundle, by the compiler's child just as a job makes one."""
    child = Child("fractune_workers.children.compiling.child")
    try:
        device = child.call("device", _COMPILE_TIMEOUT_S)
        manifest = {
            "model": {"name": model.path.name, "sha256": hashlib.sha256(model.path.read_bytes()).hexdigest()},
            "device": device,
            "shares": _SHARES,
        }
        child.call(
            "compile_bundle",
            _COMPILE_TIMEOUT_S,
            path=str(model.path),
            inputs=model.inputs,
            target="",
            variants=[{"name": name, "traces": {}} for name in (*_SHARES, "untuned")],
            manifest=manifest,
            records=[],
            out=str(out),
        )
    finally:
        child.stop()
    return out


def _fresh(what: str, bundle: Path) -> dict[str, Any]:
    """The measurements of a separate process."""
    command = [sys.executable, "-m", "benchmarks.support.load_child", what, str(bundle)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"load: {' '.join(command)} failed: {ended.stderr.strip()[-500:]}")
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def _print_table(secs: Sequence[dict[str, Any]], held: Sequence[dict[str, Any]]) -> None:
    for rows, name, label in (
        (secs, "first_output_s", "load() to the first output"),
        (secs, "load_s", "  load(), imports included"),
        (held, "imports_s", "  the imports alone, elsewhere"),
        (held, "load_after_imports_s", "  load() after imports, elsewhere"),
        (secs, "first_run_s", "  the first inference"),
        (secs, "later_run_s", "  a later inference"),
    ):
        values = [row[name] * 1e3 for row in rows]
        print(f"{label:34} {statistics.median(values):8.1f} ms ({min(values):.1f} .. {max(values):.1f})")
    for name, label in (
        ("imports_bytes", "memory after the imports"),
        ("model_bytes", "memory of the model"),
        ("weights_bytes", "  weights"),
        ("planned_bytes", "  workspace between operators"),
        ("scratch_bytes", "  workspace of operators"),
    ):
        print(f"{label:34} {_median(held, name) / 2**20:8.1f} MiB")


def _median(rows: Sequence[dict[str, Any]], name: str) -> float:
    return float(statistics.median(row[name] for row in rows))


if __name__ == "__main__":
    main()
