"""TVM as the children have it, whichever test comes first: without the intrinsics of GPUs, a minute to load."""

from __future__ import annotations

import pytest

from fractune_workers.children.tvm_api.intrinsics import keep_out_gpu_intrinsics


@pytest.fixture(scope="session", autouse=True)
def _no_gpu_intrinsics() -> None:
    keep_out_gpu_intrinsics()
