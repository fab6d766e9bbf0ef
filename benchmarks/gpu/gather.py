"""Everything that the suite has found in one file, for a host that gives back only so much."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path

MOST_BYTES = 15 << 20
"""a lent host may give back 16 MiB a file"""
_LOGS = "logs"


def gather(out: Path, file: Path, most_bytes: int = MOST_BYTES) -> list[str]:
    """Put the folder `out` into `file` (.tar.gz): all results, and logs from the smallest on while there is room.

    The names of the logs that were left out.
    """
    paths = [path for path in sorted(out.rglob("*")) if path.is_file() and path != file]
    logs = {path for path in paths if path.relative_to(out).parts[0] == _LOGS}
    sizes = {path: len(gzip.compress(path.read_bytes())) for path in paths}
    taken = [path for path in paths if path not in logs]
    left_bytes = most_bytes - sum(sizes[path] for path in taken)
    left_out = []
    for path in sorted(logs, key=sizes.__getitem__):
        left_bytes -= sizes[path]
        if left_bytes >= 0:
            taken.append(path)
        else:
            left_out.append(str(path.relative_to(out)))
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w:gz") as archive:
        for path in taken:
            archive.add(path, path.relative_to(out))
    return left_out
