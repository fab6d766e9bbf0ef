from __future__ import annotations

import pytest

from fractune.features.compete.compete import check_runtimes
from fractune_core.errors import BadRequest


def test_an_empty_list_names_no_runtime() -> None:
    with pytest.raises(BadRequest, match="no runtime is named; name one of onnxruntime, openvino"):
        check_runtimes([])
