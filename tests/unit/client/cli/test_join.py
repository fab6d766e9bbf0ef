from __future__ import annotations

import json
from pathlib import Path

import pytest

from fractune.cli import main
from fractune.comparing import padded_outputs
from tests.support.real_bundle import ENCODER, ENCODER_SHAPES, MEAN_OF_ALL


def bundles(encoders: Path, model: str) -> list[str]:
    return [str(encoders / f"{model}-{batch}x{length}.fractune") for batch, length in ENCODER_SHAPES[model]]


def test_a_joined_bundle_is_described(encoders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.fractune"
    assert main(["join", *bundles(encoders, ENCODER), "-o", str(out), "--pad", "ids=1"]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.endswith("out.fractune")
    assert lines[:3] == [
        "buckets:   ids 1x8, mask 1x8",
        "           ids 1x16, mask 1x16",
        "           ids 2x16, mask 2x16",
    ]
    assert lines[3].startswith("padding:   proved: inputs of batch 1 length 8, ")
    assert main(["join", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["bundle"], said["padding"]["proved"], len(said["buckets"])) == (str(out), True, 3)
    assert main(["bundle", "--verify", str(out)]) == 0
    assert main(["run", str(out), "--repeats", "3"]) == 0


def test_what_prevents_padding_is_told(
    encoders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.fractune"
    assert main(["join", *bundles(encoders, MEAN_OF_ALL), "-o", str(out)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("padding:   none, only these shapes run: the output 'mean' of inputs of length 8 differs by")
    monkeypatch.setattr(padded_outputs, "_KINDS", ("positive",))  # others differ by more than any accepted part
    assert main(["join", str(out), "--padding-error", "90%"]) == 0
    assert "proved: inputs of" in capsys.readouterr().out


def test_shapes_of_the_bundle_there_are_kept(
    encoders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.fractune"
    files = bundles(encoders, ENCODER)
    assert main(["join", *files, "-o", str(out)]) == 0
    whole = out.read_bytes()
    capsys.readouterr()
    assert main(["join", *files[1:], "-o", str(out)]) == 2
    assert (
        "out.fractune is a bundle, and the new one would be without the shape ids 1x8, mask 1x8"
        in capsys.readouterr().err
    )
    assert out.read_bytes() == whole
    assert main(["join", *files[1:], "-o", str(out), "--force"]) == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--pad", "ids"], "--pad 'ids': write NAME=NUMBER, such as input_ids=1"),
        (["--pad", "ids=nan"], "--pad 'ids=nan': write NAME=NUMBER"),
        (["--pad", "ids=1", "--pad", "ids=2"], "--pad 'ids=2': 'ids' has a number already; give one"),
        (["--padding-error", "x"], "--padding-error 'x': write a percentage such as 10%"),
        ([], "--out is missing; name the file of the joined bundle"),
    ],
)
def test_wrong_options_are_told(
    encoders: Path, capsys: pytest.CaptureFixture[str], options: list[str], says: str
) -> None:
    assert main(["join", *bundles(encoders, ENCODER), *options]) == 2
    assert says in capsys.readouterr().err
