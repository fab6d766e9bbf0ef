"""`python -m benchmarks [--quick]`: all benchmarks, one after the other."""

from __future__ import annotations

from benchmarks import queue_cost


def main() -> None:
    queue_cost.main()


if __name__ == "__main__":
    main()
