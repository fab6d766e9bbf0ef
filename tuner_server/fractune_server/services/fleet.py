"""The fleet: the live workers, and the shares that they offer."""

from __future__ import annotations

from collections import Counter

import grpc

from fractune_core.convert import device_to_proto, granted_to_proto, timestamp
from fractune_core.fleet.messages import WorkerInfo
from fractune_core.names import Collection
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.pb import fractune_pb2_grpc as rpc
from fractune_core.shares import Device, GrantedShare
from fractune_server.transport.context import ServerContext
from fractune_server.transport.live_workers import live_workers


class FleetService(rpc.FleetServiceServicer):
    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def ListWorkers(self, request: pb.ListWorkersRequest, context: grpc.ServicerContext) -> pb.ListWorkersResponse:
        workers = live_workers(self._context.redis, self._context.secret).workers
        return pb.ListWorkersResponse(workers=[_encode(workers[name]) for name in sorted(workers)])

    def ListShares(self, request: pb.ListSharesRequest, context: grpc.ServicerContext) -> pb.ListSharesResponse:
        offers = live_workers(self._context.redis, self._context.secret).offers
        counts = Counter((offer.device, offer.granted) for offer in offers)
        return pb.ListSharesResponse(
            shares=[
                pb.OfferedShare(device=device_to_proto(device), granted=granted_to_proto(granted), workers=count)
                for (device, granted), count in sorted(counts.items(), key=lambda item: item[0][1].share)
            ]
        )


def _encode(worker: WorkerInfo) -> pb.Worker:
    message = pb.Worker(
        name=Collection.WORKERS.of(worker["name"]),
        role=worker["role"],
        host=worker["host"],
        pid=worker["pid"],
        start_time=timestamp(worker["started_at"]),
        versions=worker["versions"],
    )
    if worker["device"]:
        message.device.CopyFrom(device_to_proto(Device.from_json(worker["device"])))
        message.granted.CopyFrom(granted_to_proto(GrantedShare.from_json(worker["granted"])))
    return message
