"""A worker of an older fractune: `python -m tests.support.processes.older_worker PROTOCOL ARGS...`

is the command line of this version, which calls itself 0.0.9 and speaks that protocol.
"""

import subprocess
import sys

import fractune_core
from fractune_core.fleet import redis_names
from tests.support.processes.cli_process import start

VERSION = "0.0.9"


def start_older(protocol: int, *args: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    return start("-m", "tests.support.processes.older_worker", str(protocol), *args, env=env)


def main() -> int:
    fractune_core.__version__ = VERSION
    redis_names.PROTOCOL = int(sys.argv[1])
    redis_names.COMPILE_QUEUE = f"compile.{redis_names.PROTOCOL}"
    redis_names.BUILD_QUEUE = f"build.{redis_names.PROTOCOL}"
    from fractune.cli import main as run

    return run(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
