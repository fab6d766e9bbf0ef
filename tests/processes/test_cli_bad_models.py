"""Models that cannot be tuned, through the command line: one line, the documented exit code, and nothing is lost."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import pytest

from tests.support.processes.cli_process import (
    await_event,
    error_line,
    run_fractune,
    start_fractune,
    stopped_at_end,
    write_model,
)
from tests.support.processes.fleet_processes import fleet_of_processes
from tests.support.processes.redis_process import running_redis


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a server with the workers that a job needs until its models are read."""
    workers = ("--role", "compile"), ("--role", "measure", "--share", "cpu:1")
    with running_redis() as url, fleet_of_processes(url, tmp_path_factory.mktemp("fleet"), *workers) as address:
        yield address


def garbage(path: Path) -> None:
    path.write_bytes(b"\x00\x01 this is no model")


def empty(path: Path) -> None:
    path.touch()


def truncated(path: Path) -> None:
    write_model(path)
    path.write_bytes(path.read_bytes()[:-100])


def graph(path: Path, op: str, shape: list[int | str]) -> None:
    node = onnx.helper.make_node(op, ["x"], ["y"], name="the_node")
    value = onnx.helper.make_tensor_value_info
    inputs, outputs = [value("x", onnx.TensorProto.FLOAT, shape)], [value("y", onnx.TensorProto.FLOAT, None)]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", inputs, outputs),
        opset_imports=[onnx.helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.save(model, path)


def unsupported(path: Path) -> None:
    graph(path, "Det", [4, 4])


def dynamic(path: Path) -> None:
    graph(path, "Relu", ["batch", 3, "height", 8])


def nothing_to_tune(path: Path) -> None:
    graph(path, "Identity", [1, 3])


def expands(path: Path) -> None:
    """Functions that call each other twice: 2^25 nodes in a small file."""
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("own", 1)]
    bodies = [[onnx.helper.make_node("Relu", ["a"], ["b"])]]
    for level in range(25):
        calls = (("a", "c"), ("c", "b"))
        bodies.append([onnx.helper.make_node(f"f{level}", [taken], [given], domain="own") for taken, given in calls])
    functions = [
        onnx.helper.make_function("own", f"f{level}", ["a"], ["b"], body, opsets) for level, body in enumerate(bodies)
    ]
    value = onnx.helper.make_tensor_value_info
    inputs, outputs = [value("x", onnx.TensorProto.FLOAT, [4])], [value("y", onnx.TensorProto.FLOAT, None)]
    whole = onnx.helper.make_graph([onnx.helper.make_node("f25", ["x"], ["y"], domain="own")], "g", inputs, outputs)
    onnx.save(onnx.helper.make_model(whole, opset_imports=opsets, functions=functions, ir_version=8), path)


@pytest.mark.parametrize(
    ("write", "options", "says"),
    [
        (garbage, [], "m.onnx"),
        pytest.param(empty, [], "m.onnx is empty", marks=pytest.mark.long),
        pytest.param(truncated, [], "m.onnx", marks=pytest.mark.long),
        (unsupported, [], "the_node"),
        (dynamic, [], "--size batch=1 --size height=224"),
        (dynamic, ["--input", "nobody=1,3,8,8"], "nobody"),
        (nothing_to_tune, [], "nothing to tune"),
        pytest.param(expands, [], "nodes, and 30,000 is the limit", marks=pytest.mark.long),
    ],
)
def test_a_model_that_cannot_be_tuned_is_one_line_and_exit_code_three(
    address: str, tmp_path: Path, write: Callable[[Path], None], options: list[str], says: str
) -> None:
    model = tmp_path / "m.onnx"
    write(model)
    ended = run_fractune("tune", str(model), "--shares", "cpu:1", "--server", address, "--quiet", *options)
    assert ended.returncode == 3, ended.stderr
    assert says in error_line(ended)
    assert "Traceback" not in ended.stdout


def test_a_file_is_told_by_its_own_name_though_another_had_its_contents_before(address: str, tmp_path: Path) -> None:
    for name in ("first.onnx", "second.onnx"):
        unsupported(tmp_path / name)
        ended = run_fractune("tune", str(tmp_path / name), "--shares", "cpu:1", "--server", address, "--quiet")
        assert error_line(ended).startswith(f"fractune: {name}: opset 17: cannot import node 'the_node' (Det)")


def test_operators_that_nobody_has_are_told_with_those_there_are(address: str, tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.onnx")
    ended = run_fractune("tune", str(model), "--shares", "cpu:1", "--server", address, "--quiet", "--only", "lstm")
    assert ended.returncode in {2, 3}
    assert "conv2d" in error_line(ended)


def test_a_share_that_nobody_offers_is_told_with_those_offered(address: str, tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.onnx")
    ended = run_fractune("tune", str(model), "--shares", "cpu:1,cpu:2", "--server", address, "--quiet")
    assert ended.returncode == 4
    line = error_line(ended)
    assert "cpu:2" in line
    assert "cpu:1" in line


@pytest.mark.parametrize(
    "target",
    [
        "nonsense -x",
        '{"kind":"llvm","cl-opt":["-print-after-all:bool=1"]}',
        *(pytest.param(each, marks=pytest.mark.long) for each in ("llvm -mcpu=zx81", "cuda")),
    ],
)
def test_a_target_that_nobody_knows_is_told(address: str, tmp_path: Path, target: str) -> None:
    model = write_model(tmp_path / "m.onnx")
    ended = run_fractune("tune", str(model), "--shares", "cpu:1", "--server", address, "--quiet", "--target", target)
    assert ended.returncode == 2, ended.stderr
    assert target in error_line(ended)


def test_unknown_names_have_a_code_of_their_own(address: str) -> None:
    for command in ("watch", "cancel", "bundle"):
        ended = run_fractune(command, "nobody", "--server", address)
        assert ended.returncode == 9
        assert "nobody" in error_line(ended)


def test_a_log_that_is_none_of_ours_is_refused_whole(address: str, tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"record": {"kind": "trial"}}\n')
    ended = run_fractune("log", "import", str(tmp_path / "log.jsonl"), "--server", address)
    assert ended.returncode == 2
    assert "log.jsonl:1" in error_line(ended)
    (tmp_path / "db").mkdir()
    args = ("--share", "cpu:1", "--device-from-this-host", "--server", address)
    ended = run_fractune("log", "import", str(tmp_path / "db"), *args)
    assert (ended.returncode, "is not a JSONDatabase folder" in error_line(ended)) == (2, True)


@pytest.mark.long
def test_a_stopped_stack_says_where_its_log_is(tmp_path: Path) -> None:
    state = tmp_path / "state"
    up = start_fractune("up", "--shares", "cpu:1", "--listen", "127.0.0.1:0", "--state", str(state), "--json")
    with stopped_at_end(up):
        await_event(up, event="ready")
        up.send_signal(signal.SIGTERM)
        _, errors = up.communicate(timeout=60)
    assert (up.returncode, errors) == (143, f"fractune: stopped; the log is kept in {state}\n")


@pytest.mark.long
def test_a_second_server_cannot_have_the_same_address(address: str, tmp_path: Path) -> None:
    ended = run_fractune("up", "--shares", "cpu:1", "--listen", address, "--state", str(tmp_path / "state"))
    assert ended.returncode == 2
    assert address in error_line(ended)


@pytest.mark.long
def test_an_address_that_others_reach_must_be_meant(tmp_path: Path) -> None:
    ended = run_fractune("up", "--shares", "cpu:1", "--listen", "0.0.0.0:0", "--state", str(tmp_path / "state"))
    assert ended.returncode == 2
    assert "--insecure" in error_line(ended)


def test_a_share_larger_than_the_machine_ends_the_stack_with_the_workers_line(tmp_path: Path) -> None:
    model, share = write_model(tmp_path / "m.onnx"), f"cpu:{len(os.sched_getaffinity(0)) + 1}"
    ended = run_fractune("tune", str(model), "--shares", share, "--state", str(tmp_path / "state"), "--quiet")
    assert ended.returncode == 4
    assert f"share '{share}' is larger than this machine" in error_line(ended)
