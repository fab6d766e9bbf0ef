"""`fractune bundle`: signed, nothing written by a key that is none, and every byte of a file checked."""

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

import fractune
from fractune.cli import main
from fractune.features.fuse import apart_text, slots_text
from fractune_core.errors import BadBundle, BadRequest
from fractune_core.files.bundles import Bundle
from fractune_core.files.fused import write_fused
from tests.support.client_samples import bundle_at, bundle_bytes
from tests.support.processes.cli_process import only_line, write_model
from tests.support.processes.scripted_server import ScriptedServer


def test_a_bundle_is_signed_and_a_key_that_is_none_is_told_before_anything_is_written(
    server: ScriptedServer, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, key = tmp_path / "signed.fractune", tmp_path / "key.pem"
    at = ["--server", server.address, "--out", str(out), "--sign", str(key)]
    for of in (["j1"], [str(model), "--shares", "cpu:1"]):
        assert main(["bundle", *of, *at]) == 2
        assert "key.pem: cannot be read" in only_line(capsys.readouterr().err)
        key.write_text("no key")
        assert main(["bundle", *of, *at]) == 2
        assert "not a valid private key" in only_line(capsys.readouterr().err)
        key.unlink()
    assert server.specs == []
    assert not out.exists()
    pem = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    key.write_bytes(ed25519.Ed25519PrivateKey.generate().private_bytes(*pem))
    assert main(["bundle", "j1", *at]) == 0
    assert Bundle(out).signature is not None


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "m.fractune"
    path.write_bytes(bundle_bytes())
    return path


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    """PEM files with a private key and its public half."""
    key = ed25519.Ed25519PrivateKey.generate()
    plain = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, *plain))
    info = serialization.PublicFormat.SubjectPublicKeyInfo
    public.write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, info))
    return private, public


def test_a_whole_file_is_verified_with_or_without_its_signature(
    path: Path, keys: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    private, public = keys
    assert main(["bundle", "--verify", str(path)]) == 0
    assert capsys.readouterr().out == f"verified:  every byte of {path} (not signed)\n"
    assert main(["bundle", str(path), "--verify", "--public-key", str(public)]) == BadBundle.exit_code
    assert "m.fractune is not signed" in only_line(capsys.readouterr().err)
    fractune.sign_bundle(path, private.read_bytes())
    assert main(["bundle", "--verify", str(path), "--public-key", str(public)]) == 0
    assert f"(signed by the owner of {public})" in capsys.readouterr().out
    assert main(["bundle", "--verify", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"bundle": str(path), "signed": True, "signature_checked": False}
    fractune.verify_bundle(path, public_key=public.read_bytes())


def test_a_changed_byte_of_a_variant_that_is_not_loaded_is_found_and_named(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = path.read_bytes()
    at = whole.rindex(b"no code")
    path.write_bytes(whole[:at] + b"NO" + whole[at + 2 :])
    assert main(["bundle", "--verify", str(path)]) == BadBundle.exit_code
    assert "m.fractune: entry 'variants/2/lib0.o' is damaged" in only_line(capsys.readouterr().err)
    with pytest.raises(BadBundle, match=r"'variants/2/lib0\.o'"):
        fractune.BundleFile(path).verify()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--verify", "--shares", "cpu:1"], "check a bundle file (fractune bundle --verify FILE"),
        (["--verify", "--out", "x"], "check a bundle file (fractune bundle --verify FILE"),
        (["--public-key", "public.pem"], "check a bundle file (fractune bundle --verify FILE"),
        (["--verify", "--public-key", "none.pem"], "none.pem: cannot be read"),
    ],
)
def test_options_that_do_not_go_together(
    path: Path, capsys: pytest.CaptureFixture[str], options: list[str], says: str
) -> None:
    assert main(["bundle", str(path), *options]) == 2
    assert says in only_line(capsys.readouterr().err)


OUT = "m.fractune"
WRITING = {
    "tune": ["tune", "m.onnx", "--shares", "cpu:1"],
    "tune to a folder": ["tune", "m.onnx", "--shares", "cpu:1", "--out-dir", "."],
    "tune of another shape": ["tune", "m.onnx", "--shares", "cpu:1,cpu:4", "--input", "data=2,3"],
    "bundle": ["bundle", "m.onnx", "--shares", "cpu:1"],
}
FETCHING = {"a job's bundle": ["bundle", "j1"], "watch": ["watch", "j1", "--out", OUT]}


@pytest.mark.parametrize("command", [*WRITING.values(), *FETCHING.values()], ids=[*WRITING, *FETCHING])
def test_a_bundle_that_serves_more_is_replaced_on_demand_only(
    command: list[str],
    server: ScriptedServer,
    model: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(model.parent)
    server.bundles["bundles/b1"] = less = bundle_at(1)
    Path(OUT).write_bytes(bundle_bytes())
    at = ["--server", server.address]
    assert main([*command, *at]) == 2
    lost = "the shape data 1x3" if "--input" in command else "the share cpu:4"
    line = only_line(capsys.readouterr().err)
    assert f"{OUT} is a bundle, and the new one would be without {lost}; name another file with --out, or" in line
    assert Path(OUT).read_bytes() == bundle_bytes()
    assert server.specs == []  # before any work
    assert main([*command, *at, "--force"]) == 0
    assert Path(OUT).read_bytes() == less


@pytest.mark.parametrize(
    ("options", "code", "complaint"),
    [
        (["a.onnx", "b.onnx", "--slots", "1"], 2, "slots is 1, and 2 variants are given; it must be 2 or more"),
        (["a.onnx", "missing.onnx"], 3, "missing.onnx: no such model file"),
        (["a.onnx", "b.onnx", "--input", "x"], 2, "--input 'x': write NAME=1,3,224,224"),
        (["a.onnx", "b.onnx", "--out", "."], 7, "out"),
        ([], 2, "Missing argument"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    options: list[str],
    code: int,
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        (tmp_path / f"{name}.onnx").write_bytes(b"never read")
    assert main(["fuse", *options]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert complaint in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.onnx", "b.onnx"]


def test_a_variants_name_must_be_one_that_can_be_shown(tmp_path: Path) -> None:
    models = [write_model(tmp_path / name) for name in ("a.onnx", "b\x1b[2J.onnx")]
    with pytest.raises(BadRequest, match=r"a variant's name is 'b\\x1b\[2J'; name the file by 1 to 200 bytes"):
        fractune.fuse(models, out=tmp_path / "both.fused")


def test_no_peer_runs_a_fused_model(tmp_path: Path) -> None:
    path = tmp_path / "both.fused"
    models = [write_model(tmp_path / name) for name in ("a.onnx", "b.onnx")]
    with path.open("wb") as file:
        write_fused(file, ["a", "b"], models, 2)
    with pytest.raises(BadRequest, match=r"both.fused is a fused model, which no peer runs; leave until_beats out"):
        fractune.tune(path, "cpu:1", until_beats="onnxruntime", out=tmp_path / "m.fractune")


def test_slots_are_told() -> None:
    assert slots_text(["a", "b"]) == "2 of 2 filled: 0 a, 1 b"
    assert slots_text(["a", None]) == "1 of 2 filled: 0 a, 1 empty; a run computes all 2"
    assert apart_text(["sort"]) == "sort is called once for each slot"
    assert apart_text(["so\x1b[2Jrt"]) == r"so\x1b[2Jrt is called once for each slot"
    assert apart_text(["sort", "topk"]) == "sort, topk are called once for each slot"
