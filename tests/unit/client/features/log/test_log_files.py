"""Files that the client writes and reads: the log as JSON lines and CSV."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractune.features.log.files import CSV_COLUMNS, csv_row, read_jsonl, write_csv
from fractune.text.output_files import as_cell, check_writable, replacing
from fractune_core.codec.messages import to_proto
from fractune_core.errors import BadRequest, StateUnusable
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.records import Disturbance, Status, TimingPolicy
from fractune_core.targets import target_key
from tests.support.client_samples import record


@pytest.mark.parametrize(
    "line", ["{", "[]", "1", "{}", '{"record": {}}', '{"workload": 3}', '{"record": {"kind": "x"}}']
)
def test_a_line_that_is_none_of_ours_is_named(tmp_path: Path, line: str) -> None:
    good = json.dumps({"record": record().to_json()})
    path = tmp_path / "log.jsonl"
    path.write_text(f"{good}\n\n{line}\n")
    with pytest.raises(BadRequest, match=r"log\.jsonl:3: .*nothing was imported"):
        list(read_jsonl(path))


def test_files_that_are_no_text_or_not_there_are_told(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, says in (("binary", "it is not text"), ("none", "cannot read .*: No such file")):
        with pytest.raises(BadRequest, match=says):
            list(read_jsonl(tmp_path / name))


def test_a_line_that_no_server_takes_is_named_and_not_read_to_its_end(tmp_path: Path) -> None:
    good, long = json.dumps({"record": record().to_json()}), json.dumps({"record": record(trace="x" * 2**24).to_json()})
    (tmp_path / "log.jsonl").write_text(f"{good}\n{long}\n")
    with pytest.raises(BadRequest, match=r"log\.jsonl:2: this line is longer than the 4 MiB .*nothing was imported"):
        list(read_jsonl(tmp_path / "log.jsonl"))
    with pytest.raises(BadRequest, match=r"/dev/zero:1: this line is longer"):
        list(read_jsonl(Path("/dev/zero")))


def test_csv_is_flat_and_complete(tmp_path: Path) -> None:
    failed = record("r2", status=Status.RUN_TIMEOUT, run_secs=(), cause='late, very "late"')
    parts = [pb.ExportRecordsResponse(record=to_proto(each, pb.Record)) for each in (record("r1"), failed)]
    assert write_csv(parts, tmp_path / "log.csv") == 2
    with (tmp_path / "log.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert float(first["median_s"]) == 1.1e-3
    assert first["run_secs"] == "0.001;0.0011;0.0012"
    assert first["device"] == "cpu-rocketlake-2u-24gib-l2.1280kib"
    assert (second["status"], second["cause"], second["median_s"]) == ("run_timeout", 'late, very "late"', "")


def test_csv_says_what_disturbed_a_measurement() -> None:
    disturbance = Disturbance(0.5, 0.1, 0.05, 0.0, 0.02, preemptions=3, throttles=0, throttled_s=0.0)
    row = csv_row(record(disturbance=disturbance, attempts=3))
    assert (row["lost"], row["attempts"]) == (0.2, 3)
    assert row["disturbance"].startswith("wall_s=0.5;off_core_s=0.1;steal_s=0.05;")
    assert (csv_row(record())["lost"], csv_row(record())["disturbance"]) == ("", "")


def test_csv_says_how_many_of_the_run_times_chose() -> None:
    policy = TimingPolicy("validation", warmups=1, repeats=3, min_repeat_ms=10.0, choosing=1)
    row = csv_row(record(policy=policy))
    assert (row["choosing"], row["run_secs"], row["median_s"]) == (1, "0.001;0.0011;0.0012", pytest.approx(1.15e-3))


def test_every_cell_is_one_value() -> None:
    """A field that is an object or a list needs a text of its own in `csv_row`, or is left out."""
    disturbance = Disturbance(0.5, 0.1, 0.05, 0.0, 0.02, preemptions=3, throttles=0, throttled_s=0.0)
    for row in (csv_row(record(disturbance=disturbance, throttled_ns={"sw_thermal": 5})), csv_row(record())):
        assert {name for name, cell in row.items() if not isinstance(cell, str | int | float)} == set()


def test_every_column_has_a_value() -> None:
    assert set(csv_row(record())) == set(CSV_COLUMNS)


def test_a_file_is_replaced_whole_or_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("old")

    def fail_in_the_middle() -> None:
        with replacing(path) as file:
            file.write("half")
            raise KeyError("the middle")

    with pytest.raises(KeyError):
        fail_in_the_middle()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(StateUnusable, match="cannot write"), replacing(path / "f"):
        pass


@given(cores=st.integers(1, 512), features=st.permutations(["+avx", "-amx", "+fma"]))
def test_a_targets_identity_does_not_depend_on_cores_or_order(cores: int, features: list[str]) -> None:
    text = json.dumps({"kind": "llvm", "num-cores": cores, "mattr": features, "tag": ""})
    assert target_key(text) == '{"kind":"llvm","mattr":["+avx","+fma","-amx"]}'


@pytest.mark.parametrize("name", ["", "file/table.csv", "file/deeper/table.csv"])
def test_a_file_that_cannot_be_written_is_told_beforehand(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StateUnusable, match=r"--csv .*; pass "):
        check_writable("--csv", tmp_path / name)


def test_a_folder_that_refuses_new_files_is_noticed_beforehand() -> None:
    with pytest.raises(
        StateUnusable, match=r"--out /proc/x: the folder /proc cannot be written \(.*\); pass another path"
    ):
        check_writable("--out", Path("/proc/x"))


def test_folders_on_the_way_are_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "deeper" / "f"
    check_writable("--csv", path)
    assert not path.parent.exists()
    with replacing(path) as file:
        file.write("new")
    assert path.read_text() == "new"


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t", "\r"])
def test_a_text_of_a_csv_is_no_formula(tmp_path: Path, begin: str) -> None:
    named = record("r1", operator=f"{begin}cmd|'/C calc'!A0")
    write_csv([pb.ExportRecordsResponse(record=to_proto(named, pb.Record))], tmp_path / "log.csv")
    with (tmp_path / "log.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["operator"] == f"'{named.operator}"
    assert float(row["median_s"]) == 1.1e-3


def test_numbers_of_a_csv_stay_numbers() -> None:
    assert [as_cell(value) for value in (-1.5, -3, None, "1;-2", "")] == [-1.5, -3, None, "1;-2", ""]
