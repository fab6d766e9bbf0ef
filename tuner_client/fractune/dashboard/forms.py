"""Pages that answer a form. They are computed in this process, so the server has no work with them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from starlette.requests import Request

from fractune.dashboard.guard import check_own_page
from fractune.dashboard.reading.following import Follower
from fractune.dashboard.views.forms import comparison, fitting, planning
from fractune.dashboard.views.page import Page
from fractune.features.plan.of_jobs import JobDemand
from fractune.features.plan.slowdowns import MOST_PAIRS
from fractune.server.job_status import JobStatus
from fractune_core.analysis.pairs import MeasuredPair
from fractune_core.errors import QuotaExceeded

_T = TypeVar("_T")


class Forms:
    """`status_of` reads a job with its results."""

    def __init__(self, follower: Follower, status_of: Callable[[str], Awaitable[JobStatus]]) -> None:
        self._follower = follower
        self._status_of = status_of
        self._computing = asyncio.Lock()

    async def compare(self, request: Request) -> Page:
        named = (request.query_params.get(side, "") for side in ("a", "b"))
        sides = [await self._status_of(name) if name else None for name in named]
        seen = await self._follower.now()
        return comparison.comparison(sides[0], sides[1], seen.jobs)

    async def fit(self, request: Request) -> Page:
        given = dict(request.query_params)
        seen = await self._follower.now()
        chosen = await self._status_of(given["job"]) if given.get("job") else None
        found = None
        if chosen is not None and given.get("rate") and given.get("p99"):
            found = await self._computed(request, fitting.find_limits, chosen, given["rate"], given["p99"])
        return fitting.fitting(seen.jobs, chosen, given, found)

    async def plan(self, request: Request) -> Page:
        given = dict(request.query_params)
        seen = await self._follower.now()
        asked = planning.asked_models(*(request.query_params.getlist(name) for name in ("job", "rate", "p99")))
        demands = [JobDemand(await self._status_of(job), rate, p99) for job, rate, p99 in asked]
        asked = [(each.job.name, each.rate, each.p99) for each in demands]
        found = None
        if demands:
            found = await self._computed(request, planning.find_plan, demands, await self.pairs(), given)
        return planning.planning(seen.jobs, asked, given, found)

    async def _computed(self, request: Request, compute: Callable[..., _T], *given: object) -> _T:
        """What `compute` finds in a thread, one at a time: it takes seconds of a core. Raises QuotaExceeded, and
        ScopeMissing for a page of another site.
        """
        check_own_page(request.headers)
        if self._computing.locked():
            raise QuotaExceeded("another form is being computed; try again in some seconds")
        async with self._computing:
            return await asyncio.to_thread(compute, *given)

    async def pairs(self) -> list[MeasuredPair]:
        """The newest first."""
        return await self._follower.answer(("pairs",), lambda client: client.pairs(limit=MOST_PAIRS))
