"""The fleet: the live workers, the work that waits for them, and the shares that they offer."""

from collections import Counter

import grpc

from fractune_core.codec.messages import timestamp, to_proto
from fractune_core.fleet.messages import WorkerInfo
from fractune_core.names import Collection
from fractune_core.pb import fractune_pb2 as pb, fractune_pb2_grpc as rpc
from fractune_server.transport.context import CallContext
from fractune_server.transport.live_workers import Waiting, live_workers, waiting_work


class FleetService(rpc.FleetServiceServicer):
    def __init__(self, context: CallContext) -> None:
        self._context = context

    def ListWorkers(self, request: pb.ListWorkersRequest, context: grpc.ServicerContext) -> pb.ListWorkersResponse:
        workers = live_workers(self._context.redis, self._context.secret).workers
        sees_all = self._context.sees_fleet()
        waiting = waiting_work(self._context.redis).by_role_and_share if sees_all else {}
        return pb.ListWorkersResponse(
            workers=[_encode(workers[name], with_state=sees_all) for name in sorted(workers)],
            waiting=[_encode_waiting(*key, waiting[key]) for key in sorted(waiting) if waiting[key].depth],
        )

    def ListShares(self, request: pb.ListSharesRequest, context: grpc.ServicerContext) -> pb.ListSharesResponse:
        offers = live_workers(self._context.redis, self._context.secret).offers
        counts = Counter((offer.device, offer.granted) for offer in offers)
        return pb.ListSharesResponse(
            shares=[
                pb.OfferedShare(
                    device=to_proto(device, pb.Device), granted=to_proto(granted, pb.GrantedShare), workers=count
                )
                for (device, granted), count in sorted(counts.items(), key=lambda item: item[0][1].share)
            ]
        )


def _encode(worker: WorkerInfo, *, with_state: bool) -> pb.Worker:
    return pb.Worker(
        name=Collection.WORKERS.of(worker.name),
        role=worker.role,
        host=worker.host,
        pid=worker.pid,
        start_time=timestamp(worker.started_at),
        versions=worker.versions,
        device=to_proto(worker.device, pb.Device) if worker.device else None,
        granted=to_proto(worker.granted, pb.GrantedShare) if worker.granted else None,
        state=worker.state if with_state else "",
    )


def _encode_waiting(role: str, share: str, waiting: Waiting) -> pb.WaitingWork:
    oldest = None if waiting.oldest_at is None else timestamp(waiting.oldest_at)
    return pb.WaitingWork(role=role, share=share, pieces=waiting.depth, oldest_time=oldest)
