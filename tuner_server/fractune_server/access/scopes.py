"""The scope that each method needs: one table of all methods."""

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
        "CancelJob": Scope.SUBMIT,  # for the token's own jobs; the service requires OPERATE for the others
        "WatchJob": Scope.READ,
        "ListCosts": Scope.READ,  # the service shows the tokens of jobs to ADMIN only
    },
    "fractune.v1.LogService": {
        "ListRecords": Scope.READ,
        "ExportRecords": Scope.READ,
        "ImportRecords": Scope.ADMIN,  # builders compile imported workloads as they are
        "PruneRecords": Scope.OPERATE,
        "MatchModel": Scope.SUBMIT,  # a worker may ingest the model, as for TabulateModel
        "TabulateModel": Scope.SUBMIT,
        "ListUnreadable": Scope.READ,
        "ReplayUnreadable": Scope.OPERATE,
        "AddPair": Scope.SUBMIT,
        "ListPairs": Scope.READ,
        "AddRuntimeTimes": Scope.SUBMIT,
        "ListRuntimeTimes": Scope.READ,
    },
    "fractune.v1.PlanService": {"MakePlan": Scope.SUBMIT},
    "fractune.v1.BundleService": {"DownloadBundle": Scope.READ},
    "fractune.v1.FleetService": {"ListWorkers": Scope.READ, "ListShares": Scope.READ},
    # Watch holds a thread, so it needs a token.
    "grpc.health.v1.Health": {"Check": None, "List": Scope.READ, "Watch": Scope.READ},
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": Scope.READ},
}

SCOPES: dict[str, Scope | None] = {
    f"/{service}/{method}": scope for service, methods in _BY_SERVICE.items() for method, scope in methods.items()
}
"""by path of the call; None = open to everybody"""


def needed_scope(path: str) -> Scope | None:
    """A method that is not in the table needs the scope `admin`."""
    return SCOPES.get(path, Scope.ADMIN)
