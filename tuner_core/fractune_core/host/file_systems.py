"""The kind of file system that a path lies on, by the kernel's table of mounts; whether it is full."""

from __future__ import annotations

import errno
import re
from pathlib import Path

MOUNTS = Path("/proc/self/mounts")
_NETWORK = re.compile(
    r"nfs4?|cifs|smb3?|smbfs|9p|afs|ceph|glusterfs|lustre|gpfs|beegfs|ncpfs|ocfs2|gfs2|pvfs2|orangefs|davfs2?"
    r"|fuse\.(sshfs|rclone|s3fs|gcsfuse|glusterfs|ceph(-fuse)?|davfs2?|smbnetfs|juicefs|weed|moosefs|mfs|goofys|blobfuse2?)"
)
_ESCAPED = re.compile(r"\\([0-7]{3})")


def is_full(error: OSError) -> bool:
    """Whether the disk, or the user's quota of it, has no space left."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def network_file_system(path: Path, mounts: Path | None = None) -> str | None:
    """The type of the network file system that holds `path`, such as `nfs4`, or None for a local file system. Also None
    if the table (`mounts`, by default the kernel's) cannot be read. The path need not exist.
    """
    try:
        lines = (mounts or MOUNTS).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    found = path.resolve()
    best, kind = -1, ""
    for line in lines:
        _, where, this_kind, *_ = line.split(" ")
        place = Path(_ESCAPED.sub(lambda code: chr(int(code[1], 8)), where))
        # The last mount over a place hides the earlier ones.
        if found.is_relative_to(place) and len(place.parts) >= best:
            best, kind = len(place.parts), this_kind
    return kind if _NETWORK.fullmatch(kind) else None
