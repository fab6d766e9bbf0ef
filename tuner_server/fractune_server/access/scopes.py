"""What each method asks of its caller: all of them, in one table."""

from __future__ import annotations

from fractune_core.access.tokens import Scope

_BY_SERVICE: dict[str, dict[str, Scope | None]] = {
    "fractune.v1.ModelService": {
        "UploadModel": Scope.SUBMIT,
        "GetUpload": Scope.SUBMIT,
        "GetModel": Scope.READ,
    },
    "fractune.v1.JobService": {
        "CreateJob": Scope.SUBMIT,
        "GetJob": Scope.READ,
        "ListJobs": Scope.READ,
        "CancelJob": Scope.SUBMIT,  # of a token's own jobs; the service asks those of others for OPERATE
        "WatchJob": Scope.READ,
        "ListCosts": Scope.READ,  # whose the jobs are, the service tells ADMIN alone
    },
    "fractune.v1.LogService": {
        "ListRecords": Scope.READ,
        "ExportRecords": Scope.READ,
        "ImportRecords": Scope.ADMIN,  # brings workloads that builders compile as they are
        "PruneRecords": Scope.OPERATE,
        "MatchModel": Scope.SUBMIT,  # a worker ingests the model, as for the next one
        "TabulateModel": Scope.SUBMIT,
        "ListUnreadable": Scope.READ,
        "ReplayUnreadable": Scope.OPERATE,
    },
    "fractune.v1.PlanService": {"MakePlan": Scope.SUBMIT},
    "fractune.v1.BundleService": {"DownloadBundle": Scope.READ},
    "fractune.v1.FleetService": {"ListWorkers": Scope.READ, "ListShares": Scope.READ},
    # Watch holds a thread, which nobody may have for nothing.
    "grpc.health.v1.Health": {"Check": None, "List": Scope.READ, "Watch": Scope.READ},
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": Scope.READ},
}

SCOPES: dict[str, Scope | None] = {
    f"/{service}/{method}": scope for service, methods in _BY_SERVICE.items() for method, scope in methods.items()
}
"""by the path of a call; None = open to everybody"""


def needed_scope(path: str) -> Scope | None:
    """What is not in the table is for `admin`."""
    return SCOPES.get(path, Scope.ADMIN)
