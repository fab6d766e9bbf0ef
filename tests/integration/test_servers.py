"""The servers around a bundle: each runs in its own environment, answers as ONNX Runtime does, and drains."""

import json
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from fractune.features.join import join
from fractune.local.model_server import SERVERS, ModelServer, request_of, serving
from fractune_runtime.serving import MOST_BODY_BYTES
from tests.support.paths import REPOSITORY
from tests.support.processes.redis_process import wait_until
from tests.support.processes.server_environments import python_of

REQUESTS = 16
TRITON_CLIENT = """
import grpc, itertools, json, sys
import numpy as np
import tritonclient.grpc, tritonclient.http
answers = []
raw, shapes = tritonclient.grpc.service_pb2, ([], [-1], [-1, 16], [2**62, 2**62], [0], [1, 16])
by_grpc = tritonclient.grpc.InferenceServerClient(sys.argv[2])
for datatype in ("INT64", "FP32", "BYTES", "BF16", "", "x"):
    for shape, content in itertools.product(shapes, (b"", b"x" * 7, b"\\xff" * 4, b"x" * 4096)):
        wrong = raw.ModelInferRequest(model_name="model", raw_input_contents=[content])
        wrong.inputs.add(name="ids", datatype=datatype, shape=shape)
        try:
            by_grpc._client_stub.ModelInfer(wrong)
            raise SystemExit(f"{datatype} {shape} {content} was answered")
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, (datatype, shape, content, error)
for kind, address in ((tritonclient.http, sys.argv[1]), (tritonclient.grpc, sys.argv[2])):
    client = kind.InferenceServerClient(address)
    assert client.is_server_live() and client.is_model_ready("model")
    inputs = [kind.InferInput(name, [1, 16], "INT64") for name in ("ids", "mask")]
    for each in inputs:
        each.set_data_from_numpy(np.ones((1, 16), np.int64))
    answer = client.infer("model", inputs)
    answers.append([answer.as_numpy(name).tolist() for name in sys.argv[3:]])
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = runpy.run_path(str(REPOSITORY / "scripts" / "runtime_wheel"))["build"](tmp_path_factory.mktemp("dist"))
    return made


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder for one and two texts; its ONNX file is beside it."""
    folder = tmp_path_factory.mktemp("batches")
    maker = [sys.executable, "-m", "tests.support.real_bundle", str(folder), "encoders"]
    subprocess.run(maker, check=True, cwd=REPOSITORY)
    made = [folder / "encoders" / f"encoder-{batch}x16.fractune" for batch in (1, 2)]
    return join(made, out=folder / "encoders" / "batches.fractune").path


@pytest.mark.long
@pytest.mark.parametrize("name", SERVERS)
def test_a_server_answers_as_onnx_runtime_does_and_drains(
    name: str, wheel: Path, batches: Path, tmp_path: Path
) -> None:
    truth = onnxruntime.InferenceSession(str(batches.with_name("encoder.onnx")))
    outputs = [each.name for each in truth.get_outputs()]
    texts = [text_of(seed) for seed in range(REQUESTS)]
    slow = {"PYTHONPATH": str(REPOSITORY / "tests" / "support" / "slow_endpoint")}
    with (
        serving(name, python_of(name, wheel), batches, tmp_path / "log", env=slow) as server,
        ThreadPoolExecutor(REQUESTS) as clients,
    ):
        server.wait()
        requests = list(map(request_of, texts))
        for text, (status, answer) in zip(texts, clients.map(server.post, requests), strict=True):
            assert status == 200, answer
            expected = dict(zip(outputs, truth.run(None, text), strict=True))
            for each in json.loads(answer)["outputs"]:
                np.testing.assert_allclose(np.reshape(each["data"], each["shape"]), expected[each["name"]], 1e-4, 1e-5)
        check_metrics(name, server)
        check_routes(server)
        for body in hostile_bodies(requests[0]):
            status, answer = server.post(body)
            assert status == 400, (body[:200], answer)
            assert len(answer) < 3000
        assert server.post(b" " * (MOST_BODY_BYTES + 1))[0] == 413
        assert server.post(requests[0])[0] == 200
        if name == "kserve":
            check_triton_client(server, wheel, outputs)
        started = server.processes()
        under_way = [clients.submit(server.post, request) for request in requests]
        next(as_completed(under_way))  # the others wait for the model by now
        code = server.end()
        assert [each.result()[0] for each in under_way] == [200] * REQUESTS
        assert code in {0, -signal.SIGTERM}, server.log.read_text()
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))


def text_of(seed: int) -> dict[str, np.ndarray[Any, Any]]:
    ids = np.random.default_rng(seed).integers(0, 10, (1, 16))
    return {"ids": ids, "mask": np.ones_like(ids)}


def check_routes(server: ModelServer) -> None:
    """Those of the Open Inference Protocol."""
    paths = ("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/model", "/v2/models/model/ready")
    answers = {path: server.get(path) for path in paths}
    assert {status for status, _ in answers.values()} == {200}, answers
    inputs = json.loads(answers["/v2/models/model"][1])["inputs"]
    assert inputs == [{"name": name, "datatype": "INT64", "shape": [-1, 16]} for name in ("ids", "mask")]
    assert {server.get(path)[0] for path in ("/v2/models/other", "/v2/models/other/ready")} == {404}


def hostile_bodies(right: bytes) -> Iterator[bytes]:
    """A request with each of its values replaced by strange ones, and bodies that are no request."""
    strange: tuple[Any, ...] = (
        None,
        True,
        -1,
        0,
        1.5,
        10**30,
        "",
        "x",
        "x" * 5000,
        "\ud800",
        "\0",
        [],
        [[]],
        {},
        {"a": 1},
        [None],
    )
    shapes = ([-1, 16], [-1], [2**62, 2**62], [2**70], [1, 1.5], [1] * 40, [1] * 1000)
    datatypes = ("FP32", "BYTES", "BF16", "FP16", "BOOL", "UINT8")
    for name, others in {
        "datatype": datatypes,
        "shape": shapes,
        "name": ("mask",),
        "data": ([1e999], ["1"] * 16),
    }.items():
        for value in (*strange, *others):
            request = json.loads(right)
            request["inputs"][0][name] = value
            yield json.dumps(request).encode()
    for value in strange:
        yield json.dumps({**json.loads(right), "inputs": value}).encode()
        yield json.dumps({**json.loads(right), "inputs": [value]}).encode()
        yield json.dumps(value).encode()
    yield json.dumps({**json.loads(right), "id": "\ud800"}).encode()
    yield from (
        b"",
        b"{",
        b"[" * 100_000,
        b"\xff\xfe",
        right.replace(b"1", b"NaN", 1),
        right.replace(b"1", b"9" * 5000, 1),
    )


def check_metrics(name: str, server: ModelServer) -> None:
    """Of all requests so far, by bucket, and the variant in use."""
    _, metrics = server.get("/metrics", server.other if name == "litserve" else None)
    assert f'fractune_request_seconds_count{{bucket="batch=1"}} {REQUESTS}.0' in metrics
    assert "fractune_variant{" in metrics


def check_triton_client(server: ModelServer, wheel: Path, outputs: list[str]) -> None:
    """tritonclient gets the same answer by REST and by gRPC."""
    python = str(python_of("kserve", wheel))
    addresses = (f"127.0.0.1:{server.port}", f"127.0.0.1:{server.other}")
    command = [python, "-c", TRITON_CLIENT, *addresses, *outputs]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    by_rest, by_grpc = json.loads(ended.stdout)
    assert by_rest == by_grpc
