"""`fractune.bundle`: the best schedules of the log, compiled; the bundle file, and the folder of an image with it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from fractune.features.parts.parts import with_remedy
from fractune.models.open_sizes import sized_model
from fractune.models.source import ModelSource
from fractune.server.job_status import JobStatus
from fractune.server.rpc import RECONNECT_S, RpcClient
from fractune.sessions.progress import ProgressOption, choose_view
from fractune.sessions.session import PathText, PlaceOptions, finished_job
from fractune.text.output_files import new_bundle
from fractune_core.analysis.match import DEFAULT_POLICY, Policy
from fractune_core.errors import BadModel, BadRequest, FractuneError, JobFailed, StateUnusable
from fractune_core.files.bundles import Bundle
from fractune_core.files.compared import MODEL
from fractune_core.files.new_bundle import NewBundle, Serves
from fractune_core.jobs import JobSpec, LogOptions
from fractune_core.model_inputs import Inputs, Sizes, shapes_in
from fractune_core.names import ROBUST_VARIANT
from fractune_core.share_kinds import CPU
from fractune_core.shares import with_kernel_shares

_WHEEL = re.compile(r"fractune_runtime-[\w.]+-py3-none-[\w.]+\.whl")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_RUN_S = 600
_DOCKERFILE = """\
# Written by fractune. Python must be {python}: the hashes in requirements.txt are of its wheels.
FROM python:{python}-slim-bookworm
WORKDIR /srv
COPY requirements.txt {wheel} ./
RUN pip install --no-cache-dir --require-hashes -r requirements.txt && rm requirements.txt {wheel}
COPY {bundle} ./
# Any user may run it, on a read-only root.
USER 10001:0
ENV BUNDLE=/srv/{bundle} PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# Replace it by your server: it says which variant this machine's share gets.
CMD ["python", "-c", "import os, fractune_runtime as f; print(f.load(os.environ['BUNDLE']).choice)"]
"""


def write_image(bundle: Path, wheel: Path, folder: Path) -> None:
    """Write the bundle, the wheel of `fractune-runtime`, `requirements.txt` and a `Dockerfile` into a new folder. pip
    finds the newest versions for this Python. Raises BadBundle, BadRequest, FractuneError when pip fails,
    StateUnusable.
    """
    if not _WHEEL.fullmatch(wheel.name) or not wheel.is_file():
        raise BadRequest(f"{wheel} is not a wheel of fractune-runtime; make one by 'make runtime-wheel'")
    if not _NAME.fullmatch(bundle.name):
        raise BadRequest(f"an image cannot hold a file named {bundle.name!r}; rename it to letters, digits, . _ and -")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    with contextlib.closing(Bundle(bundle)) as opened:
        wanted = _wanted(opened.manifest, wheel)
    lines = _pinned(wanted, wheel)
    try:
        folder.mkdir(parents=True)
        shutil.copyfile(bundle, folder / bundle.name)
        shutil.copyfile(wheel, folder / wheel.name)
        (folder / "requirements.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        text = _DOCKERFILE.format(python=python, wheel=wheel.name, bundle=bundle.name)
        (folder / "Dockerfile").write_text(text, encoding="utf-8")
    except FileExistsError as error:
        raise BadRequest(f"{folder} is there already; remove it, or name another bundle by --out") from error
    except OSError as error:
        raise StateUnusable(f"{folder}: {error.strerror or error}; free some space") from error


def _wanted(manifest: dict[str, Any], wheel: Path) -> list[str]:
    """The wheel, with the extras that this bundle needs, and the runtimes that serve some of its shares."""
    extras = ["onnxruntime"] if "stages" in manifest else []
    if manifest["device"]["kind"] != CPU:
        extras.append("cuda")
    runtimes = manifest.get("runtimes", {}) if "stages" in manifest or MODEL in manifest["sha256"] else {}
    own = f"{wheel.absolute()}[{','.join(extras)}]" if extras else str(wheel.absolute())
    return [own, *(f"{name}=={runtime['version']}" for name, runtime in sorted(runtimes.items()))]


def _pinned(wanted: list[str], wheel: Path) -> list[str]:
    """A line for each package that pip would install, with the hash of the file."""
    options = ["--dry-run", "--ignore-installed", "--only-binary=:all:", "--quiet", "--report", "-"]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", *options, *wanted]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_RUN_S)
    except subprocess.TimeoutExpired as error:
        raise FractuneError(f"pip found no versions within {_RUN_S} s; try again") from error
    if ended.returncode:
        lines = [line for line in ended.stderr.splitlines() if line.startswith("ERROR")] or ended.stderr.splitlines()
        raise FractuneError(f"pip found no versions: {lines[-1] if lines else 'it printed nothing'}")
    pinned = [f"./{wheel.name} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}"]
    for each in json.loads(ended.stdout)["install"]:
        name, version = each["metadata"]["name"], each["metadata"]["version"]
        if name != "fractune-runtime":
            pinned.append(
                f"{name}=={version} --hash=sha256:{each['download_info']['archive_info']['hashes']['sha256']}"
            )
    return pinned


if TYPE_CHECKING:
    from fractune_runtime.model import Model

POLICIES = ("shares", ROBUST_VARIANT)


@dataclass(frozen=True)
class BundleFile:
    """A bundle on disk; it can be passed wherever a path is expected."""

    path: Path
    job: str = ""
    """`jobs/...` that made it"""

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    @property
    def skipped_shares(self) -> dict[str, str]:
        """The shares that were wanted too and could not be verified, each with the cause. Raises BadBundle."""
        with contextlib.closing(Bundle(self.path)) as opened:
            found = [opened, *opened.members]
            return dict(pair for each in found for pair in each.manifest.get("skipped_shares", {}).items())

    def load(
        self, *, share: str | None = None, public_key: str | bytes | None = None, policy: Policy = DEFAULT_POLICY
    ) -> Model:
        """Load the bundle for the share of this process, or for `share`: see `fractune.load`.

        Raises BadBundle, BadRequest, ShareUnavailable, or FractuneError if TVM's runtime is not installed.
        """
        from fractune_runtime.loading import load

        return load(self.path, share=share, public_key=public_key, policy=policy)

    def sign(self, private_key_pem: str | bytes) -> None:
        """Sign the file in place by an Ed25519 key: see `fractune.sign_bundle`. Raises BadBundle, BadRequest."""
        from fractune_runtime.signatures import sign_bundle

        sign_bundle(self.path, private_key_pem)

    def verify(self, *, public_key: str | bytes | None = None) -> None:
        """Check every byte of the file: see `fractune.verify_bundle`. Raises BadBundle, BadRequest."""
        from fractune_runtime.loading import verify_bundle

        verify_bundle(self.path, public_key=public_key)


def bundle(
    model: ModelSource,
    shares: str | Sequence[str],
    *,
    policy: str = "shares",
    rerank: int = 1,
    exact: bool = False,
    inputs: Inputs | None = None,
    sizes: Sizes | None = None,
    run_script: bool = False,
    out: PathText | None = None,
    force: bool = False,
    server: str | None = None,
    state: PathText | None = None,
    progress: ProgressOption = True,
    reconnect_s: float = RECONNECT_S,
    **options: Unpack[LogOptions],
) -> BundleFile:
    """Compile the log's best schedules of a model for `shares`, without a search.

    By `policy` the bundle has a variant for each share (`shares`), or the variant with the smallest loss at its worst
    share (`robust`). Of every share's best schedules, `rerank` are measured at these shares if the log lacks them. The
    bundle is the file `out` (default: `<model>.fractune` in the current folder).

    The other options and errors are those of `tune`.
    """
    if policy not in POLICIES:
        raise BadRequest(f"--policy '{policy}': write {' or '.join(POLICIES)}")
    variants = ROBUST_VARIANT if policy == ROBUST_VARIANT else ""
    with sized_model(model, run_script=run_script, inputs=inputs, sizes=sizes) as (path, shapes):
        written = new_bundle(out, path.name, force=force)
        spec = JobSpec.requested(
            path.name, shares, variants=variants, rerank=rerank, exact=exact, inputs=shapes, **options
        )
        check_kept(written, [spec])
        try:
            with finished_job(path, spec, PlaceOptions(server, state, reconnect_s), choose_view(progress)) as (
                place,
                job,
            ):
                return download_bundle(place.client, job, written)
        except BadModel as error:
            remedy = "or 'fractune tune' the model: it makes a bundle in parts, and ONNX Runtime runs this node"
            raise with_remedy(spec, error, remedy) from error


def check_kept(new: NewBundle, specs: Sequence[JobSpec]) -> None:
    """Raises BadRequest before any work if a bundle of these jobs would lose shares or shapes of the one there."""
    new.check(Serves(with_kernel_shares(specs[0].shares), [shapes_in(spec.inputs) for spec in specs]))


def download_bundle(client: RpcClient, job: JobStatus, new: NewBundle) -> BundleFile:
    """Download the job's bundle. Raises JobFailed if the job has none, the errors of `NewBundle`, StateUnusable."""
    if not job.bundle:
        raise JobFailed(f"{job.name} has no bundle: it is {job.state.value}")
    client.download_bundle(job.bundle, new)
    return BundleFile(new.path, job.name)
