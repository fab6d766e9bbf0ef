"""A compile worker whose child has been taken over: it writes and reads nothing but what it means to."""

import contextlib
import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from fractune_core.errors import BadRequest
from fractune_core.fleet.messages import CompileWork
from fractune_core.fleet.redis_names import EVENT_FIELD, tuner_stream
from fractune_core.fleet.signed_messages import Refused, seal_event
from fractune_workers.child.errors import CallFailed
from fractune_workers.context import WorkerContext
from fractune_workers.locks.core_locks import CoreLocks
from fractune_workers.roles import compile as compile_role, tune
from fractune_workers.roles.tune import Tuner
from tests.support.fleet_messages import measure_work
from tests.support.processes.made_up import made_up_record, target_operator
from tests.support.secret import SECRET

MODEL = b"a model"
DIGEST = hashlib.sha256(MODEL).hexdigest()
WORK = CompileWork(
    work_id="w",
    job="j",
    tenant="default",
    model=DIGEST,
    model_name="m.onnx",
    owner="",
    inputs={},
    target="llvm",
    bundle="b",
    manifest={"operators": []},
    variants=[],
    records=[],
    check_inputs="",
)


class TakenOver:
    """A child on a kernel without Landlock, which puts links in its folder where its worker may look."""

    def __init__(self, _module: str, *, own_dir: Path, **_other: object) -> None:
        self.own_dir = own_dir
        self.secret, self.victim = Path(), Path()
        self.stops = 0

    def plant(self) -> None:
        (self.own_dir / DIGEST).symlink_to(self.victim)

    def stop(self) -> None:
        self.stops += 1

    def ensure(self) -> int:
        return 1

    def log_lacking(self, _what: str) -> None:
        pass

    def while_wanted(self, _is_wanted: Callable[[], bool]) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def call(self, method: str, _timeout_s: float, *, out: str, **_payload: object) -> None:
        assert method == "compile_bundle"
        Path(out).symlink_to(self.secret)


@pytest.fixture
def attacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    children: list[TakenOver] = []
    published: list[bytes] = []
    scratch_dir, victim, secret = tmp_path / "scratch", tmp_path / "victim", tmp_path / "secret"
    scratch_dir.mkdir()
    victim.mkdir()
    secret.write_text("a secret")

    def start(module: str, **options: Any) -> TakenOver:
        children.append(TakenOver(module, **options))
        return children[-1]

    monkeypatch.setattr(compile_role, "reader_child", start)
    monkeypatch.setattr(compile_role, "read_blob", lambda *_: iter([MODEL]))
    monkeypatch.setattr(compile_role, "put_signed_file", lambda *given: published.append(given[-1].read_bytes()))
    context: Any = SimpleNamespace(
        computing=lambda _child: contextlib.nullcontext(), scratch_dir=scratch_dir, redis=None, secret=b""
    )
    compiler = compile_role.Compiler(context)
    child, _checker = children
    child.secret, child.victim = secret, victim
    child.plant()
    return SimpleNamespace(compiler=compiler, child=child, victim=victim, published=published)


def test_it_writes_no_model_through_a_link_of_its_child(attacked: SimpleNamespace) -> None:
    assert attacked.compiler._model_file(DIGEST, "m.onnx").read_bytes() == MODEL
    assert not list(attacked.victim.iterdir())


def test_the_next_owners_child_finds_no_model_of_the_last_one(attacked: SimpleNamespace) -> None:
    compiler = attacked.compiler
    kept = []
    for owner in ("alice", "alice", "bob"):
        compiler._serve("default", owner)
        kept.append([path.name for path in compiler._models_dir.iterdir()])
        compiler._model_file(DIGEST, "m.onnx")
    assert kept == [[], [DIGEST], []]
    assert attacked.child.stops == 2


def test_it_publishes_nothing_that_a_link_of_its_child_leads_to(attacked: SimpleNamespace) -> None:
    for _ in range(2):  # the link does not stay
        with pytest.raises(CallFailed, match="the child left no bundle"):
            attacked.compiler._compile(WORK)
    assert not attacked.published


@pytest.mark.parametrize("digest", ["..", "/tmp", DIGEST.upper(), f"{DIGEST}\n", "a" * 63])
def test_only_a_digest_names_the_folder_of_a_model(attacked: SimpleNamespace, digest: str) -> None:
    with pytest.raises(Refused, match="is not named by a SHA-256"):
        attacked.compiler._model_file(digest, "m.onnx")


@pytest.mark.parametrize("name", ["", ".", "..", "models/..", "m" * 300])
def test_a_name_that_no_file_can_have_is_refused(attacked: SimpleNamespace, name: str) -> None:
    """The path of a model named ".." would be the folder of all models."""
    with pytest.raises(BadRequest, match="the model's name is '"):
        attacked.compiler._model_file(DIGEST, name)


def measured(candidate: str, scope: str = "") -> Any:
    work = measure_work(target_operator("conv2d"), job="j")
    record = replace(made_up_record(work, candidate, f'["{candidate}"]'), namespace=scope)
    return {"event": "measured", "job": "j", "round_id": "r", "record": record.to_json()}


def test_a_tuner_learns_from_results_that_the_fleet_signed(
    connection: redis.Redis, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    context = WorkerContext("tune-1", connection, SECRET, CoreLocks(tmp_path / "gate", 8), [0], tmp_path)
    tuner = Tuner(context)
    tuner.start()
    forged = (json.dumps(measured("unsigned")), seal_event(b"another secret", measured("of another fleet")))
    for text in (*forged, seal_event(SECRET, measured("ours"))):
        connection.xadd(tuner_stream("tune-1"), {EVENT_FIELD: text})
    with caplog.at_level(logging.WARNING):
        tuner._read_results()
    (learned,) = tuner._results.values()
    assert [candidate for candidate, _, _ in learned] == ["ours"]
    assert caplog.text.count("does not carry this fleet's signature") == len(forged)


def test_results_of_searches_that_do_not_come_back_are_kept_for_a_while_only(
    connection: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "_UNLEARNED_KEPT", 2)
    tuner = Tuner(WorkerContext("tune-1", connection, SECRET, CoreLocks(tmp_path / "gate", 8), [0], tmp_path))
    tuner.start()
    for scope in ("first", "second", "third", "third"):
        event = measured(f"of {scope}", scope)
        connection.xadd(tuner_stream("tune-1"), {EVENT_FIELD: seal_event(SECRET, event)})
    tuner._read_results()
    kept = {search.of: [candidate for candidate, _, _ in found] for search, found in tuner._results.items()}
    assert kept == {"second/": ["of second"], "third/": ["of third"] * 2}
