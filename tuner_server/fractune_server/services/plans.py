"""Plans, made from a request and the tuning log."""

from __future__ import annotations

import grpc

from fractune_core.codec.messages import to_proto
from fractune_core.errors import BadRequest
from fractune_core.names import Collection
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.pb import fractune_pb2_grpc as rpc
from fractune_core.planning.devices import DeviceType
from fractune_core.planning.planner import make_plan
from fractune_core.planning.speeds import Row, measured_rows
from fractune_core.planning.wire import LoggedModel, request_from_proto
from fractune_server.access.authenticator import caller
from fractune_server.selection.model_match import Matcher, MatchQuery


class PlanService(rpc.PlanServiceServicer):
    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher

    def MakePlan(self, request: pb.MakePlanRequest, context: grpc.ServicerContext) -> pb.Plan:
        def rows_of(logged: LoggedModel, device: DeviceType) -> tuple[Row, ...]:
            batch = logged.requests_per_run
            if batch < 1:
                raise BadRequest(f"{logged.model}: requests_per_run is {batch}; it must be 1 or more")
            model = Collection.MODELS.parse(logged.model)
            query = MatchQuery(model, logged.inputs, "", context.time_remaining(), caller().token_id)
            times = self._matcher.times(query, device)
            return measured_rows(times.operators_s, times.whole_s, batch)

        plan_request = request_from_proto(request, rows_of)
        return to_proto(make_plan(plan_request, simulated=request.simulate, seed=request.seed), pb.Plan)
