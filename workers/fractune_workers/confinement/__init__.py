"""Confinement: how a process is held to a share, one file for each mechanism.

Every mechanism has four methods. `probe` checks whether this share is possible here. `enter` runs in the child, before
TVM is loaded. `verify` runs inside, once TVM's threads run, and returns the granted share. `leave` ends it. What a
share needs outside the child, such as a daemon, is taken by the supervisor's `environment` and given back by its
`leave`. `base.py` has the interface, and its answers about faults: by default a fault stays within its process.
"""

from collections.abc import Callable, Mapping, Sequence

from fractune_core.errors import ShareUnavailable
from fractune_core.shares import Share
from fractune_workers.confinement.base import Confinement
from fractune_workers.confinement.cpu import CpuConfinement
from fractune_workers.confinement.cpu_limit import CpuLimitConfinement
from fractune_workers.confinement.full import FullConfinement, NoConfinement
from fractune_workers.confinement.green import GreenConfinement
from fractune_workers.confinement.mig import MigConfinement
from fractune_workers.confinement.mps import MpsConfinement, MpsSmConfinement

_OF_A_CPU: Mapping[str, Callable[[Share, Sequence[int]], Confinement]] = {
    "cpu": CpuConfinement,
    "cpu-limit": CpuLimitConfinement,
}
_OF_A_GPU: Mapping[str, Callable[[Share], Confinement]] = {
    "full": FullConfinement,
    "green": GreenConfinement,
    "mig": MigConfinement,
    "mps": MpsConfinement,
    "mps-sm": MpsSmConfinement,
    "none": NoConfinement,
}


def confinement_for(share: Share, units: Sequence[int] = ()) -> Confinement:
    """The confinement for `share`; `units` names the cores of a CPU share, empty = the first that this process may use.

    Raises BadRequest for a range, ShareUnavailable for a mechanism that no file here is for.
    """
    if share.ends:
        share.check_measures_kernels()
    if share.mechanism in _OF_A_CPU:
        return _OF_A_CPU[share.mechanism](share, units)
    if share.mechanism in _OF_A_GPU:
        return _OF_A_GPU[share.mechanism](share)
    raise ShareUnavailable(f"share '{share}': nothing here confines by {share.mechanism}; see `fractune shares`")


def launcher_of(confinement: Confinement) -> list[str]:
    """The command in front of that of the confined process, in which it starts confined; empty for most."""
    return confinement.launcher() if isinstance(confinement, CpuLimitConfinement) else []


def stream_of(confinement: Confinement) -> int:
    """The CUDA stream that the entered process must launch on (an address); 0, the default stream, for most shares."""
    return confinement.stream if isinstance(confinement, GreenConfinement) else 0
