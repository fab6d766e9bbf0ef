"""`fractune fuse` for real: variants that are built alike become a file, others are refused by the first difference."""

from pathlib import Path

import onnx
import pytest

import fractune
from fractune_core.errors import BadModel
from fractune_core.files.fused import read_fused
from tests.support.processes.cli_process import error_line, events, run_fractune, write_model


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two variants in the current folder."""
    monkeypatch.chdir(tmp_path)
    return [write_model(tmp_path / f"{name}.onnx", seed=seed).name for seed, name in enumerate("ab")]


def test_variants_become_a_file(models: list[str]) -> None:
    ended = run_fractune("fuse", *models, "--slots", "3")
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0] == "slots:     2 of 3 filled: 0 a, 1 b, 2 empty; a run computes all 3"
    assert "to tune, each for all slots at once" in lines[1]
    found = read_fused(Path("a_x3.fused").read_bytes())
    assert found is not None
    assert found.slot_names == ["a", "b", None]
    assert found.payloads == tuple(Path(model).read_bytes() for model in models)
    assert lines[-1] == "next:      fractune tune a_x3.fused --shares cpu:1"
    (told,) = events(run_fractune("fuse", *models, "-o", "folder/both.fused", "--json"))
    assert told == {
        "path": str(Path("folder/both.fused").absolute()),
        "slots": ["a", "b"],
        "operators": told["operators"],
        "apart": [],
    }


def test_what_is_built_otherwise_is_refused_by_name_and_leaves_nothing(models: list[str], tmp_path: Path) -> None:
    write_model(tmp_path / "wide.onnx", channels=16)
    ended = run_fractune("fuse", *models, "wide.onnx")
    assert ended.returncode == 3
    assert error_line(ended) == (
        "fractune: 'wide' is not built as 'a' is: node with output 'c1' (Conv): weight 'w1' is float[16, 4, 3, 3], "
        "and not float[8, 4, 3, 3]; variants of one model differ in their weights alone"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.onnx", "b.onnx", "wide.onnx"]


def test_a_variant_that_cannot_be_read_is_named(models: list[str], tmp_path: Path) -> None:
    (tmp_path / "torn.onnx").write_bytes((tmp_path / "a.onnx").read_bytes()[:-100])
    ended = run_fractune("fuse", *models, "torn.onnx")
    assert ended.returncode == 3
    assert "torn.onnx: is a damaged or truncated ONNX file" in error_line(ended)


@pytest.mark.long
def test_models_in_memory_and_files_of_one_name(models: list[str], tmp_path: Path) -> None:
    loaded = [onnx.load(model) for model in models]
    found = fractune.fuse(loaded, out=tmp_path / "memory.fused")
    assert found.slots == ("model-0", "model-1")
    assert found.operators > 0
    assert not found.apart
    other = tmp_path / "other"
    other.mkdir()
    write_model(other / "a.onnx", seed=7)
    assert fractune.fuse([models[0], other / "a.onnx"]).slots == ("a-0", "a-1")


@pytest.mark.long
def test_a_fused_model_is_no_variant(models: list[str]) -> None:
    fractune.fuse(models, out="both.fused")
    with pytest.raises(BadModel, match="variant 'both': is a fused model; name one of its variants' own files"):
        fractune.fuse([models[0], "both.fused"])
