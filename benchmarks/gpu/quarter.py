"""A quarter of the GPU: a percentage of MPS where there is MPS, else a green context."""

from __future__ import annotations

from dataclasses import dataclass

from fractune_core.errors import ShareUnavailable
from fractune_core.shares import Share
from fractune_workers.confinement import confinement_for
from fractune_workers.gpu.nvml import Gpu
from fractune_workers.inventory.shares import green_steps

MPS_QUARTER = "mps:25"


@dataclass(frozen=True)
class Quarter:
    share: str
    refusal: str = ""
    """why it is not one of MPS; empty when it is"""

    @property
    def note(self) -> str:
        """For the part's line."""
        return f"; skipped: {MPS_QUARTER}, {self.share} in its place ({self.refusal})" if self.refusal else ""


def quarter_of(gpu: Gpu) -> Quarter:
    refusal = refusal_of(MPS_QUARTER)
    return Quarter(green_of(gpu, 25), refusal) if refusal else Quarter(MPS_QUARTER)


def green_of(gpu: Gpu, percent: int) -> str:
    """The green context that is nearest to a percentage from below."""
    step, least = green_steps(gpu)
    return f"green:{max(least, gpu.sms * percent // 100 // step * step)}"


def refusal_of(share: str) -> str:
    """The reason why this machine lacks this share; empty where it has it. Nothing is started."""
    try:
        confinement_for(Share.parse(share)).probe()
    except ShareUnavailable as error:
        return str(error)
    return ""
