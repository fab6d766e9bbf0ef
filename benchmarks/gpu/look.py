"""The step `look`: what this machine is, in the words of its own programs. The standard library alone."""

import subprocess
import sys
from pathlib import Path

_LINES = (
    "nvidia-smi; nvidia-smi -q",
    "cat /proc/driver/nvidia/version",
    "nvidia-cuda-mps-control -v; nvcc --version",
    "lscpu; free -g; ulimit -a; df -h /dev/shm /tmp",
    "ldconfig -p | grep -E 'libcuda|libnvrtc|libnvidia-ml'",
    "python3 -m pip list 2>/dev/null | grep -iE 'torch|triton|nvidia|numpy|cuda'",
)
_LONGEST_S = 4.0


def main() -> None:
    out = Path(sys.argv[sys.argv.index("--work") + 1], "results", "look.txt")
    with out.open("w") as file:
        for line in _LINES:
            file.write(f"==== {line}\n{_output(line)}\n\n")
            file.flush()


def _output(line: str) -> str:
    try:
        ended = subprocess.run(
            ["bash", "-c", line], capture_output=True, text=True, errors="replace", timeout=_LONGEST_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not done within {_LONGEST_S:g} s"
    return f"{ended.stdout}{ended.stderr}".strip()


if __name__ == "__main__":
    main()
