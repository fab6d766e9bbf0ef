"""Plans, made from a request and the tuning log, each in a process of its own: their work has no bound but time."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable

import grpc

from fractune_core.errors import BadRequest, FractuneError, QuotaExceeded, ServerUnreachable, error_from_name
from fractune_core.names import Collection
from fractune_core.pb import fractune_pb2 as pb, fractune_pb2_grpc as rpc
from fractune_core.planning import planner
from fractune_core.planning.devices import DeviceType
from fractune_core.planning.speeds import Row, measured_rows
from fractune_core.planning.wire import LoggedModel, add_logged_rows
from fractune_server.authenticator import Places, caller
from fractune_server.selection.model_match import Matcher, MatchQuery
from fractune_server.transport.context import TenantView

PLANS_AT_ONCE = 4
LONGEST_S = 120.0
"""of a plan"""

_log = logging.getLogger(__name__)


class PlanService(rpc.PlanServiceServicer):
    def __init__(self, view: Callable[[], TenantView], matcher: Matcher) -> None:
        self._view = view
        self._matcher = matcher
        self._places = Places(PLANS_AT_ONCE, "plans", wait_s=0.0)

    def MakePlan(self, request: pb.MakePlanRequest, context: grpc.ServicerContext) -> pb.Plan:
        def rows_of(logged: LoggedModel, device: DeviceType) -> tuple[Row, ...]:
            batch = logged.requests_per_run
            if batch < 1:
                raise BadRequest(f"{logged.model}: requests_per_run is {batch}; it must be 1 or more")
            view, left_s, owner = self._view(), context.time_remaining(), caller().owner
            model = view.models.get(Collection.MODELS.parse(logged.model))
            own = view.of_tenant(model.tenant)
            query = MatchQuery(model.sha256, logged.inputs, "", left_s, owner, own, is_wanted=context.is_active)
            times = self._matcher.times(query, device)
            return measured_rows(times.operators_s, times.whole_s, times.disturbed_s, batch)

        add_logged_rows(request, rows_of)  # before the plan has its place, because a model may have to be read
        with self._places.place(caller().owner):
            return _planned(request.SerializeToString(), context)


def _planned(request: bytes, context: grpc.ServicerContext) -> pb.Plan:
    """Raises what the plan's process reports, QuotaExceeded when it takes too long, and ServerUnreachable when the
    caller has left.
    """
    # It uses none of the server's own options, which may be secrets.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FRACTUNE_")}
    command = [sys.executable, "-P", "-m", planner.__name__, str(os.getpid())]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment) as child:
        try:
            if not context.add_callback(child.kill):  # the call has ended already
                child.kill()
            answer, said = child.communicate(request, min(context.time_remaining() or LONGEST_S, LONGEST_S))
        except subprocess.TimeoutExpired:
            raise QuotaExceeded(
                f"the plan takes longer than {LONGEST_S:.0f} s, and none may; plan fewer models or devices at once, or "
                "without a simulation"
            ) from None
        finally:
            child.kill()
    _check_active(context)
    if child.returncode == planner.REFUSED:
        name, _, message = answer.decode().partition("\n")
        raise error_from_name(name, message)
    if child.returncode:
        _log.error("a plan's process ended with %d: %s", child.returncode, said.decode(errors="replace")[-2000:])
        raise FractuneError("the plan failed; see the server's log")
    return pb.Plan.FromString(answer)


def _check_active(context: grpc.ServicerContext) -> None:
    if not context.is_active():
        raise ServerUnreachable("the caller has left")
