"""A bundle behind plain FastAPI, by the Open Inference Protocol in JSON.

BUNDLE=model.fractune uvicorn fastapi_server:app --port 8080 --no-access-log --timeout-graceful-shutdown 30
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from fractune_runtime import errors
from fractune_runtime.endpoint import Busy, Endpoint


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """At SIGTERM uvicorn takes no more connections, waits for its requests, and then ends this."""
    with Endpoint(os.environ["BUNDLE"]) as endpoint:
        endpoint.register()
        app.state.endpoint = endpoint
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/v2/models/model/infer")
async def infer(request: Request) -> JSONResponse:
    try:
        return JSONResponse(await app.state.endpoint.infer_json(request.stream()))
    except (errors.BadRequest, ValueError) as error:
        return JSONResponse({"error": str(error)}, 400)
    except Busy as error:
        return JSONResponse({"error": str(error)}, 503)


@app.get("/v2/health/live")
async def live() -> dict[str, bool]:
    return {"live": True}


@app.get("/v2/health/ready")
async def ready(response: Response) -> dict[str, bool]:
    is_ready: bool = app.state.endpoint.is_ready
    response.status_code = 200 if is_ready else 503
    return {"ready": is_ready}


@app.get("/metrics")
async def metrics() -> Response:
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)
