"""A process that makes one plan: `python -m fractune_core.planning.process PARENT_PID`.

It reads a MakePlanRequest from standard input, and writes a Plan to standard output. A refusal ends it with REFUSED:
then the output is the error's name and, on further lines, its message.
"""

import os
import sys

from fractune_core.codec.messages import to_proto
from fractune_core.errors import FractuneError
from fractune_core.host.limits import limit_process
from fractune_core.host.parent_death import die_with_parent
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.planning.planner import make_plan
from fractune_core.planning.wire import request_from_proto

REFUSED = 3
"""exit code"""
_MEMORY_BYTES = 4 << 30
_NICE = 10
"""its parent goes first"""


def main(parent_pid: int) -> int:
    die_with_parent(parent_pid)
    os.nice(_NICE)
    limit_process(_MEMORY_BYTES)
    message = pb.MakePlanRequest.FromString(sys.stdin.buffer.read())
    try:
        plan = make_plan(request_from_proto(message), simulated=message.simulate, seed=message.seed)
    except FractuneError as error:
        sys.stdout.write(f"{type(error).__name__}\n{error}")
        return REFUSED
    sys.stdout.buffer.write(to_proto(plan, pb.Plan).SerializeToString())
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
