"""Where the bundle of a model goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fractune.text.output_files import bundle_file, named_bundle_file
from fractune_core.errors import BadRequest


@pytest.mark.parametrize(
    ("out", "written"),
    [("served", "served/net.fractune"), ("", "net.fractune"), ("served/n.fractune", "served/n.fractune")],
)
def test_out_is_a_file_by_its_ending_or_a_folder(out: str, written: str) -> None:
    assert bundle_file(out, "net.onnx") == Path(written).absolute()


@pytest.mark.parametrize("place", [bundle_file, named_bundle_file])
@pytest.mark.parametrize("out", ["x.onnx", "x.pt2", "a/net.json", "x.fused"])
def test_the_name_of_a_model_is_neither_overwritten_nor_made_a_folder(
    place: Callable[[Path, str], Path], out: str, tmp_path: Path
) -> None:
    with pytest.raises(BadRequest, match="this is the name of a model"):
        place(tmp_path / out, "net.onnx")
    (tmp_path / out).mkdir(parents=True)
    assert place(tmp_path / out, "net.onnx") == tmp_path / out / "net.fractune"


def test_a_bundle_goes_to_any_file_or_into_a_folder(tmp_path: Path) -> None:
    assert named_bundle_file(tmp_path / "served.bin", "net.onnx") == tmp_path / "served.bin"
    assert named_bundle_file(tmp_path, "net.onnx") == tmp_path / "net.fractune"
    assert named_bundle_file(None, "net.onnx") == Path("net.fractune").absolute()
