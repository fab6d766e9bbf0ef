"""A job of a server: follow it, wait for it, cancel it, download its bundle."""

from __future__ import annotations

import os
from collections.abc import Iterator

from fractune.arguments import checked
from fractune.features.tune.bundle import BundleFile, download_bundle
from fractune.features.tune.result import TuneResult
from fractune.server.job_status import JobStatus, check_ended_well, job_status
from fractune.server.rpc import RpcClient, job_name
from fractune.sessions.progress import ProgressOption, choose_view
from fractune.sessions.requests import bundle_file, named_bundle_file
from fractune.sessions.running import follow
from fractune.text.output_files import check_writable


class Job:
    """A job of a server, from `Client.submit` or `Client.job`. It runs whether or not it is watched.

    Every method raises ServerUnreachable if the server is gone, and NotFound for an unknown job.
    """

    name: str
    """`jobs/...`"""

    def __init__(self, rpc: RpcClient, name: str) -> None:
        self.name = job_name(name)
        self._rpc = rpc

    def __repr__(self) -> str:
        return f"<Job {self.name}>"

    def status(self) -> JobStatus:
        """The job as it is now."""
        return job_status(self._rpc.get_job(self.name))

    def watch(self) -> Iterator[JobStatus]:
        """The job now and at each change, until it has ended.

        An unreachable server is awaited for `reconnect_s` of `fractune.connect`. Leaving the loop does not cancel the
        job.
        """
        return map(job_status, self._rpc.watch_job(self.name))

    @checked
    def wait(self, *, progress: ProgressOption = False) -> JobStatus:
        """Follow the job to its end and return its status. Ctrl-C ends the waiting, not the job.

        Raises the error that ended the job (BadModel, ShareUnavailable, JobFailed, ...), or JobCancelled.
        """
        with choose_view(progress) as view:
            ended = follow(self._rpc, self.name, view.show, view.show_absence)
        check_ended_well(ended)
        return ended

    def cancel(self) -> JobStatus:
        """Cancel the job; its measurements stay in the log."""
        return job_status(self._rpc.cancel_job(self.name))

    @checked
    def bundle(self, out: str | os.PathLike[str] | None = None) -> BundleFile:
        """Download the bundle to the file `out`, or as `<model>.fractune` into the folder `out` (default: the current).

        Raises JobFailed if the job has no bundle, StateUnusable if the file cannot be written.
        """
        return self._download(self.status(), out)

    @checked
    def result(self, out: str | os.PathLike[str] = ".", *, progress: ProgressOption = False) -> TuneResult:
        """Wait for the end and download the bundle to the file `out` (`*.fractune`), or into the folder `out`.

        Raises the errors of `wait` and `bundle`.
        """
        ended = self.wait(progress=progress)
        return TuneResult(ended, self._download(ended, bundle_file(out, ended.model_name)))

    def _download(self, job: JobStatus, out: str | os.PathLike[str] | None) -> BundleFile:
        path = named_bundle_file(out, job.model_name)
        check_writable("--out", path)
        return download_bundle(self._rpc, job, path)
