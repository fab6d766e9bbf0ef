"""`fractune.bundle`: the best schedules of the log, compiled, and the bundle file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from fractune.features.parts.parts import with_remedy
from fractune.models.open_sizes import sized_model
from fractune.models.source import ModelSource
from fractune.server.job_status import JobStatus
from fractune.server.rpc import RECONNECT_S, RpcClient
from fractune.sessions.progress import ProgressOption, choose_view
from fractune.sessions.session import PathText, PlaceOptions, finished_job
from fractune.text.output_files import new_bundle
from fractune_core.analysis.match import DEFAULT_POLICY, Policy
from fractune_core.errors import BadModel, BadRequest, JobFailed
from fractune_core.files.bundles import Bundle
from fractune_core.files.new_bundle import NewBundle, Serves
from fractune_core.jobs import JobSpec, LogOptions
from fractune_core.model_inputs import Inputs, shapes_in
from fractune_core.named_sizes import Sizes
from fractune_core.names import ROBUST_VARIANT
from fractune_core.shares import with_kernel_shares

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
