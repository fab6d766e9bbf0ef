"""Where the bundle of a model goes: a file, whatever command names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fractune.text.output_files import new_bundle
from fractune_core.errors import BadRequest


@pytest.mark.parametrize(("out", "written"), [(None, "net.fractune"), ("served/n.fractune", "served/n.fractune")])
def test_out_is_a_file(out: str | None, written: str) -> None:
    assert new_bundle(out, "net.onnx", force=False).path == Path(written).absolute()


@pytest.mark.parametrize("out", ["x.onnx", "x.pt2", "a/net.json", "x.fused", "served.bin", "", ".", "folder"])
def test_another_ending_is_refused_with_a_name_to_write(out: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(
        BadRequest, match=r"^--out .*: this is not the name of a bundle; write a file such as .*net\.fractune$"
    ):
        new_bundle(tmp_path / out, "net.onnx", force=False)
