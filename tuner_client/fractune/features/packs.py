"""`fractune pack`: candidates of a model, built here to be measured on another machine; `fractune measure` there, and
what that machine needs.

Of TVM a measuring host loads the runtime alone, which is a fiftieth of the wheel. So the wheels are written again,
without TVM's compiler and without files that only compilers and tests read, and compressed better.
"""

import contextlib
import csv
import importlib.metadata
import io
import re
import subprocess
import sys
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fractune.features.noise import children_find_us
from fractune.local.programs import make_pack, measure_pack
from fractune.models.open_sizes import sized_model
from fractune.models.source import ModelSource
from fractune.server.rpc import RpcClient
from fractune.sessions.progress import LineProgress, line_reporter
from fractune.sessions.session import PathText, named_server, running_stack_of, session, state_folder
from fractune.text.output_files import check_free, check_writable
from fractune_core.codec.messages import from_proto
from fractune_core.errors import BadRequest, FractuneError, StateUnusable
from fractune_core.files.packs import MOST_CANDIDATES, SUFFIX, Pack
from fractune_core.fleet.messages import PastTrial
from fractune_core.model_inputs import Inputs, Sizes, as_shapes
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.records import Kind, Status, TuningRecord
from fractune_core.shares import Share, share_names, with_kernel_shares

_LOG = "fractune.db"
_MOST_CORES = 4096


def pack(
    model: ModelSource,
    *,
    out: PathText | None = None,
    target: str = "",
    candidates: int = 48,
    cores: int = 1,
    only: str = "",
    inputs: Inputs | None = None,
    sizes: Sizes | None = None,
    run_script: bool = False,
    seed: int = 0,
    private_key: str | bytes | None = None,
    force: bool = False,
    server: str | None = None,
    state: PathText | None = None,
    progress: LineProgress = True,
) -> dict[str, Any]:
    """Build `candidates` of each operator of a model for `target`, and write them to one file, without measuring.

    `fractune measure` measures the file on a machine that has no compiler. `target` is a TVM target, by default this
    host's CPU; `cores` are those of the largest CPU share. `only` names operators by parts of their names. The search
    learns from the log of `server`, or of the folder `state`, if one of them has measured these operators.
    `private_key` (PEM) signs the file. The file is `out` (default: `<model>.pack` in the current folder).

    Returns the pack's numbers. Raises BadModel, BadRequest, StateUnusable.
    """
    if not 1 <= candidates < MOST_CANDIDATES:
        raise BadRequest(f"--candidates is {candidates}; it must be from 1 to {MOST_CANDIDATES - 1}")
    if not 1 <= cores <= _MOST_CORES:
        raise BadRequest(f"--cores is {cores}; it must be from 1 to {_MOST_CORES}")
    if private_key is not None:
        from fractune_runtime.signatures import check_private_key

        check_private_key(private_key)
    with contextlib.ExitStack() as held:
        report = line_reporter(progress)
        path, found_shapes = held.enter_context(
            sized_model(model, run_script=run_script, inputs=inputs, sizes=sizes, report=report)
        )
        written = Path(f"{path.stem}{SUFFIX}" if out is None else out).absolute()
        check_free(written, force=force)
        check_writable("--out", written)
        shapes = as_shapes(found_shapes or {})
        history = held.enter_context(_log_of(state, server))
        held.enter_context(children_find_us())
        found = make_pack(
            history,
            report,
            model=path,
            out=written,
            target=target,
            candidates=candidates,
            cores=cores,
            only=only,
            inputs=shapes,
            seed=seed,
        )
    if private_key is not None:
        from fractune_runtime.signatures import sign_sealed

        sign_sealed(Pack, written, private_key)
    return {**found, "signed": private_key is not None}


@contextlib.contextmanager
def _log_of(state: PathText | None, server: str | None) -> Iterator[Callable[[str, str], list[PastTrial]]]:
    """The earlier trials of an operator by workload hash and target key; none without a log."""
    has_log = named_server(state, server) or running_stack_of(state) or (state_folder(state) / _LOG).exists()
    if not has_log:
        yield lambda _workload_hash, _target_key: []
        return
    with session(RpcClient, state, server) as client:
        yield partial(_trials, client)


def _trials(client: RpcClient, workload_hash: str, target_key: str) -> list[PastTrial]:
    parts = client.export_records(pb.RecordFilter(operator=workload_hash, kind=Kind.TRIAL.value), with_workloads=False)
    records = [from_proto(TuningRecord, part.record) for part in parts if part.WhichOneof("part") == "record"]
    return past_trials([record for record in records if record.target_key == target_key])


def past_trials(records: Sequence[TuningRecord]) -> list[PastTrial]:
    """Trials at the shares of the device with the most records, of candidates that were measured at all of these."""
    by_device: dict[str, dict[tuple[str, str], dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for record in records:
        if record.status.built:
            secs = record.median_s if record.status is Status.OK else 0.0
            by_device[record.device.key][record.candidate_id, record.trace][record.share] = secs
    most: Mapping[tuple[str, str], Mapping[str, float]] = max(by_device.values(), key=len, default={})
    shares = {share for each in most.values() for share in each}
    return [PastTrial(name, trace, dict(each)) for (name, trace), each in most.items() if each.keys() == shares]


_MOST_MINUTES = 7 * 24 * 60.0


def measure(
    path: PathText,
    shares: str | Sequence[str],
    *,
    public_key: str | bytes | None,
    out: PathText | None = None,
    minutes: float | None = None,
    progress: LineProgress = True,
) -> dict[str, Any]:
    """Measure the pack at `path` at shares of this machine, for `minutes` at most, and write the times to `out`.

    For a CPU limit, or a range of shares, kernels are measured at the shares that `tune` measures them at. The pack's
    code runs only with the signature of the owner of `public_key` (PEM); None runs any pack. The file `out`
    (default: `<pack>.times` in the current folder) goes on from where an earlier call has ended. `fractune log import`
    takes it into a log.

    Returns numbers of the file. Raises BadBundle, BadRequest, ShareUnavailable, StateUnusable.
    """
    path = Path(path)
    if minutes is not None and not 0 < minutes <= _MOST_MINUTES:
        raise BadRequest(f"--minutes is {minutes:g}; it must be above 0, and at most {_MOST_MINUTES:g}")
    named = map(Share.parse, with_kernel_shares(share_names(shares)))
    requested = [share for share in named if share.kind.measures_kernels]
    if len({share.device_kind for share in requested}) > 1:
        raise BadRequest("--shares are of a CPU and of a GPU; measure the pack for each apart")
    written = Path(f"{path.stem}.times" if out is None else out).absolute()
    check_writable("--out", written)
    with contextlib.closing(_opened(path, public_key)) as pack, children_find_us():
        return measure_pack(pack, written, requested, minutes, line_reporter(progress))


def _opened(path: Path, public_key: str | bytes | None) -> Pack:
    if public_key is None:
        return Pack(path)
    from fractune_runtime.signatures import signature_check

    return Pack(path, signature_check(public_key))


_EXTRAS = {"cpu": ("run", "sign"), "cuda": ("run", "sign", "cuda")}
"""that a measuring host needs, by kind of device"""
_COMPILERS = ("nvidia-cuda-nvrtc", "nvidia-cuda-crt")
"""of the extra `cuda`, for builders"""
_PLATFORMS = ("manylinux_2_34", "manylinux_2_28", "manylinux_2_27", "manylinux_2_24", "manylinux_2_17", "manylinux2014")
_OLD_PLATFORMS = ("manylinux2010", "manylinux1")
_PYTHON = re.compile(r"3\.(?:1[1-9]|[2-9]\d)")
_TVM = "apache_tvm-"
_COMPILER_OF_TVM = re.compile(r"tvm/(?!__init__\.py$|lib/libtvm_runtime)")
_NOT_RUN = re.compile(r"(?:^|/)tests/|\.(?:a|c|cc|cpp|h|hpp|pxd|pxi|pyi|pyx)$")


def requirements(kind: str) -> list[str]:
    """The requirements that pip installs on a host that measures packs: for shares of a `cpu` or of a GPU (`cuda`)."""
    declared = importlib.metadata.requires("fractune")
    if declared is None:
        raise FractuneError("fractune is not installed as a package here, so its requirements are not known")
    found: dict[str, None] = {}
    for each in declared:
        requirement, _, marker = each.partition(";")
        wanted = not marker or any(f"extra == '{name}'" in marker.replace('"', "'") for name in _EXTRAS[kind])
        if wanted and not requirement.startswith(_COMPILERS):
            found[requirement.strip()] = None
    return list(found)


def carry_wheels(folder: Path, kind: str, python: str = "") -> dict[str, int]:
    """Write the wheels that a Linux x86-64 host with this Python (`3.12`; empty = as here) needs into the folder, which
    is new or empty. Returns their sizes in bytes by name. Raises BadRequest, FractuneError when pip fails,
    StateUnusable.
    """
    version = python or f"3.{sys.version_info.minor}"
    if not _PYTHON.fullmatch(version):
        raise BadRequest(f"'{python[:20]}' is not a version of Python such as 3.12; 3.11 is the oldest")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise BadRequest(f"{folder} is not empty; name a new folder for the wheels")
        with tempfile.TemporaryDirectory(prefix="fractune-wheels-") as fetched:
            _download(Path(fetched), requirements(kind), version)
            for wheel in sorted(Path(fetched).glob("*.whl")):
                write_smaller(wheel, folder / wheel.name)
    except OSError as error:
        raise StateUnusable(f"{folder}: {error.strerror or error}; free some space, or name another folder") from error
    return {path.name: path.stat().st_size for path in sorted(folder.glob("*.whl"))}


def _download(folder: Path, wanted: list[str], version: str) -> None:
    platforms = [option for name in (*_PLATFORMS, *_OLD_PLATFORMS) for option in ("--platform", f"{name}_x86_64")]
    options = ["--only-binary=:all:", "--python-version", version, "--implementation", "cp", *platforms]
    command = [sys.executable, "-m", "pip", "download", "-q", *options, "-d", str(folder), *wanted]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        lines = [line for line in ended.stderr.splitlines() if line.startswith("ERROR")] or ended.stderr.splitlines()
        raise FractuneError(f"pip could not fetch the wheels: {lines[-1] if lines else 'it printed nothing'}")


def write_smaller(wheel: Path, out: Path) -> None:
    """Write the wheel without what a measuring host never reads. Its list of files has those that are left."""
    dropped = _COMPILER_OF_TVM if wheel.name.startswith(_TVM) else _NOT_RUN
    with zipfile.ZipFile(wheel) as given, zipfile.ZipFile(out, "w", zipfile.ZIP_LZMA) as made:
        for entry in given.infolist():
            name, content = entry.filename, given.read(entry)
            if dropped.search(name):
                continue
            if name.endswith(".dist-info/RECORD"):
                content = _listed(content, dropped)
            made.writestr(name, content)


def _listed(record: bytes, dropped: re.Pattern[str]) -> bytes:
    rows = [row for row in csv.reader(io.StringIO(record.decode())) if row and not dropped.search(row[0])]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
