"""The tables tuned-at x run-at of a model's operators, asked of a server."""

from __future__ import annotations

from fractune.features.matrix.cross_table import CrossTable, operator_table
from fractune.server.from_proto import operator_records
from fractune.server.job_status import JobStatus
from fractune.server.rpc import RpcClient
from fractune_core.convert import shapes_to_proto
from fractune_core.pb import fractune_pb2 as pb


def operator_tables(client: RpcClient, job: JobStatus) -> list[CrossTable]:
    """The table tuned-at x run-at of every operator that the finished job was about, from published records."""
    request = pb.TabulateModelRequest(
        model=job.model, shares=job.shares, inputs=shapes_to_proto(job.inputs), target=job.target, scope=job.scope
    )
    published = map(operator_records, client.tabulate_model(request))
    selected = {each.workload_hash for each in job.operators if each.selected}
    return [operator_table(each, job.shares) for each in published if each.operator.workload_hash in selected]
