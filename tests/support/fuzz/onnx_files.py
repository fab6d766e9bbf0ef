"""ONNX files for the child that reads models: in its sandbox and with a limit on memory, as a worker calls it."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import onnx

from benchmarks.support.node_cases import node_cases
from fractune_core.errors import BadModel
from fractune_workers.child import Child
from fractune_workers.reader import reader_child
from tests.support.fuzz.mutations import Mutator
from tests.support.fuzz.onnx_edits import edited
from tests.support.fuzz.target import Target

_CHILD = "fractune_workers.children.compiling.child"
_TARGET = "llvm -mcpu=x86-64-v3"
_MEMORY_BYTES = 3 << 30
_CALL_TIMEOUT_S = 60.0
_RECYCLE_CALLS = 500
_SMALL_NETWORKS = ("squeezenet", "shufflenet")
"""of the package's networks: the weights of the others take gigabytes"""
_DATA = Path(onnx.__file__).parent / "backend/test/data"
_VARIANT = {"name": "untuned", "traces": {}}
_OTHERS_WORDS = ("<class '", "object has no", "Traceback", "T.", "R.", "Check failed", "InternalError", "tvm_ffi")
"""What a line does not have that was written for users"""


@cache
def exported() -> Sequence[onnx.ModelProto]:
    """Small models as PyTorch and Caffe2 exported them, and small networks, all of the package onnx."""
    paths = sorted(_DATA.glob("*/*/model.onnx"))
    return [onnx.load(path) for path in [*paths, *(_DATA / f"light/light_{name}.onnx" for name in _SMALL_NETWORKS)]]


@cache
def made() -> Sequence[onnx.ModelProto]:
    """A model for each of ONNX's own tests of its operators."""
    return [case.model for case in node_cases().values()]


class _Reader:
    """The child, and the folders of a worker around it."""

    def __init__(self) -> None:
        self._child: Child | None = None
        self._models, self._own = Path(), Path()
        self._number = 0

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            self._models, self._own = Path(folder) / "models", Path(folder) / "child"
            self._models.mkdir()
            self._own.mkdir()
            self._child = reader_child(
                _CHILD,
                model=self._models,
                own_dir=self._own,
                memory_bytes=_MEMORY_BYTES,
                recycle_calls=_RECYCLE_CALLS,
            )
            try:
                yield
            finally:
                self._child.kill()

    def take(self, data: bytes) -> None:
        """Raises BadModel for a model that is refused, and another error for one that costs the child its life."""
        assert self._child is not None
        self._number += 1  # a path stands for one content
        path = self._models / f"{self._number}.onnx"
        path.write_bytes(data)
        given = {"path": str(path), "inputs": {}, "target": _TARGET}
        try:
            self._child.call("ingest", _CALL_TIMEOUT_S, **given, isa="")
            out = str(self._own / "compiled.fractune")
            bundle = {"variants": [_VARIANT], "manifest": _manifest(), "records": [], "out": out}
            self._child.call("compile_bundle", _CALL_TIMEOUT_S, **given, **bundle)
        except BadModel as error:
            _check_words(str(error))
            raise
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error}") from error
        finally:
            path.unlink()


def _check_words(line: str) -> None:
    found = [words for words in _OTHERS_WORDS if words in line]
    assert not found, f"a line with {found}: {line}"


@cache
def _manifest() -> dict[str, object]:
    return {"model": {"name": "m.onnx", "sha256": "0" * 64}, "device": {}, "shares": {}}


def _target(name: str, models: Callable[[], Sequence[onnx.ModelProto]]) -> Target:
    reader = _Reader()

    def make(mutator: Mutator) -> bytes:
        return edited(mutator.random.choice(models()), mutator)

    return Target(name, make, reader.take, reader.opened, deadline_s=3 * _CALL_TIMEOUT_S)


TARGETS = (_target("exported ONNX models", exported), _target("ONNX operators", made))
