"""Folders of exported models: which graphs, which sizes, and hostile ones in one line."""

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import fractune
from fractune.cli import main
from fractune.errors import BadModel, BadRequest
from fractune.features.tune.job_file import expanded
from fractune.models.model_folder import read_folder
from fractune_core.model_inputs import Sizes
from tests.support.decoders import write_plain_decoder
from tests.support.processes.scripted_server import ScriptedServer
from tests.support.translators import ENCODER as ENCODER_FILE, MERGED as MERGED_FILE, write_translator
from tests.unit.client.cli.commands.models.test_inspect import saved

pytestmark = pytest.mark.usefixtures("examined_here")

ENCODER: dict[str, list[int | str | None]] = {"input_ids": ["batch_size", "encoder_sequence_length"]}
MEL: dict[str, list[int | str | None]] = {"input_features": ["batch_size", "feature_size", "encoder_sequence_length"]}
DECODER: dict[str, list[int | str | None]] = {
    "input_ids": ["batch_size", "decoder_sequence_length"],
    "encoder_hidden_states": ["batch_size", "encoder_sequence_length / 2", 8],
    "past_key_values.0.key": ["batch_size", 2, "past_decoder_sequence_length", 4],
    "use_cache_branch": [1],
}


def folder_of(
    folder: Path, config: Any, graphs: Mapping[str, Mapping[str, list[int | str | None]]], name: str = "config.json"
) -> Path:
    for file, inputs in graphs.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        saved(folder / file, dict(inputs))
    (folder / name).write_text(config if isinstance(config, str) else json.dumps(config))
    return folder


def sizes(folder: Path) -> dict[str, dict[str, tuple[int, ...]]]:
    return {each.path.name: dict(each.sizes) for each in read_folder(folder).graphs}


def test_a_translator_by_optimum(tmp_path: Path) -> None:
    graphs = {"encoder_model.onnx": ENCODER, "decoder_model_merged.onnx": DECODER, "decoder_model.onnx": DECODER}
    found = read_folder(folder_of(tmp_path, {"max_position_embeddings": 200}, graphs))
    assert sizes(tmp_path) == {
        "encoder_model.onnx": {"batch_size": (1,), "encoder_sequence_length": (64, 200)},
        "decoder_model_merged.onnx": {
            "batch_size": (1,),
            "decoder_sequence_length": (1,),
            "past_decoder_sequence_length": (0, 199),
        },
    }
    assert found.left_out == ("decoder_model.onnx",)


def test_a_speech_recogniser_has_the_steps_of_its_configuration(tmp_path: Path) -> None:
    config = {"max_source_positions": 1500, "num_mel_bins": 80, "max_target_positions": 448}
    folder_of(tmp_path, config, {"onnx/encoder_model.onnx": MEL, "onnx/decoder_model_merged.onnx": DECODER})
    assert sizes(tmp_path) == {
        "encoder_model.onnx": {"batch_size": (1,), "feature_size": (80,), "encoder_sequence_length": (3000,)},
        "decoder_model_merged.onnx": {
            "batch_size": (1,),
            "decoder_sequence_length": (1,),
            "encoder_sequence_length / 2": (1500,),
            "past_decoder_sequence_length": (0, 256, 447),
        },
    }


@pytest.mark.usefixtures("apart")
def test_a_language_model_of_genai_is_tuned_by_the_name_of_its_folder(
    tmp_path: Path, server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "phi"
    folder.mkdir()
    write_plain_decoder(folder / "model.onnx", layers=1, total="total_sequence_length", weights_beside=True)
    config = {"model": {"context_length": 400, "decoder": {"filename": "model.onnx"}}}
    folder_of(folder, config, {"other.onnx": ENCODER}, "genai_config.json")
    assert sizes(folder) == {"model.onnx": {"b": (1,), "s": (1, 64), "past": (256, 399)}}
    assert main(["inspect", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "graphs:    model.onnx; sizes from genai_config.json" in printed
    assert "463: s + past" in printed
    *_, one, whole = printed.splitlines()
    assert one == f"fractune tune {folder}/model.onnx --size b=1 --size s=1,64 --size past=256,399 --shares cpu:1"
    assert whole == f"fractune tune {folder} --shares cpu:1"
    options = ["--shares", "cpu:1,cpu:2", "--detach", "--server", server.address]
    assert main(["tune", str(folder), *options, "--size", "past=8,16", "--greedy"]) == 0
    assert all(b"next_token" in each for each in server.models.values())
    masks = [list(spec.inputs["attention_mask"].dims) for spec in server.specs]
    assert sorted(masks) == [[1, 9], [1, 17], [1, 72], [1, 80]]


def test_a_folder_without_a_configuration_has_sizes_by_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (write_translator(tmp_path / "t") / "config.json").unlink()
    assert main(["inspect", str(tmp_path / "t")]) == 0
    printed = capsys.readouterr().out
    assert "sizes from names alone, without a configuration" in printed
    assert "--size past_decoder_sequence_length=0,256,511" in printed


def test_sizes_given_to_inspect_are_those_of_a_folder_and_of_its_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "t"
    folder.mkdir()
    saved(folder / "a.onnx", {"x": ["foo", "bar"]})
    saved(folder / "b.onnx", {"z": ["foo", 4]})
    with contextlib.chdir(tmp_path):
        assert main(["inspect", "t", "--size", "bar=7"]) == 0
        printed = capsys.readouterr().out.splitlines()
        assert "fractune tune t/a.onnx --size bar=7 --size foo=1 --shares cpu:1" in printed
        assert printed[-1] == "fractune tune t --size bar=7 --size foo=1 --shares cpu:1"
        assert {"a.onnx:", "b.onnx:"} <= set(printed)
        for words, says in (
            (["--size", "n=1"], "no graph has an open axis"),
            (["--input", "x=1,7"], "is for one graph"),
        ):
            assert main(["inspect", "t", *words]) == 2
            assert says in capsys.readouterr().err


def test_the_command_for_a_folder_gives_all_sizes_that_tune_needs(
    tmp_path: Path, server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also those of names that say nothing, and of axes without a name."""
    folder = tmp_path / "-t"
    folder.mkdir()
    saved(folder / "a.onnx", {"x": ["foo", 4], "y": ["foo", "bar"]})
    saved(folder / "b.onnx", {"z": ["foo", None]})
    with contextlib.chdir(tmp_path):
        assert main(["inspect", "--", "-t"]) == 0
        command = capsys.readouterr().out.splitlines()[-1]
        assert command == "fractune tune ./-t --size foo=1 --size bar=128 --size z:1=128 --shares cpu:1"
        assert main([*command.split()[1:], "--detach", "--server", server.address]) == 0
    shapes = [{name: list(each.dims) for name, each in spec.inputs.items()} for spec in server.specs]
    assert shapes == [{"x": [1, 4], "y": [1, 128]}, {"z": [1, 128]}]
    saved(folder / "b.onnx", {"z": [2, "foo"]})
    assert main(["inspect", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("the graphs suggest different sizes for foo; tune each")


def test_a_folder_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, calls = write_translator(tmp_path / "t"), dict[str, Any]()
    found = fractune.inspect_folder(folder)
    assert list(found) == [MERGED_FILE, ENCODER_FILE]
    assert {each.name: each.suggested for each in found[ENCODER_FILE].sizes}["encoder_sequence_length"] == 256

    def noted(model: Path, shares: str, **options: Any) -> str:
        calls[model.name] = (shares, options)
        return model.name

    monkeypatch.setattr("fractune.features.tune.tune.tune", noted)
    sizes: Sizes = {"past_decoder_sequence_length": [0, 8], "encoder_sequence_length": 5}
    results: Mapping[str, Any] = fractune.tune_folder(folder, "cpu:1", sizes=sizes, out_dir=tmp_path, trials=0)
    assert results == {MERGED_FILE: MERGED_FILE, ENCODER_FILE: ENCODER_FILE}
    own = {"batch_size": (1,), "encoder_sequence_length": 5}
    shares, options = calls[ENCODER_FILE]
    assert (shares, options["sizes"], options["out"]) == ("cpu:1", own, tmp_path / "encoder_model.fractune")
    assert options["trials"] == 0
    assert calls[MERGED_FILE][1]["sizes"]["past_decoder_sequence_length"] == [0, 8]
    with pytest.raises(BadRequest, match="t: no graph has an open axis named 'width'; inspect shows the names"):
        fractune.tune_folder(folder, "cpu:1", sizes={"width": 1})


def test_sizes_of_the_command_line_go_to_the_graphs_that_have_them(tmp_path: Path) -> None:
    folder = write_translator(tmp_path / "t")
    words = ["--size", "past_decoder_sequence_length=0,8", "--size=encoder_sequence_length=5", "--quiet"]
    lines = {Path(each.args[1]).name: each.args for each in expanded(["tune", str(folder), *words])}
    assert lines[ENCODER_FILE][2:] == ["--size", "batch_size=1", "--size", "encoder_sequence_length=5", "--quiet"]
    assert "past_decoder_sequence_length=0,8" in lines[MERGED_FILE]
    for words, says in ((["--size", "n=1"], "no graph has an open axis named 'n'"), (["--size"], "named ''")):
        with pytest.raises(BadRequest, match=says):
            expanded(["tune", str(folder), *words])


def _link(folder: Path) -> None:
    (folder / "m.onnx").rename(folder.parent / "out.onnx")
    (folder / "m.onnx").symlink_to(folder.parent / "out.onnx")


def _link_of_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("/etc/passwd")


def _pipe(folder: Path) -> None:
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")


HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a graph behind a link": (_link, "a graph lies in 'm.onnx' beside the model, which is a link"),
    "a configuration behind a link": (
        _link_of_config,
        "the configuration lies in 'config.json' beside the model, which",
    ),
    "a pipe": (_pipe, "which is not a file"),
    "a huge configuration": (
        lambda folder: (folder / "config.json").write_text('"' + "x" * (2 << 20) + '"'),
        "more than 1 MiB for a configuration",
    ),
    "a torn configuration": (lambda folder: (folder / "config.json").write_text('{"a": '), "is not JSON"),
    "a deep configuration": (lambda folder: (folder / "config.json").write_text("[" * 100_000), "is not JSON"),
    "a list": (lambda folder: (folder / "config.json").write_text("[]"), "is not an object of JSON"),
    "a torn graph": (lambda folder: (folder / "m.onnx").write_bytes(b"\x08\x09\x3a\xff\xff"), "damaged or truncated"),
    "no graph": (lambda folder: (folder / "m.onnx").unlink(), "this folder has no graph"),
    "a place outside": (
        lambda folder: (folder / "genai_config.json").write_text('{"model": {"filename": "../out.onnx"}}'),
        "a graph lies in '../out.onnx'; its file must be in the model's folder",
    ),
    "a missing graph": (
        lambda folder: (folder / "genai_config.json").write_text('{"model": {"filename": "n.onnx"}}'),
        "and that file is missing",
    ),
    "many graphs": (
        lambda folder: (folder / "genai_config.json").write_text(
            json.dumps({"model": [{"filename": f"{at}.onnx"} for at in range(99)]})
        ),
        "99 graphs, and 16 is the limit",
    ),
    "many decoders": (
        lambda folder: (folder / "genai_config.json").write_text(
            json.dumps({"model": [{"filename": f"{at}/decoder_model.onnx"} for at in range(20_000)]})
        ),
        "20000 graphs, and 16 is the limit",
    ),
    "half a character in a name": (
        lambda folder: (folder / "genai_config.json").write_text('{"model": {"filename": "\\ud800.onnx"}}'),
        "this folder has no graph",
    ),
}


@pytest.mark.parametrize("spoil", HOSTILE)
def test_a_hostile_folder_is_one_line(tmp_path: Path, spoil: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "f"
    folder_of(folder, {}, {"m.onnx": ENCODER})
    work, says = HOSTILE[spoil]
    work(folder)
    for command in (["inspect", str(folder)], ["tune", str(folder), "--shares", "cpu:1"]):
        assert main(command) == BadModel.exit_code
        assert says in capsys.readouterr().err.strip().splitlines()[-1]


def test_numbers_out_of_bounds_are_not_taken_from_a_configuration(tmp_path: Path) -> None:
    config = {"max_position_embeddings": 10**30, "n_positions": -4, "max_length": True, "text": {"context_length": 8}}
    folder_of(tmp_path, config, {"m.onnx": {"x": ["batch", "sequence_length"]}})
    assert sizes(tmp_path) == {"m.onnx": {"batch": (1,), "sequence_length": (8,)}}
