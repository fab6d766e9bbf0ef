"""The sandboxed children that read a model, and that check a bundle against its model: strangers make models."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fractune_core.errors import OutputsDiffer
from fractune_core.files.bundles import Bundle
from fractune_core.files.compared import CHECKED, Checked
from fractune_core.files.manifests import checked_complaint
from fractune_core.host.machine import model_memory_bytes
from fractune_core.host.sandbox import Sandbox
from fractune_workers.child import Child
from fractune_workers.child.errors import CALL_ERRORS, retry_if_killed
from fractune_workers.sandboxes import PACKAGES, absolute

CHECKING_CHILD = "fractune_workers.children.checking.child"
_TIMEOUT_S = 1800.0
"""The child ends its comparisons within 60 s of CPU time, and the search for a wrong node within 150 s more, but for
one run. It may share its cores"""


def check_bundle(
    child: Child,
    bundle: Path,
    model: Path,
    inputs: Mapping[str, Sequence[int]],
    given: Path | None = None,
    member: int | None = None,
) -> Checked:
    """What the child compared of the bundle, or of this member of it. `inputs` are those of a job; `given`: a file of
    arrays.

    A child that ends or takes too long has compared nothing. Raises OutputsDiffer if the bundle is wrong, BadRequest
    for arrays that do not fit the model, ChildUnwanted.
    """
    payload = {"path": str(model), "inputs": dict(inputs), "bundle": str(bundle), "given": str(given or "")}
    try:
        answer = retry_if_killed(lambda: child.call("check", _TIMEOUT_S, **payload, member=member))
    except CALL_ERRORS as error:
        return Checked(reason=f"the process that compares them failed: {error}")
    return _checked(answer)


def _checked(answer: Any) -> Checked:
    """The child may be hostile. Raises OutputsDiffer."""
    if isinstance(answer, dict) and isinstance(answer.get("differs"), str):
        raise OutputsDiffer(answer["differs"])
    found = {CHECKED: answer.get("checked") if isinstance(answer, dict) else None}
    if wrong := checked_complaint(found):
        return Checked(reason=f"the process that compares them gave no result: {wrong}")
    return Checked.from_json(found[CHECKED])


def write_checked(bundle: Path, to: Path, checked: Checked) -> None:
    """Copy the bundle to a file that says what was compared. Raises BadBundle, OSError."""
    with contextlib.closing(Bundle(bundle)) as opened, to.open("wb") as file:
        opened.copy_to(file, checked=checked.to_json())


_ENVIRONMENT = {
    # Each thread addresses memory, and a fork takes only the calling one along.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    # onnxslim loads ONNX Runtime where it is installed, which would write a name for this machine, and report.
    "ORT_DISABLE_TELEMETRY": "1",
}


def reader_child(
    module: str,
    *,
    model: Path | None = None,
    own_dir: Path | None = None,
    also: Sequence[Path] = (),
    hidden: Sequence[Path] = (),
    memory_bytes: int | None = None,
    env: Mapping[str, str] | None = None,
    recycle_calls: int = 0,
) -> Child:
    """A child that can read `model`, a file or a folder of them, what is `also` named, and nothing else of its user's.
    It writes in `own_dir` alone, which is emptied whenever it starts. Readers of its files there must not trust them.
    `hidden`: files that it must fail to read, which it tries.
    """
    writable = [str(own_dir)] if own_dir else []
    sandbox = Sandbox(
        model_memory_bytes(memory_bytes),
        readable=(*PACKAGES, *absolute([*([model] if model else []), *also])),
        writable=tuple(writable),
        hidden=absolute(hidden),
    )
    temporary = {"TMPDIR": writable[0]} if writable else {}
    return Child(module, env={**_ENVIRONMENT, **temporary, **(env or {})}, recycle_calls=recycle_calls, sandbox=sandbox)
