"""`fractune noise` for real: candidates searched, built and timed, with builds beside; and nothing left behind."""

import signal
from pathlib import Path

import pytest

from fractune.local.noise_file import NOISE_FILE, load_noise
from fractune_core.analysis.noise import CAUSES
from tests.support.processes.cli_process import (
    descendants,
    error_line,
    events,
    run_fractune,
    start_fractune,
    write_model,
)
from tests.support.processes.redis_process import wait_until
from tests.support.processes.worker_processes import alive

pytestmark = pytest.mark.timeout(240)


@pytest.mark.long
def test_the_report_has_every_setting_and_its_advice_is_saved(tmp_path: Path) -> None:
    state, picture = tmp_path / "state", tmp_path / "noise.svg"
    model = write_model(tmp_path / "m.onnx")  # the built-in convolution takes seconds to compile
    options = ["--share", "cpu:1", "--measurers", "1", "--candidates", "8", "--json", "--picture", str(picture)]
    options += ["--model", str(model), "--only", "conv"]
    ended = run_fractune("noise", *options, "--state", str(state))
    (report,) = events(ended)
    assert report["event"] == "noise"
    assert report["granted"]["units"] == 1
    assert report["candidates"] == 8
    names = [each["name"] for each in report["settings"]]
    assert names == ["validation, alone", "first, alone", "race, alone", "trial, alone", "trial, alone, builds beside"]
    for each in report["settings"]:
        assert each["failures"] == 0
        assert len(each["median_s"]) == 8
        assert all(secs > 0 for passes in each["median_s"].values() for secs in passes)
        assert -1.0 <= each["tau"] <= 1.0
        assert each["regret"] >= 0.0
        assert 0.0 <= each["spread_median"] <= each["spread_p90"] <= 2.0
        assert 0.0 <= each["lost"] <= 1.0
        assert each["causes"].keys() == each["cause_taus"].keys() == CAUSES.keys()
    explanation = report["explanation"]
    assert 24 <= explanation["pairs"] <= 32  # of what was timed alone; a race may time another part for longer
    assert explanation["anchor_spread"] >= 0.0
    saved = load_noise(state / NOISE_FILE)[report["device"]]["cpu:1"]
    assert vars(saved) == report["advice"]
    assert saved.measurers == 1
    assert saved.margin >= 1.10
    assert picture.stat().st_size > 1000
    assert "building 8 candidates" in ended.stderr


@pytest.mark.parametrize(("share", "says"), [("cpu:9999", "larger than this machine"), ("mps:25", "NVIDIA")])
def test_a_share_that_cannot_be_had_is_refused(tmp_path: Path, share: str, says: str) -> None:
    ended = run_fractune("noise", "--share", share, "--state", str(tmp_path))
    assert ended.returncode == 4
    assert says in error_line(ended)
    assert not (tmp_path / NOISE_FILE).exists()


@pytest.mark.long
def test_a_model_that_cannot_be_read_is_one_clear_line(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"\x00\x01 this is no model")
    ended = run_fractune("noise", "--share", "cpu:1", "--model", str(model), "--state", str(tmp_path))
    assert ended.returncode == 3
    assert ended.stderr.splitlines()[-1].startswith("fractune: m.onnx")
    assert "Traceback" not in ended.stderr


@pytest.mark.long
def test_stopping_it_leaves_no_process(tmp_path: Path) -> None:
    process = start_fractune("noise", "--share", "cpu:1", "--state", str(tmp_path))
    try:
        assert process.stderr is not None
        assert any(line.startswith("operator") for line in process.stderr)
        started = descendants(process.pid)
        assert started
    finally:
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in told
    wait_until(lambda: not any(alive(pid) for pid in started))
