"""Packs with real processes: made here, for a CPU and for a GPU that is not here; measured without a compiler, in spite
of kills and wrong candidates; and taken into a log that a bundle is made of.
"""

import contextlib
import json
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import tvm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from tvm import te

from fractune_core.errors import BadBundle, BadRequest
from fractune_core.files.bundles import Bundle
from fractune_core.files.packs import ANCHOR, LOOP, Pack, PackedOperator, write_pack
from fractune_core.records import UNTUNED, Kind, Status, TuningRecord
from fractune_runtime.signatures import signature_check
from fractune_runtime.tvm_runtime.runtime import runtime_library
from fractune_workers.children.tvm_api.compiled import build_object
from fractune_workers.children.tvm_api.target import load_target
from fractune_workers.cuda.compilers import find_compiler
from tests.support.paths import REPOSITORY
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
from tests.support.samples import validation

pytestmark = pytest.mark.timeout(300)


@dataclass(frozen=True)
class Packed:
    """A signed pack, and the files of its key."""

    model: Path
    pack: Path
    private: Path
    public: Path

    def operators(self) -> list[PackedOperator]:
        with contextlib.closing(Pack(self.pack)) as opened:
            return list(opened.operators())


def with_open_batch(path: Path) -> Path:
    """As most exporters write models; a pack is of batch 1, as a bundle is."""
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    folder = tmp_path_factory.mktemp("packed")
    found = Packed(
        with_open_batch(write_model(folder / "m.onnx")),
        folder / "m.pack",
        folder / "private.pem",
        folder / "public.pem",
    )
    key = ed25519.Ed25519PrivateKey.generate()
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    found.private.write_bytes(key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain))
    found.public.write_bytes(key.public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo))
    options = ["--only", "conv2d", "--candidates", "3", "--cores", "2", "--sign", str(found.private), "--json"]
    ended = run_fractune("pack", str(found.model), *options, "--out", str(found.pack), "--state", str(folder / "state"))
    (answer,) = events(ended)
    assert answer["signed"]
    assert answer["built"] == answer["candidates"] == 2 * 4
    return found


def test_a_pack_has_the_untuned_default_and_candidates_of_each_operator(packed: Packed) -> None:
    operators = packed.operators()
    assert len(operators) == 2
    with contextlib.closing(Pack(packed.pack)) as pack:
        assert json.loads(pack.manifest.target)["num-cores"] == 2
        assert pack.host_kernel(ANCHOR)
        assert pack.host_kernel(LOOP)
        for operator in operators:
            assert operator.candidates[0].trace == UNTUNED
            assert len({each.trace for each in operator.candidates}) == 4
            assert all(pack.code(each.candidate)[:4] == b"\x7fELF" for each in operator.candidates)
        pack.verify()


def test_a_pack_is_signed_by_its_owner(packed: Packed) -> None:
    Pack(packed.pack, signature_check(packed.public.read_bytes())).close()
    other = ed25519.Ed25519PrivateKey.generate().public_key()
    pem = other.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(BadBundle, match="its signature does not match the given key"):
        Pack(packed.pack, signature_check(pem))


def test_an_existing_file_is_kept_and_an_unknown_operator_is_named(packed: Packed, tmp_path: Path) -> None:
    state = ["--state", str(tmp_path / "state")]
    ended = run_fractune("pack", str(packed.model), "--out", str(packed.pack), *state)
    assert "exists; pass --force" in ended.stderr.splitlines()[-1]
    ended = run_fractune("pack", str(packed.model), "--only", "lstm", "--out", str(tmp_path / "x.pack"), *state)
    assert ended.returncode != 0
    assert "\nfractune: no operator's name contains 'lstm'" in ended.stderr


@pytest.mark.skipif(find_compiler() is None, reason="no CUDA compiler here; `make setup` installs NVRTC")
def test_a_pack_for_a_gpu_needs_no_gpu(packed: Packed, tmp_path: Path) -> None:
    out = tmp_path / "gpu.pack"
    options = ["--only", "matmul", "--candidates", "2", "--target", "cuda:sm_90", "--out", str(out), "--json"]
    (answer,) = events(run_fractune("pack", str(packed.model), *options, "--state", str(tmp_path / "state")))
    assert answer["built"] == 3
    with contextlib.closing(Pack(out)) as pack:
        (operator,) = pack.operators()
        assert [each.status for each in operator.candidates] == [Status.OK] * 3
        assert operator.candidates[0].versions["compiler"]
        assert pack.host_kernel(ANCHOR) == b""
    for share, path, own in (("cpu:1", out, "a GPU"), ("full", packed.pack, "a CPU")):
        refused = run_fractune(
            "measure", str(path), "--shares", share, "--unsigned", "--out", str(tmp_path / "x.times")
        )
        assert f"is for {own}: name shares such as" in error_line(refused)


SHARES = ("cpu:1", "cpu:2")


def measured(packed: Packed, out: Path, *options: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """The numbers of a measurement of the pack."""
    wanted = ["--out", str(out), "--json", *options]
    key = ["--public-key", str(packed.public)]
    (answer,) = events(run_fractune("measure", str(packed.pack), *wanted, *key, env=env))
    return dict(answer)


@pytest.fixture(scope="module")
def times(packed: Packed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the pack, measured where TVM is its runtime's libraries alone, and `import tvm` fails."""
    folder = tmp_path_factory.mktemp("runtime_only")
    (folder / "tvm" / "lib").mkdir(parents=True)
    (folder / "tvm" / "__init__.py").write_text("raise ImportError('the compiler is missing')\n")
    for library in Path(runtime_library()).parent.glob("libtvm_runtime*.so"):
        (folder / "tvm" / "lib" / library.name).symlink_to(library)
    path = {"PYTHONPATH": f"{folder}:{REPOSITORY}"}
    assert measured(packed, folder / "m.times", "--shares", ",".join(SHARES), env=path)["complete"]
    return folder / "m.times"


def records_of(out: Path) -> list[TuningRecord]:
    lines = map(json.loads, out.read_text().splitlines())
    return [TuningRecord.from_json(line["record"]) for line in lines if "record" in line]


def test_a_pack_is_measured_without_a_compiler_and_a_bundle_is_made_of_its_times(
    packed: Packed, times: Path, tmp_path: Path
) -> None:
    state, records = ["--state", str(tmp_path / "state")], records_of(times)
    trials = {(each.candidate_id, each.share) for each in records if each.kind is Kind.TRIAL}
    names = [each.candidate for operator in packed.operators() for each in operator.candidates[1:]]
    assert trials == {(name, share) for name in names for share in SHARES}
    assert {each.status for each in records} == {Status.OK}
    published = [each for each in records if each.kind is Kind.VALIDATION]
    assert all(each.max_error is not None for each in published)
    for share in SHARES:
        assert sum(each.share == share and each.trace == UNTUNED for each in published) == 2

    added = {"added": len(records), "already_there": 0}
    assert events(run_fractune("log", "import", str(times), "--json", *state)) == [added]
    # The last operators of the model are not in the pack, and stay untuned.
    bundle = ["--shares", "cpu:1", "--out", str(tmp_path / "m.fractune"), "--json"]
    made = events(run_fractune("bundle", str(packed.model), *bundle, *state))
    assert made[-1]["bundle"] == str(tmp_path / "m.fractune")
    with contextlib.closing(Bundle(tmp_path / "m.fractune")) as opened:
        known = {each["workload_hash"]: each["by_variant"]["cpu:1"] for each in opened.manifest["operators"]}
    for operator in packed.operators():
        each = known[operator.workload_hash]
        assert each["how"] == "exact" or "the untuned default is the fastest" in each["reason"], each
    more = ["--only", "conv2d", "--candidates", "1", "--out", str(tmp_path / "next.pack")]
    ended = run_fractune("pack", str(packed.model), *more, *state)
    assert "the search knew 3" in ended.stderr


def test_a_killed_measurement_goes_on_and_pays_for_nothing_twice(packed: Packed, tmp_path: Path) -> None:
    out = tmp_path / "m.times"
    options = ["--shares", "cpu:1", "--out", str(out), "--public-key", str(packed.public)]
    started = start_fractune("measure", str(packed.pack), *options)
    wait_until(lambda: out.exists() and len(out.read_text().splitlines()) > 4, 60)
    children = descendants(started.pid)
    started.send_signal(signal.SIGKILL)
    started.communicate(30)
    wait_until(lambda: not any(map(alive, children)), 30)
    before = records_of_whole_lines(out)
    with out.open("ab") as file:
        file.write(b'{"record": {"torn')
    assert measured(packed, out, "--shares", "cpu:1")["complete"]
    records = records_of(out)
    assert records[: len(before)] == before
    assert len({each.record_id for each in records}) == len(records)
    assert len({each.job for each in records}) == 1


def records_of_whole_lines(out: Path) -> list[TuningRecord]:
    text = out.read_text()
    out.write_text(text[: text.rindex("\n") + 1])
    return records_of(out)


def test_a_measurement_ends_on_time_with_what_it_has(packed: Packed, tmp_path: Path) -> None:
    out = tmp_path / "m.times"
    began_s = time.monotonic()
    answer = measured(packed, out, "--shares", ",".join(SHARES), "--minutes", "0.03")
    assert time.monotonic() - began_s < 2 + 12  # beside 2 s: the start of the command and the end of its children
    assert not answer["complete"]
    assert answer["wall_s"] < 6


def test_wrong_outputs_and_crashes_are_records_and_never_finalists(packed: Packed, tmp_path: Path) -> None:
    with contextlib.closing(Pack(packed.pack)) as pack:
        operator = next(pack.operators())
        codes = {each.candidate: pack.code(each.candidate) for each in operator.candidates}
        wrong, torn = (each.candidate for each in operator.candidates[1:3])
        codes[wrong] = zeros(operator, pack.manifest.target)
        codes[torn] = codes[torn][: len(codes[torn]) // 2]
        changed = tmp_path / "changed.pack"
        with changed.open("wb") as file:
            kernels = {name: pack.host_kernel(name) for name in (ANCHOR, LOOP)}
            write_pack(file, replace(pack.manifest, operators=1), [operator], codes, kernels)
        with (tmp_path / "host.pack").open("wb") as file:
            write_pack(file, replace(pack.manifest, operators=1), [operator], codes, dict.fromkeys(kernels, b"none"))
    out = tmp_path / "m.times"
    options = ["--shares", "cpu:1", "--out", str(out), "--json"]
    refused = run_fractune("measure", str(changed), *options, "--public-key", str(packed.public))
    assert "changed.pack is not signed" in error_line(refused)
    assert "--unsigned" in error_line(run_fractune("measure", str(changed), *options))
    not_code = run_fractune("measure", str(tmp_path / "host.pack"), *options, "--unsigned")
    assert not_code.returncode == BadBundle.exit_code
    assert "the pack's kernels for the host do not run" in error_line(not_code)
    events(run_fractune("measure", str(changed), *options, "--unsigned"))
    found = records_of(out)
    assert [each.status for each in found if each.candidate_id == wrong] == [Status.WRONG_OUTPUT]
    assert [each.status.value for each in found if each.candidate_id == torn] == ["run_failed"]
    assert sum(each.kind is Kind.VALIDATION for each in found) == 1 + 1


def zeros(operator: PackedOperator, target: str) -> bytes:
    """Code of a kernel with the operator's arguments that makes an output of zeros."""
    shapes = [(tuple(shape), dtype) for _, dtype, shape, *_ in operator.args_info]
    inputs = [te.placeholder(shape, dtype, name=f"in{at}") for at, (shape, dtype) in enumerate(shapes[:-1])]
    output = te.compute(shapes[-1][0], lambda *_: tvm.tirx.const(0.0, shapes[-1][1]), name="zeros")
    return build_object(tvm.IRModule({"main": te.create_prim_func([*inputs, output])}), load_target(target))


def test_a_file_of_another_pack_is_left_alone(packed: Packed, tmp_path: Path) -> None:
    other = tmp_path / "other.times"
    record = TuningRecord.from_json(validation("", 1, 1.0).to_json())
    other.write_text(json.dumps({"record": record.to_json()}) + "\n")
    text = other.read_text()
    options = ["--shares", "cpu:1", "--out", str(other), "--public-key", str(packed.public)]
    ended = run_fractune("measure", str(packed.pack), *options)
    assert "has times of another pack or log; name another file" in error_line(ended)
    assert other.read_text() == text
    for precious in ("no JSON\n", "a text without an end of its line", '{"workload": 1}'):
        other.write_text(precious)
        assert "is not a file of times" in error_line(run_fractune("measure", str(packed.pack), *options))
        assert other.read_text() == precious
    special = ["--shares", "cpu:1", "--out", "/dev/full", "--unsigned"]
    assert "/dev/full is not a regular file" in error_line(run_fractune("measure", str(packed.pack), *special))


def test_times_of_another_device_are_left_alone(packed: Packed, times: Path, tmp_path: Path) -> None:
    out, lines = tmp_path / "m.times", [json.loads(line) for line in times.read_text().splitlines()]
    for line in lines:
        if "record" in line:
            line["record"]["device"]["isa"] = "another"
    out.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    ended = run_fractune(
        "measure", str(packed.pack), "--shares", "cpu:1", "--out", str(out), "--public-key", str(packed.public)
    )
    assert ended.returncode == BadRequest.exit_code
    assert "has times of the device" in ended.stderr


def test_the_needs_of_a_host_are_listed() -> None:
    ended = run_fractune("measure", "--wheels")
    names = {line.partition("=")[0].partition(">")[0] for line in ended.stdout.splitlines()}
    assert {"apache-tvm", "apache-tvm-ffi-orcjit", "numpy", "cryptography"} <= names
    assert not {"redis", "rq", "onnx", "psutil", "nvidia-ml-py", "nvidia-cuda-nvrtc"} & names
    assert "nvidia-ml-py" in run_fractune("measure", "--wheels", "--shares", "mps:25").stdout
