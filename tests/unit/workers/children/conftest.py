"""TVM as the children have it, whichever test comes first: without the intrinsics of GPUs, a minute to load."""

import inspect
import sys
from collections.abc import Iterator
from types import FrameType

import pytest

from fractune_workers.children.tvm_api.intrinsics import keep_out_gpu_intrinsics
from fractune_workers.children.tvm_api.keep_out import keep_shape_inference_out
from tests.support.unoptimized import without_optimization

_MOST_FRAMES = 8


def _nearest_frames(context: int = 1) -> list[inspect.FrameInfo]:
    """TVM's parser of Python looks at the frames around a function. Those of pytest, which it does not need, take
    20 ms to list.
    """
    found = list[inspect.FrameInfo]()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < _MOST_FRAMES:
        found.append(inspect.FrameInfo(frame, *inspect.getframeinfo(frame, context)))
        frame = frame.f_back
    return found


keep_shape_inference_out()
pytest.MonkeyPatch().setattr(inspect, "stack", _nearest_frames)


@pytest.fixture(scope="session", autouse=True)
def _no_gpu_intrinsics() -> None:
    keep_out_gpu_intrinsics()


@pytest.fixture(scope="module", autouse=True)
def _no_optimization() -> Iterator[None]:
    """LLVM does not optimize the kernels that these tests make and run once."""
    with without_optimization():
        yield
