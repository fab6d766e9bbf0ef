"""The plan file: what it says becomes a request, and what it cannot mean is one clear line."""

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from fractune.features.plan.plan_file import read_plan
from fractune_core.errors import BadBundle, BadRequest, FractuneError
from fractune_core.planning.devices import Partitioning
from fractune_core.planning.speeds import Basis, Row, measured_rows
from fractune_core.shares import Device, GrantedShare
from tests.support.client_samples import bundle_bytes, plan_file, variants
from tests.support.paths import REPOSITORY

WHOLE = plan_file('profile = "curves.csv"')
CURVES = "model,share,batch,throughput_per_s,latency_ms\nbert,3g,1,45,22\nother,3g,1,1,1\nbert,7g,4,,50\n"


def write(folder: Path, text: str) -> Path:
    (folder / "curves.csv").write_text(CURVES)
    path = folder / "plan.toml"
    path.write_text(text)
    return path


def test_a_plan_file_says_all_of_it(tmp_path: Path) -> None:
    read = read_plan(write(tmp_path, WHOLE))
    asked = read.request
    assert (asked.device.name, asked.device.partitioning, asked.count) == ("A100-80GB", Partitioning.MIG, 4)
    assert (asked.headroom, asked.penalty, asked.latency_part) == (0.05, 0.1, 0.45)
    assert asked.interference == {("resnet50", "bert"): 1.08}
    resnet, bert = asked.models
    assert (resnet.name, resnet.rate_per_s, resnet.latency_s, resnet.memory_gib) == ("resnet50", 829, 0.205, 3.5)
    assert resnet.rows == (
        Row(1, 8, 2, 400.0, 0.04),
        Row(2, 1, 1, 50.0, 0.02),
        Row(7, 8, 1, 1000.0, 0.008),
    )
    assert [(row.units, row.batch, row.throughput_per_s, row.latency_s) for row in bert.rows] == [
        (3, 1, 45.0, 0.022),
        (7, 4, pytest.approx(80.0), 0.05),
    ]
    assert bert.latency_s is None
    assert read.logged == {}
    asked.check()


def test_the_command_line_goes_before_the_file(tmp_path: Path) -> None:
    text = WHOLE.replace('{share = "1g", batch', '{share = "mps:20", batch').replace(
        'share = "mig:2g.20gb"', 'share = "mps:40"'
    )
    text = text.replace('share = "7g", batch = 8', 'share = "full", batch = 8').replace(
        '"curves.csv"', '[{share = "full", latency_ms = 5}]'
    )
    asked = read_plan(write(tmp_path, text), gpus=2, partitioning="mps").request
    assert (asked.count, asked.device.partitioning) == (2, Partitioning.MPS)
    assert [row.units for row in asked.models[0].rows] == [21, 43, 108]


def test_a_model_in_the_log_is_named_by_its_file(tmp_path: Path) -> None:
    text = """
    [device]
    cores = 4
    memory_gib = 16
    [[models]]
    name = "a"
    model = "a.onnx"
    requests_per_run = 8
    inputs = {data = [8, 3, 224, 224]}
    """
    read = read_plan(write(tmp_path, text))
    assert read.request.device.name == "4 cores"
    logged = read.logged["a"]
    assert (logged.path, logged.requests_per_run, logged.inputs) == (tmp_path / "a.onnx", 8, {"data": [8, 3, 224, 224]})
    assert read.request.models[0].rows == ()


def test_the_other_sources_in_the_docs_can_stand_in_a_plan_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (REPOSITORY / "docs" / "sharing.md").read_text(encoding="utf-8")
    (indented,) = re.findall(r"each in place of `profile`:\n\n((?:(?:    .*)?\n)+)", page)
    by_bundle, by_cores, by_log = textwrap.dedent(indented).strip().split("\n\n")
    monkeypatch.chdir(tmp_path)
    a_bundle(tmp_path, A100, {"mig:1g.10gb": (14, 0.04)}).rename("magika.fractune")
    models = f'[[models]]\nname = "magika"\n{by_bundle}\n[[models]]\nname = "squeezenet"\n{by_log}\n'
    read = read_plan(write(tmp_path, f'[device]\ngpu = "A100-80GB"\n{models}'))
    assert read.logged.keys() == {"squeezenet"}
    assert [row.batch for row in read.request.models[0].rows] == [8]
    a_bundle(tmp_path, HOST, {"cpu:1": (1, 0.03)}, "core").rename("small.fractune")
    read = read_plan(write(tmp_path, f'[device]\ncores = 8\n[[models]]\nname = "small"\n{by_cores}\n'))
    assert [row.latency_s for row in read.request.models[0].rows] == [pytest.approx(0.025, rel=0.01)]


# ---- bundles ---------------------------------------------------------------------------------------------

HOST = Device("cpu", "skylake", 2, 16, 1024, "Xeon")
A100 = Device("cuda", "sm_80", 108, 80, 40960, "NVIDIA A100-SXM4-80GB")


def granted(share: str, units: int, total: int, unit: str = "sm") -> dict[str, Any]:
    return GrantedShare(share, units, total, unit, 1 << 30, reserved=True).to_json()


def a_bundle(
    folder: Path, device: Device, shares: dict[str, tuple[int, float]], unit: str = "sm", **fields: Any
) -> Path:
    """Measured at shares: units granted, and the seconds of the variant `untuned`."""
    path = folder / "a.fractune"
    path.write_bytes(
        bundle_bytes(
            device=device.to_json(),
            variants=variants("untuned"),
            shares={share: granted(share, units, device.units, unit) for share, (units, _) in shares.items()},
            measured={share: {"untuned": secs} for share, (_, secs) in shares.items()},
            **fields,
        )
    )
    return path


def plan_with_bundle(**device: Any) -> dict[str, Any]:
    return {
        "device": device or {"gpu": "A100-80GB"},
        "models": [{"name": "a", "bundle": "a.fractune", "requests_per_run": 4}],
    }


def test_a_bundle_says_how_fast_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    a_bundle(tmp_path, A100, {"mig:1g.10gb": (14, 0.04), "mig:3g.40gb": (42, 0.02), "mps:25": (27, 0.03)})
    rows = read_plan(plan_with_bundle()).request.models[0].rows
    assert rows == measured_rows({1: 0.04, 3: 0.02}, {}, {}, batch=4)
    by_mps = read_plan(plan_with_bundle(), partitioning="mps").request.models[0].rows
    assert by_mps == measured_rows({27: 0.03}, {}, {}, batch=4)


def of_two_cores(folder: Path, **fields: Any) -> Path:
    return a_bundle(folder, HOST, {"cpu:1": (1, 0.04), "cpu:2": (2, 0.02)}, "core", **fields)


def test_a_bundle_of_fewer_cores_is_taken_with_the_speed_of_a_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    of_two_cores(tmp_path, timed={"cpu:1": 0.05, "cpu:2": 0.03}, served={})
    asked = plan_with_bundle(cores=8)
    asked["models"][0]["core_speed"] = 2
    rows = read_plan(asked).request.models[0].rows
    assert rows == (Row(1, 4, 1, 160.0, 0.025), Row(2, 4, 1, 4 / 0.015, 0.015))
    assert {row.basis for row in rows} == {Basis.STATED}
    limited = read_plan(asked, partitioning="limit").request.models[0].rows
    assert limited[0].units == 250


@pytest.mark.parametrize(
    ("device", "core_speed", "says"),
    [
        (
            {"cores": 8},
            None,
            r"with 2 cores and not 8 cores; measure it there .* cpu:1,cpu:2,cpu:4,cpu:8'\), or",
        ),
        ({"cores": 8}, None, "or state beside the bundle .*: core_speed = 1 for as fast$"),
        ({"gpu": "A100-80GB"}, None, "a CPU and not A100-80GB; give a bundle or a profile of the plan's device$"),
        ({"gpu": "A100-80GB"}, 1, "model 'a': core_speed scales the times of a bundle to the cores of a CPU"),
        ({"cores": 8}, 0, "model 'a': core_speed is 0; it must be above 0, 1 being as fast"),
    ],
)
def test_a_bundle_of_another_machine_is_refused_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: dict[str, Any], core_speed: float | None, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    of_two_cores(tmp_path)
    asked = plan_with_bundle(**device)
    if core_speed is not None:
        asked["models"][0]["core_speed"] = core_speed
    with pytest.raises(FractuneError, match=says):
        read_plan(asked)


def test_no_speed_of_a_core_makes_a_gpu_of_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    a_bundle(tmp_path, A100, {"full": (108, 0.01)})
    asked = plan_with_bundle(cores=8)
    asked["models"][0]["core_speed"] = 1
    with pytest.raises(BadBundle, match="a GPU and not 8 cores"):
        read_plan(asked)


def test_the_whole_models_times_in_a_bundle_go_before_its_operators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    timed = {"mig:1g.10gb": 0.05}
    a_bundle(tmp_path, A100, {"mig:1g.10gb": (14, 0.04), "mig:3g.40gb": (42, 0.02)}, timed=timed)
    rows = read_plan(plan_with_bundle()).request.models[0].rows
    assert rows == measured_rows({1: 0.04, 3: 0.02}, {1: 0.05}, {}, batch=4)


def test_a_disturbed_time_in_a_bundle_goes_behind_its_operators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    times: dict[str, Any] = {"timed": {"mig:1g.10gb": 0.05}, "others_cores": {"mig:1g.10gb": 0.8}}
    shares = {"mig:1g.10gb": (14, 0.04), "mig:3g.40gb": (42, 0.02)}
    a_bundle(tmp_path, A100, shares, **times)
    rows = read_plan(plan_with_bundle()).request.models[0].rows
    assert rows == measured_rows({1: 0.04, 3: 0.02}, {}, {1: 0.05}, batch=4)
    a_bundle(tmp_path, A100, {share: (units, 0.0) for share, (units, _) in shares.items()}, **times)
    (row,) = read_plan(plan_with_bundle()).request.models[0].rows
    assert (row.units, row.latency_s, row.basis) == (1, 0.05, Basis.DISTURBED)


def test_a_bundle_of_another_device_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    a_bundle(tmp_path, A100, {"mig:1g.10gb": (14, 0.04)})
    for device, says in (
        ({"gpu": "A100-40GB"}, "made for NVIDIA A100-SXM4-80GB with 108 SMs and not A100-40GB"),
        ({"gpu": "H100-80GB"}, "and not H100-80GB"),
        ({"cores": 8}, "made for a GPU and not 8 cores"),
        ({"gpu": "A100-80GB", "partitioning": "green"}, "has no time at a green share of A100-80GB"),
    ):
        with pytest.raises(BadBundle, match=says):
            read_plan(plan_with_bundle(**device))
    a_bundle(tmp_path, Device("cpu", "rocketlake", 2, 24, 1280), {"cpu:1": (1, 0.1)}, "core")
    with pytest.raises(BadBundle, match="made for a CPU and not A100-80GB"):
        read_plan(plan_with_bundle())
    with pytest.raises(BadBundle, match="rocketlake with 2 cores and not 8 cores"):
        read_plan(plan_with_bundle(cores=8))
    assert len(read_plan(plan_with_bundle(cores=2)).request.models[0].rows) == 1


# ---- what it cannot mean ---------------------------------------------------------------------------------

SMALL = (
    '[device]\ngpu = "A100-80GB"\n[[models]]\nname = "a"\nrate_per_s = 5\nprofile = [{share = "1g", latency_ms = 9}]\n'
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("modles = 1", "plan.toml: unknown key 'modles'; known keys are device, models"),
        (SMALL.replace("gpu", "gqu"), r"plan.toml: \[device\]: unknown key 'gqu'"),
        (SMALL.replace("rate_per_s", "rate"), "plan.toml: model 'a': unknown key 'rate'; known keys are name"),
        (SMALL.replace("latency_ms", "latency"), "profile 1: unknown key 'latency'; known keys are share, batch"),
        (SMALL + "[[interference]]\nmodel = 'a'\nwith = 'b'", "interference 1: unknown key 'with'"),
        (SMALL.replace("A100-80GB", "A100"), "gpu 'A100' is unknown; write A100-40GB"),
        (SMALL.replace("[device]", "[device]\ncores = 2"), "device: give either gpu or cores"),
        (SMALL.replace("[device]", "[device]\npartitioning = 'cpu'"), "partitioning 'cpu' is for CPUs"),
        ("[[models]]\nname = 'a'\nprofile = []", "device: give either gpu or cores"),
        (SMALL.replace("5", "'many'"), "model 'a': 'rate_per_s' is 'many', and not a number"),
        (SMALL.replace("5", "true"), "'rate_per_s' is True, and not a number"),
        (SMALL.replace("profile", "model = 'a.onnx'\nprofile"), "give one of profile, bundle, model .* profile and"),
        (SMALL.partition("profile")[0], "it has none"),
        (SMALL.replace('share = "1g", ', ""), "profile 1: the share is missing; write share = 'mig:7g.80gb'"),
        (SMALL.replace('"1g"', '"mps:25"'), "share 'mps:25' is not a part of A100-80GB by mig; it has mig:1g.10gb"),
        (SMALL.replace("latency_ms = 9", "latency_ms = -9"), "profile 1: batch and processes must be 1 or more"),
        (SMALL.replace("latency_ms = 9", "batch = 0, latency_ms = 9"), "they are 0, 1, 0, 9"),
        (SMALL.replace('[{share = "1g", latency_ms = 9}]', "'gone.csv'"), "cannot read its profile .*gone.csv"),
        (SMALL.replace('[{share = "1g", latency_ms = 9}]', "'curves.csv'"), "curves.csv has no row of it"),
        (SMALL.replace("profile =", "requests_per_run = 0\nprofile ="), "requests_per_run is 0"),
        ("[device]\ncores = 2\n[[models]]\nname='a'\nmodel='a.onnx'\ninputs = {data = 3}", "'data' is 3; write"),
        (SMALL.replace("[device]", "[device]\ncount = 0"), "count is 0; it must be from 1 to 4096 devices"),
        (SMALL + 2 * "[[interference]]\nmodel = 'a'\nbeside = 'a'\ni = 1.1\n", "'a' beside 'a' appears twice"),
        ("models = 3\n[device]\ncores = 2", "'models' is 3, and not a list of tables"),
        ("[device", "not a TOML file"),
    ],
)  # fmt: skip
def test_what_a_plan_file_cannot_mean_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(BadRequest, match=says) as refused:
        read_plan(write(tmp_path, text)).request.check()
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadRequest, match="cannot read the plan file"):
        read_plan(tmp_path / "plan.toml")
    (tmp_path / "mlp.onnx").write_bytes(b"\x08\xff\x00")
    with pytest.raises(BadRequest, match=r"mlp\.onnx: this file is not text; give the plan file in TOML$"):
        read_plan(tmp_path / "mlp.onnx")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FractuneError, match=r"a.fractune: no such file"):
        read_plan(plan_with_bundle())


@pytest.mark.parametrize(
    "value", ["9" * 30, "-" + "9" * 30, "9" * 5000, "[" * 2000, "0x" + "f" * 40, "'\x00'"], ids=lambda value: value[:9]
)
def test_a_value_that_no_reader_expects_is_one_line(tmp_path: Path, value: str) -> None:
    for key in ("headroom", "penalty", "latency_part"):
        path = write(tmp_path, WHOLE.replace(f"{key} = ", f"{key} = {value} # "))
        with pytest.raises(BadRequest) as refused:
            read_plan(path)
        assert len(str(refused.value).splitlines()) == 1


LIMITS = """
[device]
cores = 2
partitioning = "limit"
[[models]]
name = "minilm"
"""


def test_limits_are_predicted_from_a_profile_at_whole_cores(tmp_path: Path) -> None:
    profile = 'profile = [{share = "cpu:1", latency_ms = 18.4}, {share = "cpu:2", latency_ms = 9.6}]'
    asked = read_plan(write(tmp_path, LIMITS + profile)).request
    assert asked.device.partitioning is Partitioning.LIMIT
    assert {row.units for row in asked.models[0].rows} == set(range(250, 2001, 250))


@pytest.mark.parametrize(
    ("speed", "says"),
    [
        ('model = "m.onnx"', "limits are predicted from a bundle or a profile; give one in place of model"),
        ('profile = [{share = "cpu:500m", latency_ms = 20}]', "share 'cpu:500m' is not a part of 2 cores by cpu"),
    ],
)
def test_limits_need_times_at_whole_cores(tmp_path: Path, speed: str, says: str) -> None:
    with pytest.raises(BadRequest, match=re.escape(says)):
        read_plan(write(tmp_path, LIMITS + speed))
