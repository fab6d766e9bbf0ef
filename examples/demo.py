"""The demo: tune a real model for one core and for two, then let a program use it in place of ONNX Runtime's session.

The model, magika, has trained weights and tells the kind of a file from its bytes. `make demo` runs the demo. It types
the command that a user would type, which ends with the comparison with ONNX Runtime. All state goes to build/demo; run
it again and nothing is measured twice. Exit code 1 when the two runtimes disagree about a file.
"""

import importlib.util
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

TOP = Path(__file__).resolve().parents[1]
FOLDER = TOP / "build" / "demo"
FILES = ("README.md", "Makefile", "pyproject.toml", "examples/demo.py", "docs/fit.svg")
PIECE_BYTES, PADDING = 1024, 256
"""the model reads the first and the last bytes of a file, and this number in place of missing ones"""


def main() -> int:
    started = time.monotonic()
    model, labels = find_model()
    bundle = FOLDER / "magika.fractune"
    tune = ["tune", str(model), "--shares", "cpu:1,cpu:2", "--trials", "128"]
    tune += ["--state", str(FOLDER / "state"), "--out", str(bundle), "--picture", str(FOLDER / "tuned-at-run-at.svg")]
    print("$ fractune", *tune, flush=True)
    code = subprocess.run([sys.executable, "-m", "fractune.cli", *tune], check=False).returncode
    if code:
        return code
    told = {runtime: kinds(runtime, path, labels) for runtime, path in (("onnxruntime", model), ("fractune", bundle))}
    print("\nThe same program with onnxruntime.InferenceSession and with fractune.InferenceSession:")
    for name, theirs, ours in zip(FILES, told["onnxruntime"], told["fractune"], strict=True):
        print(f"  {name:20}{theirs:12}{ours}")
    print(f"\nthe demo took {time.monotonic() - started:.0f} s; bundle and picture: {FOLDER}")
    return 0 if told["onnxruntime"] == told["fractune"] else 1


def find_model() -> tuple[Path, list[str]]:
    """A copy of the model as the package `magika` ships it, and the names of its 214 classes."""
    spec = importlib.util.find_spec("magika")
    if spec is None or spec.origin is None:
        raise SystemExit("demo: the package magika is not installed; run 'make demo', which installs it")
    shipped = Path(spec.origin).parent / "models" / "standard_v3_3"
    FOLDER.mkdir(parents=True, exist_ok=True)
    labels: list[str] = json.loads((shipped / "config.min.json").read_bytes())["target_labels_space"]
    return Path(shutil.copy(shipped / "model.onnx", FOLDER / "magika.onnx")), labels


def kinds(runtime: str, path: Path, labels: list[str]) -> list[str]:
    """What the model says of each file of FILES, by `runtime`: "onnxruntime" or "fractune"."""
    session: Any = importlib.import_module(runtime).InferenceSession(str(path))
    name = session.get_inputs()[0].name
    scores = [session.run(None, {name: file_bytes(TOP / file)})[0] for file in FILES]
    return [labels[int(each.argmax())] for each in scores]


def file_bytes(path: Path) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Shape (1, 2048)."""
    content = path.read_bytes().strip()
    first, last = list(content[:PIECE_BYTES]), list(content[-PIECE_BYTES:])
    padding = [PADDING] * (PIECE_BYTES - len(first))
    return np.array([[*first, *padding, *padding, *last]], dtype=np.int32)


if __name__ == "__main__":
    raise SystemExit(main())
