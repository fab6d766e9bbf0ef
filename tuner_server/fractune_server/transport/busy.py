"""How long workers were busy for a job, as they count it themselves."""

from __future__ import annotations

from typing import cast

from redis import Redis

from fractune_core.messages import busy_key


def busy_s(redis: Redis, job: str) -> dict[str, float]:
    """Seconds by what they did (`Work.do`); what Redis has lost is missing."""
    counted = cast("dict[bytes, bytes]", redis.hgetall(busy_key(job)))
    return {do.decode(): float(secs) for do, secs in sorted(counted.items())}
