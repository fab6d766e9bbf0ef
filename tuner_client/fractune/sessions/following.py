"""A job of a server: handed in, and followed to its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fractune.server.from_proto import job_status
from fractune.server.job_status import JobStatus
from fractune.server.rpc import Absence, RpcClient
from fractune_core.convert import spec_to_proto
from fractune_core.errors import JobFailed
from fractune_core.jobs import JobSpec
from fractune_core.names import Collection


def submit(client: RpcClient, model: Path, spec: JobSpec) -> str:
    """Send the model unless the server has it, and create the job; its name."""
    sha256 = Collection.MODELS.parse(client.upload_model(model).name)
    return client.create_job(spec_to_proto(replace(spec, model=sha256))).name


def follow(
    client: RpcClient, job: str, show: Callable[[JobStatus], None], tell: Callable[[Absence], None]
) -> JobStatus:
    """Show the job whenever it has changed until it has ended, and return it; `tell` of a server that is away."""
    ended = None
    for message in client.watch_job(job, tell):
        ended = job_status(message)
        show(ended)
    if ended is None:
        raise JobFailed(f"the server said nothing about {job}; look at its log")
    return ended
