"""A bundle whose model another runtime serves at a share: which one, by what, and what happens where it is missing."""

import contextlib
import importlib.metadata
import io
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fractune
from fractune.cli import main
from fractune.features.compete import compete as compete_module
from fractune.features.compete.compete import compete
from fractune_core.analysis.match import DEFAULT_POLICY
from fractune_core.errors import BadBundle, BadModel, BadRequest, StateUnusable
from fractune_core.files.bundles import FORMAT, JOINED_FORMAT, RECORDS, Bundle
from fractune_core.files.compared import MODEL, Compared, Runtime, Timed
from fractune_core.files.new_bundle import replacing_file
from fractune_runtime import choosing
from fractune_runtime.choosing import match_share
from fractune_runtime.cpu import ShareHere
from fractune_runtime.sessions import RuntimeMissing, open_session
from tests.support.processes.forked import succeeds_in_child
from tests.support.real_bundle import Small

VERSION = importlib.metadata.version("onnxruntime")
WINS = (2.0, 1.9, 2.1)
LOSES = (0.8, 0.7, 0.9)


def compared(loop: tuple[float, float, float] = WINS, paced: tuple[float, float, float] = WINS) -> Compared:
    return Compared({"fractune": Timed(2e-3, 3e-3), "onnxruntime": Timed(1e-3, 1.5e-3, loop, paced)})


def served(
    small: Small, out: Path, version: str = VERSION, onnx: bytes | None = None, share: str = "cpu:1", **more: Any
) -> Path:
    """The small bundle, as if ONNX Runtime had won at the share."""
    fields: dict[str, Any] = {
        "runtimes": {"onnxruntime": Runtime(version, {"session.intra_op.allow_spinning": "0"}).to_json()},
        "compared": {share: compared(**more).to_json()},
    }
    with out.open("wb") as file:
        extra = {MODEL: small.model.read_bytes() if onnx is None else onnx}
        Bundle(small.bundle).copy_to(file, extra=extra, format=JOINED_FORMAT, **fields)
    return out


def test_a_forked_child_gets_threads_of_its_own(small: Small, tmp_path: Path) -> None:
    model = fractune.load(served(small, tmp_path / "m.fractune", share="cpu:2"), share="cpu:2")
    assert (model.choice.variant, model.threads) == ("onnxruntime", 2)
    inputs = model.random_inputs()
    (wanted,) = model.run(inputs)
    assert succeeds_in_child(lambda: np.allclose(model.run(inputs)[0], wanted))


def test_the_faster_runtime_serves(small: Small, tmp_path: Path) -> None:
    bundle = served(small, tmp_path / "m.fractune")
    fractune.verify_bundle(bundle)
    own = fractune.load(small.bundle, share="cpu:1")
    model = fractune.load(bundle, share="cpu:1")
    assert model.choice.variant == "onnxruntime"
    assert model.choice.reason.startswith(f"onnxruntime {VERSION} runs it, because it was 2.00 times as fast")
    assert (model.choice.exact, model.threads) == (True, 1)
    inputs = own.random_inputs()
    (wanted,) = own.run(inputs)
    for outputs in (model.run(inputs), [np.from_dlpack(each) for each in model.run_tensors(inputs)]):
        np.testing.assert_allclose(outputs[0], wanted, atol=1e-4)
    bound = model.bind(inputs={"x": own.bind().inputs["x"]})
    bound.inputs["x"][...] = inputs["x"]
    bound.run()
    (output,) = bound.outputs.values()
    np.testing.assert_allclose(output, wanted, atol=1e-4)
    np.testing.assert_allclose(model.run(inputs, "untuned")[0], wanted, atol=1e-4)
    with pytest.raises(BadRequest, match="the model takes x"):
        model.run({"x": np.zeros(3, "float32")})


def test_it_serves_the_share_and_the_goal_that_it_won(small: Small, tmp_path: Path) -> None:
    bundle = served(small, tmp_path / "m.fractune", loop=LOSES)
    assert fractune.load(bundle, share="cpu:1").choice.variant == "onnxruntime"
    assert fractune.load(bundle, share="cpu:1", goal="throughput").choice.variant == "cpu:1"
    assert fractune.load(bundle, share="cpu:1", runtimes=False).choice.variant == "cpu:1"
    assert fractune.load(bundle, share="cpu:1", threads=1).choice.variant == "cpu:1"
    assert fractune.load(bundle, share="cpu:2").choice.variant == "cpu:2"
    model = fractune.load(bundle, share="cpu:1")
    assert model.rematch().variant == "onnxruntime"


@pytest.mark.parametrize(("cores", "threads"), [(2, 2), (4, 2), (64, 2)])
def test_on_more_cores_than_were_compared_the_winner_runs_as_at_the_largest_share(
    small: Small, tmp_path: Path, cores: int, threads: int
) -> None:
    with contextlib.closing(Bundle(served(small, tmp_path / "m.fractune", share="cpu:2"))) as bundle:
        here = ShareHere(cores, tuple(range(cores)), f"{cores} cores of a test")
        own, _ = match_share(bundle, here, DEFAULT_POLICY, "latency")
        assert (own.variant, own.threads) == ("cpu:2", threads)
        found, missing = choosing.runtime_choice(bundle, here, own, "latency")
    assert (found.variant, found.threads, missing) == ("onnxruntime", threads, "")
    assert found.exact == (cores == 2)
    assert ("runtimes were not compared at" in found.reason) == (cores > 2)


@pytest.mark.parametrize(("there", "says"), [("", "is not installed here"), ("1.0.2", "1.0.2 is installed here")])
def test_without_the_timed_version_the_bundles_own_code_runs(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str, says: str
) -> None:
    bundle = served(small, tmp_path / "m.fractune", version="9.7.1")
    monkeypatch.setattr(choosing, "installed", lambda _: there)
    with pytest.warns(RuntimeWarning, match=rf"m\.fractune: onnxruntime 9\.7\.1 was 2\.00 times .* and .*{says}"):
        model = fractune.load(bundle, share="cpu:1")
    assert model.choice.variant == "cpu:1"
    assert says in model.choice.reason
    assert model.run(model.random_inputs())


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """ONNX Runtime is installed, and its library cannot be loaded. The file is returned."""
    folder = tmp_path / "broken"
    folder.mkdir()
    module = folder / "onnxruntime.py"
    module.write_text("raise OSError('libgomp.so.1: cannot open shared object file')\n")
    monkeypatch.syspath_prepend(folder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "onnxruntime"]:
        monkeypatch.delitem(sys.modules, name)
    return module


@pytest.mark.usefixtures("broken")
def test_a_runtime_that_cannot_be_imported_does_not_end_the_load(
    small: Small, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = served(small, tmp_path / "m.fractune")
    with pytest.warns(RuntimeWarning, match=r"its own code runs, because ONNX Runtime is installed here and cannot be"):
        model = fractune.load(bundle, share="cpu:1")
    assert model.choice.variant == "cpu:1"
    assert model.run(model.random_inputs())
    assert main(["doctor", "--bundle", str(bundle)]) == 0
    assert f"{VERSION} is installed and cannot be imported (libgomp.so.1: cannot open" in capsys.readouterr().out


def test_a_runtime_without_its_names_counts_as_broken(broken: Path) -> None:
    """As folders that an uninstalled package leaves behind, which can be imported and are empty."""
    broken.write_text("")
    with pytest.raises(
        RuntimeMissing, match=r"ONNX Runtime is installed here and cannot be imported .*install it again"
    ):
        open_session("onnxruntime", b"", "m.onnx", 1, list(os.sched_getaffinity(0)), {}, {})


def test_other_builds_of_a_runtime_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        if package == "onnxruntime-gpu":
            return "1.31.0"
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert choosing.installed("onnxruntime") == "1.31.0"
    assert choosing.installed("openvino") == ""


def test_versions_of_one_minor_are_alike() -> None:
    assert choosing.is_alike("1.31.1", "1.31.0")
    assert not choosing.is_alike("1.32.0", "1.31.0")
    assert not choosing.is_alike("", "1.31.0")
    assert choosing.installed("numpy") == np.__version__
    assert choosing.installed("no-such-package") == ""


def test_a_damaged_model_file_is_told(small: Small, tmp_path: Path) -> None:
    bundle = served(small, tmp_path / "m.fractune", onnx=b"no model")
    with pytest.raises(BadModel, match=r"m\.fractune: ONNX Runtime cannot load it"):
        fractune.load(bundle, share="cpu:1")
    whole = served(small, tmp_path / "m.fractune").read_bytes()
    at = whole.index(small.model.read_bytes()) + 40
    bundle.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(BadBundle, match=r"'model\.onnx'|entry 'model\.onnx' is damaged"):
        fractune.load(bundle, share="cpu:1")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"compared": {"cpu:9": compared().to_json()}}, "'compared' or 'between' has a share that 'shares' has not"),
        ({"compared": {"cpu:1": 3}}, "'compared', 'between' and 'runtimes' are not"),
        ({"compared": 3}, "'compared', 'between' and 'runtimes' are not"),
        ({"runtimes": {}}, "'runtimes' lacks 'onnxruntime', which serves a share"),
        ({"runtimes": {"other": Runtime("1", {}).to_json()}}, "'compared' or 'between' has an unknown runtime"),
        ({"runtimes": {"onnxruntime": Runtime("\x1b", {}).to_json()}}, "a text that is not printable"),
        ({}, "'model.onnx' is missing, which 'onnxruntime' needs"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(small: Small, fields: dict[str, Any], says: str) -> None:
    file = io.BytesIO()
    held = {
        "runtimes": {"onnxruntime": Runtime(VERSION, {}).to_json()},
        "compared": {"cpu:1": compared().to_json()},
    }
    Bundle(small.bundle).copy_to(file, **{**held, **fields})
    with pytest.raises(BadBundle, match=says):
        Bundle(file.getvalue())


def test_what_cannot_compete_is_told(small: Small, tmp_path: Path) -> None:
    bundle = tmp_path / "m.fractune"
    bundle.write_bytes(small.bundle.read_bytes())
    other = tmp_path / "other.onnx"
    other.write_bytes(b"other")
    for model, options, says in (
        (
            small.model,
            {"runtimes": "tensorflow"},
            "'tensorflow' is no runtime that can compete",
        ),
        (small.model, {"shares": "cpu:7"}, r"shares cpu:7: m\.fractune has the CPU shares cpu:1, cpu:2; name some"),
        (other, {}, r"other\.onnx: not the file that m\.fractune was made from \('small\.onnx'\)"),
        (tmp_path / "none.onnx", {}, r"none\.onnx: cannot be read"),
        (Path("/dev/zero"), {}, r"--model /dev/zero: not a file; name the ONNX file"),
    ):
        with pytest.raises(BadRequest, match=says):
            compete(bundle, model, progress=False, **options)  # type: ignore[arg-type]
    assert Bundle(bundle).manifest["format"] == FORMAT


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The outputs are not compared, by a process that takes a second to start."""
    monkeypatch.setattr(compete_module, "_checked_members", lambda *_: {})


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("version", "kept"), [(VERSION, ["cpu:2", "cpu:1"]), ("1.0.0", ["cpu:1"])])
def test_times_of_another_version_do_not_stay(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, kept: list[str]
) -> None:
    """The bundle was compared at two cores by `version`, and is compared at one core by the one installed."""
    monkeypatch.setattr(compete_module, "_at_shares", lambda *_, **__: found_at("cpu:1"))
    bundle = served(small, tmp_path / "m.fractune", version, share="cpu:2")
    contests = compete(bundle, small.model, runtimes="onnxruntime", shares="cpu:1", progress=False).contests
    assert [each.share for each in contests] == kept


def found_at(share: str) -> dict[str, Any]:
    runtime = Runtime(VERSION, {"session.intra_op.allow_spinning": "0"}).to_json()
    return {share: {"compared": compared().to_json(), "runtimes": {"onnxruntime": runtime}}}


@pytest.mark.usefixtures("unchecked")
def test_a_contest_that_ended_meanwhile_stays(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = tmp_path / "m.fractune"
    bundle.write_bytes(small.bundle.read_bytes())

    def timed(_path: Path, _member: int | None, _contest: object, shares: list[str], *_: object, **__: object) -> Any:
        if shares == ["cpu:1"]:
            compete(bundle, small.model, runtimes="onnxruntime", shares="cpu:2", progress=False)
        return found_at(*shares)

    monkeypatch.setattr(compete_module, "_at_shares", timed)
    contests = compete(bundle, small.model, runtimes="onnxruntime", shares="cpu:1", progress=False).contests
    assert {each.share for each in contests} == {"cpu:1", "cpu:2"}


def test_another_bundle_of_that_name_does_not_get_the_times(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "m.fractune"
    bundle.write_bytes(small.bundle.read_bytes())

    def timed(*_: object, **__: object) -> dict[str, Any]:
        with contextlib.closing(Bundle(small.bundle)) as opened, replacing_file(bundle) as file:
            opened.copy_to(file, extra={RECORDS: b"{}\n"})
        return found_at("cpu:1")

    monkeypatch.setattr(compete_module, "_at_shares", timed)
    with pytest.raises(BadRequest, match="another bundle was written there while runtimes were timed; compete again"):
        compete(bundle, small.model, runtimes="onnxruntime", shares="cpu:1", progress=False)
    assert "compared" not in Bundle(bundle).manifest


@pytest.mark.usefixtures("unchecked")
def test_a_lost_signature_is_told(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = tmp_path / "m.fractune"
    monkeypatch.setattr(compete_module, "_at_shares", lambda *_, **__: found_at("cpu:1"))
    said: list[str] = []
    for signature in (b"0" * 64, None):
        with bundle.open("wb") as file:
            Bundle(small.bundle).copy_to(file, signature)
        compete(bundle, small.model, runtimes="onnxruntime", shares="cpu:1", progress=said.append)
    assert said[1:-1] == ["m.fractune has lost its signature; sign it again (sign_bundle)"]
    assert {said[0], said[-1]} == {"comparing outputs with those of small.onnx"}


def test_nothing_is_timed_for_a_folder_that_takes_no_file(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compete_module, "_at_shares", lambda *_, **__: pytest.fail("timed"))
    with small.bundle.open("rb") as file, pytest.raises(StateUnusable, match="cannot be written"):
        compete(f"/proc/self/fd/{file.fileno()}", small.model, runtimes="onnxruntime", progress=False)


def test_loading_warns_of_nothing_else(small: Small, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fractune.load(served(small, tmp_path / "m.fractune"), share="cpu:1").choice.variant == "onnxruntime"


def test_the_doctor_knows_what_a_bundle_needs(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = str(served(small, tmp_path / "m.fractune"))
    assert main(["doctor", "--bundle", bundle]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("run m.fractune: ready\n")
    assert f"+ onnxruntime {VERSION}: {VERSION}" in shown
    monkeypatch.setattr(choosing, "installed", lambda _: "")
    assert main(["doctor", "--bundle", bundle, "--json"]) == 0
    (finding,) = [each for each in json.loads(capsys.readouterr().out)["findings"] if "onnxruntime" in each["what"]]
    assert (finding["found"], finding["optional"]) == ("", True)
    assert finding["how"].startswith(f"pip install onnxruntime=={VERSION}; none is installed")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set())
    assert main(["doctor", "--bundle", bundle]) == 1
    assert "run m.fractune: not ready" in capsys.readouterr().out
    assert main(["doctor", "--bundle", bundle, "--for", "run"]) == 2


def test_a_runtime_that_serves_is_not_compared_with_itself(
    small: Small, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = served(small, tmp_path / "m.fractune")
    command = ["run", str(bundle), "--share", "cpu:1", "--compare", "onnxruntime", "--model", str(small.model)]
    assert main(command) == 2
    assert "onnxruntime serves m.fractune here, so there is nothing to compare" in capsys.readouterr().err
