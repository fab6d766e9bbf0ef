"""Lines of the audit for an operator's commands, which work on the database without the server.

The server notes in its state folder where its audit is.
"""

import contextlib
import json
import os
import pwd
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

_NOTE = "audit"


def note_audit(state_dir: Path, file: Path | None) -> None:
    """Let commands on this state folder write to the file; None = to none any more."""
    note = state_dir / _NOTE
    if file is None:
        note.unlink(missing_ok=True)
    else:
        note.write_bytes(os.fsencode(file.absolute()))


@contextlib.contextmanager
def audited(state_dir: Path, command: str, tenant: str, about: str) -> Iterator[dict[str, str]]:
    """Write a line at the end of the block, which may replace `object`. A line that cannot be written fails no command:
    a token must be revocable.
    """
    named, began, result = {"object": about}, time.time(), "Failed"
    try:
        yield named
        result = "OK"
    except Exception as error:
        result = type(error).__name__
        raise
    finally:
        _append(
            state_dir,
            {
                "time": datetime.fromtimestamp(began, UTC).isoformat(timespec="milliseconds"),
                "call": f"admin/{command}",
                "token": "",
                "token_id": "",
                "tenant": tenant,
                "scope": "",
                "address": f"user:{_user()}",
                "object": named["object"],
                "result": result,
                "took_s": round(time.time() - began, 3),
            },
        )


def _append(state_dir: Path, line: dict[str, object]) -> None:
    """In one call, which other processes' lines cannot part."""
    named = note = state_dir / _NOTE
    try:
        if not note.exists():
            return
        named = Path(os.fsdecode(note.read_bytes()))
        descriptor = os.open(named, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with open(descriptor, "ab", buffering=0) as log:  # noqa: PTH123  a descriptor
            log.write(json.dumps(line).encode() + b"\n")
    except OSError as error:
        sys.stderr.write(f"fractune: the audit {named} lacks this command ({error.strerror})\n")


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's
        return str(os.getuid())
