"""Many watchers of one job: how many the server takes, the refusal of the next one, and the arrival of the end."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import grpc

from fractune_core.pb import fractune_pb2 as pb, fractune_pb2_grpc as rpc

_CHANNELS = 20
_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Crowd:
    watchers: int
    """that the server took"""
    refused: str
    """the refusal of the next one; empty when none was refused"""
    first_s: float
    """until the last of them had its first message"""
    end_s: float
    """from the call that cancels the job until the last watcher received the end"""
    told: int
    """watchers that received the end"""
    server_bytes: int
    """that the server's memory had grown by"""


def watch_together(address: str, job: str, most: int) -> Crowd:
    """`most` watchers at once, or as many as there may be, and one more; then the job is cancelled."""
    return asyncio.run(_watch(address, job, most))


async def _watch(address: str, job: str, most: int) -> Crowd:
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(_CHANNELS)]
    stubs: list[Any] = [rpc.JobServiceStub(channel) for channel in channels]
    began = time.perf_counter()
    calls = [stubs[number % _CHANNELS].WatchJob(pb.WatchJobRequest(name=job)) for number in range(most)]
    firsts = await asyncio.gather(*(call.read() for call in calls), return_exceptions=True)
    first_s = time.perf_counter() - began
    taken = [call for call, first in zip(calls, firsts, strict=True) if isinstance(first, pb.Job)]
    refused = next((first for first in firsts if isinstance(first, grpc.aio.AioRpcError)), None)
    if refused is None:
        refused = await _refusal(stubs[0], job)
    ends = [asyncio.create_task(_end(call)) for call in taken]
    cancelled = time.perf_counter()
    await stubs[0].CancelJob(pb.CancelJobRequest(name=job), timeout=_TIMEOUT_S)
    ends_seen = await asyncio.wait_for(asyncio.gather(*ends), _TIMEOUT_S)
    end_s = time.perf_counter() - cancelled
    for channel in channels:
        await channel.close()
    refusal = "" if refused is None else f"{refused.code().name}: {refused.details()}"
    return Crowd(len(taken), refusal, first_s, end_s, sum(ends_seen), 0)


async def _refusal(stub: Any, job: str) -> grpc.aio.AioRpcError | None:
    """The refusal of one more watcher; None when it is not."""
    call = stub.WatchJob(pb.WatchJobRequest(name=job))
    try:
        await call.read()
    except grpc.aio.AioRpcError as error:
        return error
    call.cancel()
    return None


async def _end(call: grpc.aio.UnaryStreamCall[pb.WatchJobRequest, pb.Job]) -> bool:
    """Return True if the watch received the job's end."""
    last = pb.Job()
    while isinstance(message := await call.read(), pb.Job):
        last = message
    return last.HasField("end_time")
