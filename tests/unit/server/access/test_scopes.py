"""Every method of every service that the server has is in the table, and the table has no others."""

from __future__ import annotations

from typing import Any

from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from fractune_core.access.tokens import Scope
from fractune_core.pb import fractune_pb2 as pb
from fractune_server.access.authenticator import SCOPES, needed_scope


def paths(file: Any) -> set[str]:
    services = file.services_by_name.values()
    return {f"/{service.full_name}/{method.name}" for service in services for method in service.methods}


def test_every_method_has_an_entry() -> None:
    served = paths(pb.DESCRIPTOR) | paths(health_pb2.DESCRIPTOR) | paths(reflection_pb2.DESCRIPTOR)
    assert set(SCOPES) == served


def test_the_health_check_alone_is_open() -> None:
    assert [path for path, scope in SCOPES.items() if scope is None] == ["/grpc.health.v1.Health/Check"]


def test_what_each_scope_opens() -> None:
    """As docs/security.md has it; what is not named here shows something, and is for `read`."""
    beyond_reading = {
        Scope.SUBMIT: {
            *("UploadModel", "GetUpload", "CreateJob", "CancelJob"),
            *("MatchModel", "TabulateModel", "MakePlan", "AddPair", "AddRuntimeTimes"),
        },
        Scope.OPERATE: {"PruneRecords"},
        Scope.ADMIN: {"ImportRecords", "ListUnreadable", "ReplayUnreadable"},
    }
    for path, scope in SCOPES.items():
        method = path.rpartition("/")[2]
        named = next((each for each, methods in beyond_reading.items() if method in methods), Scope.READ)
        assert scope in {named, None}, path


def test_what_is_not_in_the_table_is_for_admins() -> None:
    assert needed_scope("/fractune.v1.JobService/Explode") is Scope.ADMIN


def test_each_scope_includes_those_before_it() -> None:
    order = [Scope.READ, Scope.SUBMIT, Scope.OPERATE, Scope.ADMIN]
    assert all(order[i].includes(order[j]) is (i >= j) for i in range(4) for j in range(4))
