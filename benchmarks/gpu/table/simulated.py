"""The rehearsal of the first table on a SIMULATED GPU: one core of this processor, with NumPy in NVIDIA's place.

Everything but CUDA is real: the search, the log, the contest in a confined process, and the pieces of a cut run. The
numbers mean nothing and are not kept. Usage: python -m benchmarks.gpu.table.simulated
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from benchmarks.gpu.part import Finding, Slice
from benchmarks.gpu.table.operations import Operation
from benchmarks.gpu.table.part import Table, filled
from fractune_workers.gpu.nvml import Gpu

_GPU = Gpu(
    0,
    "GPU-simulated",
    "a simulated GPU",
    (9, 0),
    1,
    1 << 30,
    "0",
    "0",
    exclusive=False,
    mig=False,
    mig_instances_at_most=0,
)
TABLE = Table(
    operations=(
        Operation("simulated_product", "made up", (64, 96), (96, 48)),
        Operation("simulated_convolution", "made up", (1, 8, 12, 12), (16, 8, 3, 3), stride=2),
    ),
    dtypes=("float16",),  # float32 has its channels in blocks on a processor
    shares=("cpu:1",),
    peer="simulated",
    trials=8,
    models=(),
)
_SLICE_S = 450.0


def rehearsed(folder: Path) -> Finding:
    out, private = folder / "out", folder / "private"
    out.mkdir()
    private.mkdir()
    return filled(Slice(_SLICE_S, time.monotonic() + _SLICE_S, _GPU, out, private), TABLE)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="fractune-simulated-") as folder:
        found = rehearsed(Path(folder))
    print(f"SIMULATED, its numbers mean nothing: {found.line}")
    for fault in found.faults:
        print(f"SIMULATED: {fault}", file=sys.stderr)
    return 1 if found.faults else 0


if __name__ == "__main__":
    sys.exit(main())
