"""A bundle compared with the ONNX file that it was made from, before runtimes are timed beside it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from fractune.local.stack import own_env
from fractune_core.files.bundles import Bundle
from fractune_core.files.checked import Checked


def checked_members(
    bundle: Bundle, path: Path, onnx: Path, members: Sequence[int | None], given: Path | None
) -> dict[int | None, Checked]:
    """What was compared of each member; None is a bundle that is compared as a whole. A bundle in parts is not among
    them: each part was checked when it was tuned.

    Both files may be of strangers: a sandboxed process reads them. Raises OutputsDiffer, BadRequest.
    """
    from fractune_workers.checker import CHECKING_CHILD, check_bundle
    from fractune_workers.reader import reader_child

    if "stages" in bundle.written:
        return {}
    with tempfile.TemporaryDirectory(prefix="fractune-check-") as folder:
        also = [path, *([] if given is None else [given])]
        child = reader_child(CHECKING_CHILD, model=onnx, own_dir=Path(folder), also=also, env=own_env())
        try:
            return {
                member: check_bundle(child, path.absolute(), onnx.absolute(), {}, given and given.absolute(), member)
                for member in members
            }
        finally:
            child.stop()
