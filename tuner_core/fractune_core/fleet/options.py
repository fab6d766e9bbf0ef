"""Options of server and worker processes: the command line builds them, and the process runs by them."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from fractune_core.access import TlsFiles
from fractune_core.errors import BadRequest
from fractune_core.records import COLD, WARM
from fractune_core.share_kinds import CPU
from fractune_core.shares import Share

MODEL_LIMIT_BYTES = 16 << 30
"""default limit of one model file"""


@dataclass(frozen=True, kw_only=True)
class Serving:
    """Where a server is reached, and by whom."""

    listen: str
    """HOST:PORT (port 0 = any free port) or unix:PATH"""
    insecure: bool = False
    """allow an address that other machines can reach, although calls have neither encryption nor credentials"""
    tls: TlsFiles | None = None
    """serve with TLS; every call needs a token, or with `client_ca` every connection a certificate"""
    metrics: str | None = None
    """HOST:PORT for metrics and health over HTTP; None = no such port. If other machines can reach it, it needs `tls`,
    serves HTTPS, and metrics need a token with the scope `read`."""
    audit: Path | None = None
    """file of a line of JSON for each call; None = no such file"""


@dataclass(frozen=True)
class ServerOptions(Serving):
    redis_url: str
    state_dir: Path
    """folder of models, bundles and, without `database_url`, the database. The server locks it while it runs; with
    PostgreSQL the lock is in the database."""
    secret: bytes
    """secret of the fleet: it signs bundles"""
    database_url: str | None = None
    """SQLAlchemy's URL of another database than SQLite in the state folder; a second server on one PostgreSQL waits"""
    local_socket: Path | None = None
    """with TLS: also serve at this Unix socket, without credentials, for the user of this process"""
    upload_limit_bytes: int = MODEL_LIMIT_BYTES
    """limit of one model file"""
    resume: bool = True
    """continue the jobs that an earlier server left open; otherwise they end as cancelled"""
    ready_file: Path | None = None
    """the server writes its bound address here when it serves"""


class RoleName(StrEnum):
    COMPILE = "compile"
    TUNE = "tune"
    BUILD = "build"
    MEASURE = "measure"


@dataclass(frozen=True)
class WorkerOptions:
    """How to run a worker. Raises BadRequest for options that do not fit the role."""

    role: str
    redis_url: str
    secret: bytes
    """The fleet's secret: it signs artifacts and work."""
    share: str | None = None
    """Required for measurers, and for them alone."""
    cores: list[int] | None = None
    """Cores to compute on; for a GPU's measurer, the cores that launch its kernels. None = all that this process may
    use; for a CPU's measurer, as many as its share says that no other measurer of this host has claimed."""
    lock_dir: Path | None = None
    """Folder of the lock files of this host's cores; None = one folder for all of this user's workers on this host."""
    name: str | None = None
    margin: float | None = None
    """Measurers: a trial at most this many times slower than the fastest is timed for longer; None = default."""
    cache: str = WARM
    """Measurers of a GPU: WARM or COLD."""
    max_model_memory_bytes: int | None = None
    """Memory limit of one process that reads, compiles, builds or measures for a model; None = a share of this host's.
    Tuners and measurers of a GPU have no such limit."""
    secret_files: tuple[Path, ...] = ()
    """Files with the secret and passwords: the process that reads models must not be able to read them."""

    def __post_init__(self) -> None:
        if self.role not in list(RoleName):
            raise BadRequest(f"role '{self.role}' is unknown; choose one of {', '.join(RoleName)}")
        measures = self.role == RoleName.MEASURE
        if measures and self.share is None:
            raise BadRequest("a measure worker needs a share; pass --share, such as --share cpu:1")
        if not measures and self.share is not None:
            raise BadRequest(f"--share {self.share}: only a measure worker has a share")
        if not measures and self.margin is not None:
            raise BadRequest(f"--margin {self.margin}: only a measure worker races candidates")
        if self.margin is not None and not self.margin >= 1:
            raise BadRequest(f"--margin {self.margin}: it is a factor on the fastest time; pass 1 or more, as 1.25")
        on_gpu = self.parsed_share is not None and not self.measures_on_cpu
        if self.cache == COLD and not on_gpu:
            raise BadRequest(f"--cache {self.cache}: only a measure worker with a share of a GPU can empty a cache")

    @property
    def parsed_share(self) -> Share | None:
        """Raises BadRequest for text that names no share."""
        return None if self.share is None else Share.parse(self.share)

    @property
    def measures_on_cpu(self) -> bool:
        share = self.parsed_share
        return share is not None and share.device_kind == CPU
