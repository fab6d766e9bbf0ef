"""Where the bundle of a model goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fractune.sessions.requests import bundle_file


@pytest.mark.parametrize(
    ("out", "written"),
    [("served", "served/net.fractune"), ("", "net.fractune"), ("served/n.fractune", "served/n.fractune")],
)
def test_out_is_a_file_by_its_ending_or_a_folder(out: str, written: str) -> None:
    assert bundle_file(out, "net.onnx") == Path(written).absolute()
