"""The environment variables of the command line alone; the Python API has two more, FRACTUNE_SERVER and
FRACTUNE_STATE (`fractune.api.finding`, `fractune.local.state`).
"""

from __future__ import annotations

import os
from pathlib import Path

from fractune_core.errors import BadRequest

SECRET = "FRACTUNE_SECRET"  # noqa: S105  - the variable's name
DEBUG = "FRACTUNE_DEBUG"


def wants_tracebacks() -> bool:
    """FRACTUNE_DEBUG=1: show tracebacks instead of one line."""
    return os.environ.get(DEBUG, "") not in {"", "0"}


def fleet_secret(secret_file: Path | None) -> bytes:
    """The fleet's secret, from the file or from FRACTUNE_SECRET. Raises BadRequest when there is none."""
    if secret_file is not None:
        try:
            text = secret_file.read_text(encoding="utf-8")
        except OSError as error:
            raise BadRequest(f"cannot read --secret-file {secret_file}: {error.strerror}") from error
    else:
        text = os.environ.get(SECRET, "")
    if not text.strip():
        source = str(secret_file) if secret_file else SECRET
        raise BadRequest(
            f"{source} holds no secret; give the server and every worker the same one, by --secret-file or {SECRET}"
        )
    return text.strip().encode()
