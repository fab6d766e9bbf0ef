"""`fractune measure`: the candidates of a pack, timed at shares of this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fractune.features.noise import children_find_us
from fractune.local.programs import measure_pack
from fractune.sessions.progress import LineProgress, line_reporter
from fractune.sessions.session import PathText
from fractune.text.output_files import check_writable
from fractune_core.errors import BadRequest
from fractune_core.files.packs import Pack
from fractune_core.shares import Share, share_names, with_kernel_shares

_MOST_MINUTES = 7 * 24 * 60.0


def measure(
    path: PathText,
    shares: str | Sequence[str],
    *,
    public_key: str | bytes | None,
    out: PathText | None = None,
    minutes: float | None = None,
    progress: LineProgress = True,
) -> dict[str, Any]:
    """Measure the pack at `path` at shares of this machine, for `minutes` at most, and write the times to `out`.

    For a CPU limit, or a range of shares, kernels are measured at the shares that `tune` measures them at. The pack's
    code runs only with the signature of the owner of `public_key` (PEM); None runs any pack. The file `out`
    (default: `<pack>.times` in the current folder) goes on from where an earlier call has ended. `fractune log import`
    takes it into a log.

    Returns numbers of the file. Raises BadBundle, BadRequest, ShareUnavailable, StateUnusable.
    """
    path = Path(path)
    if minutes is not None and not 0 < minutes <= _MOST_MINUTES:
        raise BadRequest(f"--minutes is {minutes:g}; it must be above 0, and at most {_MOST_MINUTES:g}")
    named = map(Share.parse, with_kernel_shares(share_names(shares)))
    requested = [share for share in named if share.kind.measures_kernels]
    if len({share.device_kind for share in requested}) > 1:
        raise BadRequest("--shares are of a CPU and of a GPU; measure the pack for each apart")
    written = Path(f"{path.stem}.times" if out is None else out).absolute()
    check_writable("--out", written)
    with contextlib.closing(_opened(path, public_key)) as pack, children_find_us():
        return measure_pack(pack, written, requested, minutes, line_reporter(progress))


def _opened(path: Path, public_key: str | bytes | None) -> Pack:
    if public_key is None:
        return Pack(path)
    from fractune_runtime.signatures import signature_check

    return Pack(path, signature_check(public_key))
