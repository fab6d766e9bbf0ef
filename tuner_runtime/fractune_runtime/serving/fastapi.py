"""A bundle behind plain FastAPI, by the Open Inference Protocol in JSON.

BUNDLE=model.fractune PORT=8080 python -m fractune_runtime.serving.fastapi
"""

from fractune_runtime import serving

with serving.needing("fastapi uvicorn prometheus-client"):
    import uvicorn
    from fastapi import FastAPI, Request, Response
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

app = FastAPI(openapi_url=None)  # its pages of documentation load scripts from elsewhere
app.add_middleware(serving.BodyLimit)
app.add_middleware(serving.Protocol)


@app.post("/v2/models/model/infer")
async def infer(request: Request) -> Response:
    return Response(*await serving.answered(app.state.endpoint, await request.body()), media_type=serving.JSON)


@app.get(serving.READY)
async def ready(response: Response) -> dict[str, bool]:
    is_ready: bool = app.state.endpoint.is_ready
    response.status_code = 200 if is_ready else 503
    return {"ready": is_ready}


@app.get("/metrics")
async def metrics() -> Response:
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)


if __name__ == "__main__":
    with serving.endpoint() as app.state.endpoint:
        # At SIGTERM it takes no more connections, waits for its requests, and returns.
        uvicorn.run(app, host=serving.HOST, port=serving.port(), access_log=False, timeout_graceful_shutdown=30)
