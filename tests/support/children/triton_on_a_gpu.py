"""Runs built operators on a GPU, and writes how far their values are from NumPy's, by case.

Run as a program with a folder: `cases.json` has names, types and whether TMA is used, and `0.a`, `1.a`, ... are the
artifacts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import tvm

from fractune_core.cuda import load_cudart
from fractune_workers.children.tvm_api.artifacts import load_objects
from tests.support.children.triton_operators import BOXES, OPERATORS, case_of


def error_on_gpu(artifact: bytes, name: str, dtype: str, *, tma: bool) -> float:
    case = case_of((BOXES if tma else OPERATORS)[name], dtype)
    tensors = [tvm.runtime.tensor(each, tvm.cuda(0)) for each in case.arguments]
    load_objects([artifact])["main"](*tensors)
    case.arguments[-1][...] = tensors[-1].numpy()
    return case.error


if __name__ == "__main__":
    assert load_cudart()
    folder = Path(sys.argv[1])
    cases = json.loads((folder / "cases.json").read_text())
    errors = [
        error_on_gpu((folder / f"{at}.a").read_bytes(), name, dtype, tma=tma)
        for at, (name, dtype, tma) in enumerate(cases)
    ]
    sys.stdout.write(json.dumps(errors))
