"""Variants of one model in one file, for tuning and serving as one model."""

import contextlib
import os
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fractune.local.programs import require
from fractune.local.stack import own_env
from fractune.models.open_sizes import sized_model
from fractune.models.source import ModelSource
from fractune.text.output_files import check_writable
from fractune_core.errors import BadModel, StateUnusable, one_line
from fractune_core.files.fused import SUFFIX, check_slots, slot_names, write_fused
from fractune_core.model_inputs import Inputs, Sizes, as_shapes
from fractune_core.names import check_file_name


def slots_text(slots: Sequence[str | None]) -> str:
    """`2 of 3 filled: 0 a, 1 b, 2 empty; a run computes all 3`"""
    filled = sum(name is not None for name in slots)
    listed = ", ".join(f"{slot} {'empty' if name is None else name}" for slot, name in enumerate(slots))
    computes = "" if filled == len(slots) else f"; a run computes all {len(slots)}"
    return f"{filled} of {len(slots)} filled: {listed}{computes}"


def apart_text(apart: Sequence[str]) -> str:
    """The operators, one at least, that are called once for each slot."""
    called = "is called" if len(apart) == 1 else "are called"
    return f"{', '.join(map(one_line, apart))} {called} once for each slot"


_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class FusedModel:
    """A fused model on disk; it can be passed wherever a model is expected."""

    path: Path
    slots: tuple[str | None, ...]
    """the name of each slot's variant, None for an empty slot"""
    operators: int
    """number of distinct operators to tune"""
    apart: tuple[str, ...]
    """operators without an axis of slots, which are called once for each slot"""

    def __fspath__(self) -> str:
        return os.fspath(self.path)


def fuse(
    models: Sequence[ModelSource],
    *,
    slots: int | None = None,
    inputs: Inputs | None = None,
    sizes: Sizes | None = None,
    run_script: bool = False,
    out: str | os.PathLike[str] | None = None,
) -> FusedModel:
    """Make one model of `models`, which have the same structure and different weights; `fractune.tune` tunes it.

    The n-th model gets the n-th slot; `slots` beyond the last model stay empty (default: none). Fusing again with the
    same number of slots fills them later, without new tuning. `inputs` gives shapes to inputs that the models leave
    open. With `run_script` Python files (TVMScript) among the models run here. The file is `out`, by default `<first
    model>_x<slots>.fused` in the current folder.

    Raises BadRequest for fewer than two models, for wrong slots and for invalid names of variants. Raises BadModel if
    the models have different structures, StateUnusable, and FractuneError if TVM is not installed.
    """
    count = check_slots(len(models), slots)
    with contextlib.ExitStack() as held:
        opened = [
            held.enter_context(sized_model(model, run_script=run_script, inputs=inputs, sizes=sizes))
            for model in models
        ]
        paths, fixed = [path for path, _ in opened], as_shapes(opened[0][1] or {})
        names = _names(paths)
        for name in names:
            check_file_name(name, "a variant's name")
        written = (Path(f"{paths[0].stem}_x{count}{SUFFIX}") if out is None else Path(out)).absolute()
        check_writable("--out", written)
        try:
            written.parent.mkdir(parents=True, exist_ok=True)
            # It has the final name, which errors quote, and a place from which one step can move it.
            draft = Path(held.enter_context(tempfile.TemporaryDirectory(dir=written.parent, prefix=".")), written.name)
            with draft.open("wb") as file:
                write_fused(file, names, paths, count)
            described = describe_fused(draft, fixed, own_env())
            draft.replace(written)
        except OSError as error:
            raise StateUnusable(f"cannot write {written}: {error.strerror}") from error
    return FusedModel(written, tuple(slot_names(names, count)), described["operators"], tuple(described["apart"]))


def _names(paths: Sequence[Path]) -> list[str]:
    """Names of the variants: their files without suffix, with the slot's number where files have the same name."""
    count = Counter(path.stem for path in paths)
    return [path.stem if count[path.stem] == 1 else f"{path.stem}-{slot}" for slot, path in enumerate(paths)]


def describe_fused(path: Path, inputs: Mapping[str, list[int]], env: Mapping[str, str]) -> dict[str, Any]:
    """The description by the workers' compiler, in a child process.

    `operators` is the number of distinct operators, and `apart` has the names of those called once for each slot. `env`
    has variables of the child. Raises BadModel for different structures, and for models that cannot be fused.
    """
    require("local", "tvm", "onnx")
    from fractune_workers.child.errors import CallFailed, ChildDied, ChildTimeout
    from fractune_workers.reader import reader_child

    child = reader_child("fractune_workers.children.compiling.child", model=path, env=env)
    try:
        answer: dict[str, Any] = child.call("describe_fused", _TIMEOUT_S, path=str(path), inputs=dict(inputs))
    except (CallFailed, ChildDied, ChildTimeout) as error:
        raise BadModel(f"{path.name} could not be read: {error}") from error
    finally:
        child.stop()
    return answer
