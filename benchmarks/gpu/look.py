"""The part `look`: what this machine is, and how its MPS daemon answers, word for word.

Nothing is judged here. It is kept for people, and for the simulated daemon of the tests, which was written from
documents.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from benchmarks.gpu.command import python, shell
from benchmarks.gpu.part import Finding, PartFailed, Slice
from benchmarks.gpu.quarter import MPS_QUARTER, refusal_of

_LOOKS = {
    "GPU": "nvidia-smi; nvidia-smi -q",
    "driver": "cat /proc/driver/nvidia/version",
    "MPS programs": "find / -xdev -name 'nvidia-cuda-mps*' 2>/dev/null; nvidia-cuda-mps-control -v",
    "folders": "df -h /dev/shm /tmp; ulimit -a",
    "processor": "lscpu; free -g",
    "compilers": "nvcc --version; g++ --version; compute-sanitizer --version",
    "libraries": "ldconfig -p | grep -E 'libcuda|libnvrtc|libnvidia-ml'; "
    "find / -xdev -name 'libcudart.so*' -o -xdev -name 'libnvrtc.so*' 2>/dev/null",
}
_LOOK_TIMEOUT_S = 30.0
_START_CUDA = "from fractune_workers.cuda.driver import open_driver; print(open_driver().sm_count())"
_STARTS = 3


def run(given: Slice) -> Finding:
    found = {name: given.once(name, partial(_look, given, line)) for name, line in _LOOKS.items()}
    refusal = refusal_of(MPS_QUARTER)
    mps = {"refusal": refusal} if refusal else given.once("MPS", partial(_transcript, given))
    (given.out / "look.txt").write_text(_as_text(found, mps), encoding="utf-8")
    starts = given.once("starts of CUDA", lambda: {"seconds": [_start_s(given) for _ in range(_STARTS)]})
    shortest, longest = min(starts["seconds"]), max(starts["seconds"])
    line = f"a process with CUDA starts and ends in {shortest:.1f} to {longest:.1f} s; "
    line += f"skipped: MPS ({refusal})" if refusal else f"{len(mps['lines'])} lines of an MPS daemon"
    return Finding(line, {"machine_says": found, "cuda_starts": starts, "mps": mps}, tuple(mps.get("faults", ())))


def _look(given: Slice, line: str) -> dict[str, Any]:
    """The output of a shell; a missing program has no entry."""
    try:
        ended = shell(given, line, _LOOK_TIMEOUT_S)
    except PartFailed as error:
        return {"command": line, "says": [str(error)]}
    return {"command": line, "says": ended.lines, "errors": ended.last_words}


def _start_s(given: Slice) -> float:
    """Of a process that starts CUDA and ends; the suite's own hold on NVML keeps the driver initialised meanwhile."""
    began = time.monotonic()
    python(given, "-c", _START_CUDA).check("starting CUDA")
    return time.monotonic() - began


def _transcript(given: Slice) -> dict[str, Any]:
    path = given.private / "mps.txt"
    ended = python(given, "-m", "benchmarks.gpu.mps_transcript", "--share", MPS_QUARTER, "--out", str(path))
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {"lines": lines, "faults": [ended.last_words] if ended.code else []}


def _as_text(found: dict[str, Any], mps: dict[str, Any]) -> str:
    blocks = [f"==== {each['command']}\n" + "\n".join(each["says"]) for each in found.values()]
    return "\n\n".join([*blocks, "==== MPS\n" + "\n".join(mps.get("lines", [mps.get("refusal", "")]))]) + "\n"
