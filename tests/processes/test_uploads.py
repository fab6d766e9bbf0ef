"""Models that are sent to a real server: what is too large, torn, altered or slow is refused; quotas hold."""

import hashlib
from collections.abc import Iterator

import grpc
import pytest

from fractune_core.access import Quotas, Scope, transfer_s
from fractune_core.pb import fractune_pb2 as pb
from fractune_server.admin import Admin
from tests.processes.test_access import Place, client_credentials, running_place
from tests.support.processes.redis_process import running_redis
from tests.support.processes.server_process import Client, ServerProcess, as_call, running_server

LIMIT = 100_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    state = tmp_path_factory.mktemp("uploads") / "state"
    with running_redis() as url, running_server(url, state, upload_limit_bytes=LIMIT) as running:
        yield running


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with running_place(tmp_path_factory.mktemp("quotas")) as made:
        yield made


def parts(
    payload: bytes, *, size: int | None = None, sha256: str = "", name: str = "m"
) -> Iterator[pb.UploadModelRequest]:
    digest = sha256 or hashlib.sha256(payload).hexdigest()
    shown = len(payload) if size is None else size
    yield pb.UploadModelRequest(header=pb.ModelHeader(display_name=name, sha256=digest, size_bytes=shown))
    for start in range(0, len(payload), 1000):
        yield pb.UploadModelRequest(data=payload[start : start + 1000])


def refusal(client: Client, sent: Iterator[pb.UploadModelRequest]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as refused:
        client.models.UploadModel(sent, timeout=60)
    call = as_call(refused.value)
    return call.code(), call.details() or ""


def test_what_is_within_the_limit_is_taken(server: ServerProcess) -> None:
    with server.client() as client:
        assert client.models.UploadModel(parts(b"a" * LIMIT)).size_bytes == LIMIT


def test_what_is_too_large_is_refused(server: ServerProcess) -> None:
    with server.client() as client:
        code, said = refusal(client, parts(b"b" * (LIMIT + 1)))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert f"has {LIMIT + 1} bytes, and this server accepts at most {LIMIT}" in said
    assert "--upload-limit" in said


def test_an_empty_model_is_refused(server: ServerProcess) -> None:
    with server.client() as client:
        code, said = refusal(client, parts(b""))
    assert (code, "the model file is empty" in said) == (grpc.StatusCode.INVALID_ARGUMENT, True)


@pytest.mark.parametrize("name", ["", "..", "/", "../../etc/passwd", "a\0b", "\x1b[2J", "x" * 201, "B" * 2_000_000])
def test_a_name_that_is_no_files_is_refused(server: ServerProcess, name: str) -> None:
    with server.client() as client:
        code, said = refusal(client, parts(b"named", name=name))
        assert (code, "display_name is" in said) == (grpc.StatusCode.INVALID_ARGUMENT, True)
        assert "by 1 to 200 bytes of printable UTF-8, without its folder" in said
        assert len(said) < 500


def test_more_or_less_than_the_header_says_is_refused(server: ServerProcess) -> None:
    with server.client() as client:
        code, said = refusal(client, parts(b"c" * 5000, size=10))
        assert (code, "longer than the 10 bytes" in said) == (grpc.StatusCode.INVALID_ARGUMENT, True)
        code, said = refusal(client, parts(b"c" * 5000, size=-1))
        assert (code, "size_bytes is -1" in said) == (grpc.StatusCode.INVALID_ARGUMENT, True)
        code, said = refusal(client, parts(b"c" * 5000, size=6000))
        assert (code, "ended 1000 bytes before the 6000" in said) == (grpc.StatusCode.INVALID_ARGUMENT, True)


def test_what_was_altered_on_the_way_is_refused(server: ServerProcess) -> None:
    with server.client() as client:
        code, said = refusal(client, parts(b"d" * 5000, sha256="0" * 64))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "the bytes have SHA-256" in said


def test_a_large_model_has_longer() -> None:
    assert transfer_s(0) == 60
    assert transfer_s(1 << 30) > 600 > transfer_s(100 << 20) - 60


def test_the_models_of_a_token_stay_within_its_quota(place: Place) -> None:
    made = Admin(place.state).create_token("small", Scope.SUBMIT, None, Quotas(stored_bytes=10_000))
    with Client(place.server.address, client_credentials(place.authority, made)) as client:
        client.models.UploadModel(parts(b"e" * 6000))
        client.models.UploadModel(parts(b"e" * 6000))  # it is there: nothing is sent
        code, said = refusal(client, parts(b"f" * 6000))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert f"token {made.token_id} has 4000 of 10000 left" in said
        client.models.UploadModel(parts(b"g" * 4000))
    (listed,) = (each for each in Admin(place.state).list_tokens() if each["token"] == made.token_id)
    assert listed["used"] == {"open_jobs": 0, "trials_a_day": 0, "stored_bytes": 10_000, "share_seconds_a_day": 0}
