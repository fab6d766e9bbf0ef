"""Sizes by name in a call of the server: the job has the shapes that follow, or is refused before it exists."""

from pathlib import Path

import grpc
import pytest

from fractune_core.pb import fractune_pb2 as pb
from tests.support.decoders import write_plain_decoder
from tests.support.processes.server_process import Client, simulated_stack
from tests.unit.client.cli.commands.models.test_inspect import saved

REFUSED: dict[str, tuple[dict[str, int], str]] = {
    "an unknown name": ({"n": 4}, "no open axis is named 'n'; the model leaves 'b', 's', 'past' open"),
    "a size of 0": ({"s": 0}, "size 's' is 0; it must be from 1 to 2,147,483,647"),
    "a large size": ({"s": 2**62}, "size 's' is 4611686018427387904; it must be from 1"),
    "a contradiction": ({"s": 1, "past": 64, "attention_mask:1": 17}, "past + s (65) and 17 must be equal"),
    "an open axis": ({"s": 1}, "input 'input_ids' has open axes ([b, s]); give all"),
    "a long name": ({"n" * 8000: 4}, "no open axis is named 'nnn"),
    "many names": ({f"name_{at}": 4 for at in range(2000)}, "16384 is the limit"),
}


def created(client: Client, model: str, sizes: dict[str, int]) -> pb.Job:
    spec = pb.JobSpec(model=model, shares=["cpu:1"], trials=1)
    return client.jobs.CreateJob(pb.CreateJobRequest(spec=spec, sizes=sizes))


def test_a_job_has_the_shapes_that_follow_from_sizes_and_no_other_sizes_make_one(tmp_path: Path) -> None:
    payload = write_plain_decoder(tmp_path / "m.onnx", total="past + s").read_bytes()
    with simulated_stack(tmp_path / "state") as (_, _, _, client):
        model, other = client.upload(payload), client.upload(b"{}")
        job = created(client, model, {"s": 1, "past": 64, "b": 2})
        shapes = {name: list(shape.dims) for name, shape in job.spec.inputs.items()}
        cache = {f"past.{part}.{layer}": [2, 2, 64, 16] for part in ("key", "value") for layer in range(2)}
        assert shapes == {"input_ids": [2, 1], "attention_mask": [2, 65], **cache}
        for name, (sizes, says) in REFUSED.items():
            with pytest.raises(grpc.RpcError) as refused:
                created(client, model, sizes)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT, name
            assert says in str(refused.value.details()), name
            assert len(str(refused.value.details())) < 1000, name
        with pytest.raises(grpc.RpcError, match="sizes need an ONNX file"):
            created(client, other, {"s": 1})
        long_names: dict[str, list[int | str | None]] = {f"{at}{'x' * 9000}": ["n"] for at in range(9)}
        large = client.upload(saved(tmp_path / "large.onnx", long_names).read_bytes())
        with pytest.raises(grpc.RpcError, match=r"the job's spec has 81[0-9]* bytes, and 16384 is the limit"):
            created(client, large, {"n": 4})
        assert len(client.jobs.ListJobs(pb.ListJobsRequest()).jobs) == 1
