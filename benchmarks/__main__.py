"""`python -m benchmarks [--quick]`: all benchmarks, one after the other, each in a separate process. With --quick each
is a smoke run without kept results.
"""

import argparse
import subprocess
import sys

BENCHMARKS = (
    *("walks", "plan", "queue_cost", "call_cost", "denormals", "load", "overhead", "match", "rerank", "fused", "pairs"),
    *("cpu_limits", "under_limit", "fit_trials", "concurrent_jobs", "simulated_gpu", "search_cost", "sandbox_cost"),
    *("service_load", "dashboard_pages", "fleet", "tenants", "warm_start", "k_shares", "memory", "share_matrix"),
    *("vs_stock", "parts", "cold_weights", "kernels", "operands", "lengths", "compete", "decoder"),
    *("servers", "onnx_operators", "operator_forms", "zoo"),
)
"""modules of this package; the longest come last"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smoke runs; their results are not kept")
    quick = parser.parse_args().quick
    failed = []
    for name in BENCHMARKS:
        print(f"\n== {name}", flush=True)
        options = ["--quick"] if quick else []
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *options], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"benchmarks: these did not end well: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
