"""What a finished job is asked for besides its own result."""

from __future__ import annotations

from fractune.features.matrix.matrix import operator_tables
from fractune.server.job_status import job_status
from fractune.server.rpc import RpcClient
from fractune_core.pb import fractune_pb2 as pb
from tests.support.client_samples import job_script
from tests.support.processes.scripted_server import ScriptedServer, serving


def test_tables_are_of_the_operators_that_the_job_was_about() -> None:
    job = job_status(job_script()[-1])
    assert [each.selected for each in job.operators] == [True, False]
    with serving(ScriptedServer()) as server, RpcClient(server.address) as client:
        server.tables = [
            pb.OperatorTable(operator=pb.Operator(display_name=each.name, workload_hash=each.workload_hash))
            for each in job.operators
        ]
        assert [table.name for table in operator_tables(client, job)] == ["fused_conv2d"]
