"""A model in parts on disk: cut at the refused nodes, and joined again to one bundle."""

import contextlib
import hashlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePath

from fractune.local.stack import own_env
from fractune_core.errors import BadModel, shortened
from fractune_core.files.bundles import Bundle
from fractune_core.files.compared import ONNX_RUNTIME, Runtime
from fractune_core.files.joined import join_stages
from fractune_core.files.new_bundle import NewBundle
from fractune_core.files.staged import Stages, Step, Tensor
from fractune_core.jobs import JobSpec
from fractune_core.model_inputs import constants_in
from fractune_core.operators import RefusedNode, refused_node
from fractune_core.shares import Share

_NEEDED = ("onnx", "onnxruntime")
_CHILD = "fractune.features.parts.cutting"
_CUT_TIMEOUT_S = 600.0
_MOST_CHARACTERS = 200
"""of what a process said last"""


@dataclass(frozen=True)
class Parts:
    """The files of a model in parts."""

    stages: Stages
    files: tuple[Path, ...]
    """of each step"""

    @property
    def own(self) -> list[Path]:
        """The files that are tuned."""
        return [file for file, step in zip(self.files, self.stages.steps, strict=True) if step.member is not None]

    @property
    def others(self) -> dict[str, Path]:
        """The files that ONNX Runtime runs, by their entries in the bundle."""
        pairs = zip(self.files, self.stages.steps, strict=True)
        return {step.part: file for file, step in pairs if step.member is None}


def part_name(model_name: str, number: int) -> str:
    """`encoder.part2.onnx`"""
    name = PurePath(model_name)
    return f"{name.stem}.part{number}{name.suffix}"


def is_part_of(name: str, model_name: str) -> bool:
    """Whether `part_name` makes `name` of `model_name`."""
    whole = PurePath(model_name)
    number = name.removeprefix(f"{whole.stem}.part").removesuffix(whole.suffix)
    return number.isdecimal() and name == part_name(model_name, int(number))


def can_cut() -> bool:
    """Whether what cuts a model, and runs its parts, is installed. Nothing is imported."""
    return all(importlib.util.find_spec(name) is not None for name in _NEEDED)


def cut_model(model: Path, shapes: Mapping[str, Sequence[int]], refused: Sequence[RefusedNode], folder: Path) -> Parts:
    """Cut the ONNX file, with inputs of these shapes, into files in the empty `folder`. Raises BadModel."""
    order = json.dumps({"model": str(model), "shapes": dict(shapes), "refused": list(map(asdict, refused))})
    command = [sys.executable, "-m", _CHILD, str(os.getpid()), order, str(folder)]
    try:
        ended = subprocess.run(
            command,
            env={**os.environ, **own_env()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_CUT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BadModel(f"{model.name}: cutting it took more than {_CUT_TIMEOUT_S:.0f} s") from error
    try:
        answer = json.loads(ended.stdout.splitlines()[-1])
    except (IndexError, ValueError) as error:
        raise BadModel(f"{model.name}: the process that cuts it {_end_text(ended)}") from error
    if "error" in answer:
        raise BadModel(answer["error"])
    stages = Stages.from_json(answer["stages"])
    if len(stages.parts) == len(stages.steps):
        raise BadModel(f"{model.name}: nothing that can be imported is worth a part of its own")
    files = []
    for place in range(len(stages.steps)):
        files.append(folder / part_name(model.name, place + 1))
        (folder / f"{place}.onnx").rename(files[-1])
    return Parts(stages, tuple(files))


def _end_text(ended: subprocess.CompletedProcess[bytes]) -> str:
    """How it ended, and its last words: C++ that aborts says why."""
    code = ended.returncode
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    lines = ended.stderr.decode(errors="replace").strip().splitlines()
    return f"{how} ({shortened(lines[-1], _MOST_CHARACTERS)})" if lines else how


def join_parts(model: Path, parts: Parts, bundles: Sequence[Path], new: NewBundle) -> None:
    """Write the bundle of the model; `bundles` are those of its own parts.

    Raises BadModel, BadBundle, BadRequest, StateUnusable.
    """
    from fractune_runtime.choosing import installed
    from fractune_runtime.sessions import settings_of

    with contextlib.ExitStack() as opened:
        read = [opened.enter_context(contextlib.closing(Bundle(path))) for path in bundles]
        steps = [step if step.member is None else _of_member(step, read[step.member]) for step in parts.stages.steps]
        with model.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        runtime = Runtime(installed(ONNX_RUNTIME), settings_of(ONNX_RUNTIME))
        others = {entry: path.read_bytes() for entry, path in parts.others.items()}
        with new.writing() as out:
            join_stages(
                out, read, replace(parts.stages, steps=steps), others, {"name": model.name, "sha256": digest}, runtime
            )
            out.flush()
            Bundle(Path(out.name)).close()  # reads its manifest: a bundle that nothing can load replaces none


def _of_member(step: Step, bundle: Bundle) -> Step:
    """The step with inputs and outputs in the order of its bundle, which may have dropped an input."""
    inputs, outputs = (
        [Tensor(each["name"], each["dtype"], list(each["shape"])) for each in bundle.manifest[name]]
        for name in ("inputs", "outputs")
    )
    held = {each.name: each for each in (*step.inputs, *step.outputs)}
    strangers = [each.name for each in (*inputs, *outputs) if held.get(each.name) != each]
    if strangers or {each.name for each in outputs} != {each.name for each in step.outputs}:
        name = (strangers or [step.outputs[0].name])[0]
        raise BadModel(f"the value '{name}' between two parts of the model has another type or shape when imported")
    return replace(step, inputs=inputs, outputs=outputs)


def may_cut(spec: JobSpec, error: BadModel) -> bool:
    """Whether the importer refused a node that ONNX Runtime may run as a part of the model.

    Raises BadModel that says so if ONNX Runtime is not installed here.
    """
    if not _has_parts(spec, error):
        return False
    if not can_cut():
        raise BadModel(f"{error}; or install 'fractune[onnxruntime]' here: then ONNX Runtime runs this node") from error
    return True


def with_remedy(spec: JobSpec, error: BadModel, remedy: str) -> BadModel:
    """The error with a `remedy` after it, if the model could be tuned in parts."""
    return BadModel(f"{error}; {remedy}") if _has_parts(spec, error) else error


def _has_parts(spec: JobSpec, error: BadModel) -> bool:
    on_cpu = all(Share.parse(share).device_kind == "cpu" for share in spec.shares)  # as ONNX Runtime's parts
    return on_cpu and refused_node(str(error)) is not None and not constants_in(spec.inputs)
