"""The site: a URL for each view, as a page for browsers and as JSON for programs (`Accept: application/json`)."""

import asyncio
import contextlib
import hashlib
import hmac
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, select_autoescape
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from fractune.dashboard.following import Follower, JobTrials, Snapshot, Trial, paced
from fractune.dashboard.guard import Guard, GuardOptions, check_own_page
from fractune.dashboard.views import job, log, model, operator, overview, planning
from fractune.dashboard.views.page import Page, ago_from, grouped, part_jobs, plain_moment
from fractune.dashboard.views.parts import FILTERS
from fractune.features.client import Client
from fractune.features.log.log import FilterOptions
from fractune.features.log.match import MatchResult
from fractune.features.matrix.cross_table import CrossTable
from fractune.features.plan.plan import JobDemand
from fractune.features.plan.slowdowns import MOST_PAIRS
from fractune.server.job_status import JobStatus, OperatorStatus
from fractune_core import errors
from fractune_core.analysis.model_times import MeasuredPair, RuntimeTime
from fractune_core.errors import BadRequest, FractuneError, NotFound, QuotaExceeded, ScopeMissing, ServerUnreachable
from fractune_core.names import Collection
from fractune_core.records import Kind, TuningRecord


def wants_json(request: Request) -> bool:
    return request.query_params.get("as") == "json" or _accepts(request.headers.get("accept", ""), "application/json")


def _accepts(header: str, media_type: str) -> bool:
    """Whether an Accept header names this type, and not with the quality 0, which refuses it (RFC 9110, 12.5.1)."""
    for each in header.split(","):
        name, *parameters = (part.strip().lower() for part in each.split(";"))
        if name == media_type:
            qualities = [part[2:] for part in parameters if part.startswith("q=")]
            return not any(quality.strip("0.") == "" for quality in qualities)
    return False


def own_address(request: Request) -> str:
    query = request.url.query
    return f"{request.url.path}?{query}" if query else request.url.path


def digest_of(folder: Path) -> str:
    """Changes with any of the files, so that a browser never mixes versions."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def storable(value: Any) -> Any:
    """JSON has no infinity, no NaN and no sets."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, Mapping):
        return {str(name): storable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [storable(each) for each in value]
    return value if value is None or isinstance(value, str | int | bool) else str(value)


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
        return planning.comparison(sides[0], sides[1], seen.jobs)

    async def fit(self, request: Request) -> Page:
        given = dict(request.query_params)
        seen = await self._follower.now()
        chosen = await self._status_of(given["job"]) if given.get("job") else None
        found = None if chosen is None else await self.limits(request, chosen)
        return planning.fitting(seen.jobs, chosen, given, found)

    async def limits(self, request: Request, job: JobStatus) -> planning.FoundLimits | None:
        """The limits that keep the rate and p99 of the form; None before both are given."""
        rate, p99 = (request.query_params.get(name) for name in ("rate", "p99"))
        return await self.computed(request, planning.find_limits, job, rate, p99) if rate and p99 else None

    async def plan(self, request: Request) -> Page:
        given = dict(request.query_params)
        seen = await self._follower.now()
        asked = planning.asked_models(*(request.query_params.getlist(name) for name in ("job", "rate", "p99")))
        demands = [JobDemand(await self._status_of(job), rate, p99) for job, rate, p99 in asked]
        asked = [(each.job.name, each.rate, each.p99) for each in demands]
        found = None
        if demands:
            found = await self.computed(request, planning.find_plan, demands, await self.pairs(), given)
        return planning.planning(seen.jobs, asked, given, found)

    async def computed(self, request: Request, compute: Callable[..., _T], *given: object) -> _T:
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


_MOST = 64
"""pages that are kept"""


class RenderedPages:
    """The texts of pages by their addresses, until the server is read again."""

    def __init__(self) -> None:
        self._state: Snapshot | None = None
        self._texts: dict[str, str] = {}

    def text(self, state: Snapshot, address: str) -> str | None:
        """None for a page that was not rendered in this state."""
        return self._texts.get(address) if state is self._state else None

    def keep(self, state: Snapshot, address: str, text: str) -> None:
        if state is not self._state:
            self._state, self._texts = state, {}
        if len(self._texts) < _MOST:
            self._texts[address] = text


_STATIC = Path(__file__).with_name("static")
_PING_S = 15.0
"""A proxy ends a stream that is silent for longer"""
_MOST_FOLLOWED = 256
"""jobs whose trials are kept"""
_MOST_RUNTIME_TIMES = 500
_MOST_FIELD_BYTES = 256
"""of a form, which has a short key alone"""
_STATUS = {"INVALID_ARGUMENT": 400, "NOT_FOUND": 404, "UNAUTHENTICATED": 502, "PERMISSION_DENIED": 403}
"""of HTTP, by that of gRPC; any other is 503"""

View = Callable[[Request], Awaitable[Page]]
Advise = Callable[[Sequence[str]], overview.Advice]
"""The advice for these shares. Raises StateUnusable"""


class Site:
    """The views of one server's pages. `may_cancel`: whether its jobs may be cancelled here. `advise` reads the advice
    that a stack on this machine follows.
    """

    def __init__(self, client: Client, guard: GuardOptions, *, may_cancel: bool, advise: Advise | None = None) -> None:
        self._client = client
        self._follower = Follower(client)
        self._forms = Forms(self._follower, self._status)
        self._guard = guard
        self._may_cancel = may_cancel
        self._advise = advise
        self._key = secrets.token_urlsafe(32)
        """in every form: a page of another site cannot know it"""
        self._trials: dict[str, JobTrials] = {}
        self._rendered = RenderedPages()
        self._templates = Environment(
            loader=PackageLoader("fractune.dashboard"), autoescape=select_autoescape(default=True), trim_blocks=True
        )
        self._templates.globals["moment"] = plain_moment
        self._templates.filters["grouped"] = grouped
        self._assets = digest_of(_STATIC)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/", self._view(self._overview)),
                Route("/find", self._view(self._find)),
                Route("/jobs/{id}", self._view(self._job)),
                Route("/jobs/{id}/bundle", self._bundle),
                Route("/jobs/{id}/cancel", self._cancel, methods=["POST"]),
                Route("/models/{id}", self._view(self._model)),
                Route("/shares", self._view(self._shares)),
                Route("/log", self._view(self._log)),
                Route("/log/records/{id}", self._view(self._record)),
                Route("/log/records/{id}/code", self._view(self._code)),
                Route("/compare", self._view(self._forms.compare)),
                Route("/fit", self._view(self._forms.fit)),
                Route("/plan", self._view(self._forms.plan)),
                Route("/pairs", self._view(self._pairs)),
                Route("/events", self._events),
                Mount("/static", StaticFiles(directory=_STATIC)),
            ],
            middleware=[Middleware(Guard, options=self._guard), Middleware(GZipMiddleware, minimum_size=500)],
            exception_handlers={404: self._not_found, FractuneError: self._failed},
            lifespan=self._lifespan,
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        del app
        reader = asyncio.create_task(self.follow())
        yield
        reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reader

    async def follow(self) -> None:
        """Read the server while somebody looks, until cancelled."""
        await self._follower.run()

    def ask_server(self) -> None:
        """Raises what a small call of the server raises now."""
        self._client.jobs(limit=1)

    async def end(self) -> None:
        """End what an orderly stop would wait for: the streams of tabs, and calls of the server."""
        await self._follower.end()

    # ---- views -----------------------------------------------------------------------------------------------

    async def _overview(self, request: Request) -> Page:
        del request
        seen = await self._follower.now()
        running = [await self._running(each) for each in overview.running_jobs(seen)[: overview.MOST_CARDS]]
        return overview.overview(seen, running)

    async def _running(self, listed: JobStatus) -> JobStatus:
        """The job with its operators; as it is listed if it is gone meanwhile."""
        try:
            found = await self._status(listed.name)
        except NotFound:
            found = listed
        return paced(found, (), self._follower.snapshot.jobs)

    async def _find(self, request: Request) -> Page:
        return overview.found(await self._follower.now(), request.query_params.get("q", ""))

    async def _shares(self, request: Request) -> Page:
        del request
        seen = await self._follower.now()
        if self._advise is None:
            return overview.shares(seen, overview.ELSEWHERE)
        offered = sorted({each.granted.share for each in seen.shares})
        try:
            return overview.shares(seen, await asyncio.to_thread(self._advise, offered))
        except errors.StateUnusable as error:
            return overview.shares(seen, str(error))

    async def _job(self, request: Request) -> Page:
        name = Collection.JOBS.of(request.path_params["id"])
        found = await self._status(name)
        followed = self._trials_of(found)
        trials = await self._follower.answer(("trials", name), followed.update)
        while wants_json(request) and not followed.is_whole:
            trials = await asyncio.to_thread(followed.update, self._client)
        seen = self._follower.snapshot
        found = paced(found, trials, seen.jobs)
        is_whole = followed.is_whole
        if chosen := operator.named_operator(found, request.query_params.get("operator", "")):
            return replace(await self._operator(found, chosen, trials), is_whole=is_whole)
        parts = part_jobs(found, seen.jobs)
        timed = await self._runtimes(found.model)
        only = {each: request.query_params.get(each, "") for each in FILTERS}
        missing, before = overview.missing_workers(found, seen), job.job_before(found, seen.jobs)
        page = job.job(found, trials, only, parts, timed, missing, before, may_cancel=self._may_cancel)
        return replace(page, is_whole=is_whole)

    async def _operator(self, found: JobStatus, chosen: OperatorStatus, trials: Sequence[Trial]) -> Page:
        def records(client: Client) -> Sequence[TuningRecord]:
            only: FilterOptions = {"job": found.name, "operator": chosen.workload_hash, "kind": Kind.TRIAL}
            only["namespace"] = found.spec.namespace
            return client.log.query(limit=operator.MOST_SCHEDULES, **only)

        def tables(client: Client) -> Sequence[CrossTable]:
            try:
                return client.job(found.name).matrix(operators=True).tables[1:]
            except NotFound:  # of the jobs before, nothing may be left
                return ()

        tried = await self._follower.answer(("schedules", found.name, chosen.workload_hash), records)
        crossed = await self._follower.answer(("tables", found.name), tables) if found.results else ()
        table = next((each for each in crossed if each.name == chosen.name), None)
        return operator.operator_page(found, chosen, trials, tried, table)

    async def _model(self, request: Request) -> Page:
        digest = request.path_params["id"]
        seen = await self._follower.now()
        named = [each.name for each in seen.jobs if each.model == Collection.MODELS.of(digest)]
        if not named:
            raise NotFound(f"model '{digest}': the newest jobs of this server are of other models; see them at /")
        jobs = [await self._status(name) for name in named]
        others = [await self._status(each.name) for each in model.versions(jobs[0], seen.jobs)]
        given = dict(request.query_params)
        share, timed = given.get("share") or model.first_share(jobs), await self._runtimes(jobs[0].model)
        done = next((each for each in jobs if each.results), None)
        used = await self._match(jobs, share) if share else None
        limits = None if done is None else await self._forms.limits(request, done)
        return model.model(digest, jobs, others, timed, share, used, given, limits)

    async def _runtimes(self, name: str) -> Sequence[RuntimeTime]:
        """The times of a model in other runtimes; none of a job without a model."""
        if not name:
            return ()
        ask = partial(Client.runtime_times, model=name, limit=_MOST_RUNTIME_TIMES)
        return await self._follower.answer(("runtimes", name), ask)

    async def _match(self, jobs: Sequence[JobStatus], share: str) -> MatchResult | str:
        """What the operators of the jobs' model use at the share; an error's text where the server cannot say it."""
        newest, spec = jobs[0], jobs[0].spec
        asked: dict[str, Any] = {"inputs": spec.inputs, "target": spec.target, "namespace": spec.namespace}

        def ask(client: Client) -> MatchResult | str:
            try:
                return client.match(newest.model, share, **asked)
            except ServerUnreachable:
                raise
            except FractuneError as error:
                return str(error)

        return await self._follower.answer(("match", newest.name, share), ask)

    async def _log(self, request: Request) -> Page:
        given = dict(request.query_params)
        only = {name: given.get(name, "") for name in log.FILTERS}
        fastest, page = given.get("order") == "fastest", given.get("page", "")

        def ask(client: Client) -> Any:
            return client.log.query(limit=log.PAGE_SIZE, fastest=fastest, page=page, **only)

        return log.log(await self._follower.answer(("log", fastest, page, *only.values()), ask), given)

    async def _record(self, request: Request) -> Page:
        return log.record_page(await self._found_record(request), log.place_of(request.query_params))

    async def _code(self, request: Request) -> Page:
        record = await self._found_record(request)
        return log.code_page(record, await self._forms.computed(request, log.find_code, self._client, record))

    async def _found_record(self, request: Request) -> TuningRecord:
        wanted, given = request.path_params["id"], request.query_params
        only: FilterOptions = {"job": given.get("job", ""), "operator": given.get("operator", "")}
        only["namespace"], page = given.get("namespace", ""), given.get("page", "")
        fastest = given.get("order") == "fastest"

        def ask(client: Client) -> TuningRecord:
            return client.log.record(wanted, fastest=fastest, page=page, **only)

        return await self._follower.answer(("record", wanted, fastest, page, *only.values()), ask)

    async def _pairs(self, request: Request) -> Page:
        del request
        return planning.pairs(await self._forms.pairs())

    async def _status(self, name: str) -> JobStatus:
        return await self._follower.answer(("job", name), lambda client: client.job(name).status())

    def _trials_of(self, job: JobStatus) -> JobTrials:
        if job.name not in self._trials and len(self._trials) >= _MOST_FOLLOWED:
            del self._trials[next(iter(self._trials))]
        return self._trials.setdefault(job.name, JobTrials(job.name, job.spec.namespace))

    # ---- answers ---------------------------------------------------------------------------------------------

    def _view(self, view: View) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            state, address = await self._follower.now(), own_address(request)
            if wants_json(request):
                return self._shown(request, await view(request))
            if (text := self._rendered.text(state, address)) is not None:
                return HTMLResponse(text)
            text = self._text(request, await view(request))
            if state is self._follower.snapshot:  # else a part of it may be older
                self._rendered.keep(state, address, text)
            return HTMLResponse(text)

        return answer

    def _shown(self, request: Request, page: Page) -> Response:
        if wants_json(request):
            return JSONResponse(storable(page.data), status_code=page.status)
        return HTMLResponse(self._text(request, page), status_code=page.status)

    def _text(self, request: Request, page: Page) -> str:
        seen = self._follower.snapshot
        template = self._templates.get_template("page.html")
        given = {"page": page, "path": request.url.path, "here": own_address(request)}
        given["as_json"] = f"{request.url.path}?{urlencode([*request.query_params.multi_items(), ('as', 'json')])}"
        given |= {"lost": seen.lost, "taken_at": seen.taken_at, "key": self._key, "assets": self._assets}
        given["ago"] = ago_from(time.time())
        return template.render(**given)

    async def _events(self, request: Request) -> Response:
        """Server-sent events: `change` with the number of each state."""
        del request

        async def stream() -> AsyncIterator[str]:
            changes = self._follower.changes()
            waiting = asyncio.ensure_future(anext(changes, None))
            try:
                while True:
                    done, _ = await asyncio.wait({waiting}, timeout=_PING_S)
                    if not done:
                        yield ": still here\n\n"
                        continue
                    number = waiting.result()
                    if number is None:
                        return
                    yield f"event: change\ndata: {number}\n\n"
                    waiting = asyncio.ensure_future(anext(changes, None))
            finally:
                waiting.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await waiting
                await changes.aclose()

        return StreamingResponse(stream(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    async def _bundle(self, request: Request) -> Response:
        check_own_page(request.headers)
        name = Collection.JOBS.of(request.path_params["id"])
        folder = tempfile.TemporaryDirectory(prefix="fractune-page-")
        try:
            found = await asyncio.to_thread(self._client.job(name).bundle, folder.name)
        except BaseException:
            folder.cleanup()
            raise
        return FileResponse(found.path, filename=found.path.name, background=BackgroundTask(folder.cleanup))

    async def _cancel(self, request: Request) -> Response:
        if not self._may_cancel:
            raise ScopeMissing("this page is read-only; start it by 'fractune dashboard --allow-cancel'")
        form = await request.form(max_fields=2, max_files=0, max_part_size=_MOST_FIELD_BYTES)
        if not hmac.compare_digest(str(form.get("key", "")).encode(), self._key.encode()):
            raise BadRequest("the form is not of this page; reload the page of the job, and try again")
        name = Collection.JOBS.of(request.path_params["id"])
        await asyncio.to_thread(self._client.job(name).cancel)
        return RedirectResponse(f"/jobs/{request.path_params['id']}", status_code=303)

    async def _not_found(self, request: Request, error: Exception) -> Response:
        del error
        return await self._failed(request, NotFound(f"{request.url.path}: no such page; begin at /"))

    async def _failed(self, request: Request, error: Exception) -> Response:
        kind = type(error)
        status = _STATUS.get(error.grpc_status, 503) if isinstance(error, FractuneError) else 500
        return self._shown(request, job.failed_page(str(error), status, kind.__name__))
