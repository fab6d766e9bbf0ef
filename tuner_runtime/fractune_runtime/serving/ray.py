"""A bundle behind Ray Serve, by the Open Inference Protocol in JSON.

BUNDLE=model.fractune PORT=8080 python -m fractune_runtime.serving.ray
"""

import signal

from fractune_runtime import serving
from fractune_runtime.endpoint import Endpoint

with serving.needing("'ray[serve]' prometheus-client"):
    import ray
    from fastapi import FastAPI, Request, Response
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
    from ray import serve

app = FastAPI(openapi_url=None)  # its pages of documentation load scripts from elsewhere
app.add_middleware(serving.BodyLimit)
app.add_middleware(serving.Protocol)


# One replica: the endpoint fills the limit of its process by replicas of its own, which share the weights.
@serve.deployment(num_replicas=1, max_ongoing_requests=256, graceful_shutdown_timeout_s=30)
@serve.ingress(app)
class Bundle:
    def __init__(self, path: str, options: dict[str, int]) -> None:
        self.endpoint = Endpoint(path, **options)
        self.endpoint.register()

    @app.post("/v2/models/model/infer")
    async def infer(self, request: Request) -> Response:
        return Response(*await serving.answered(self.endpoint, await request.body()), media_type=serving.JSON)

    @app.get(serving.READY)
    async def ready(self, response: Response) -> dict[str, bool]:
        response.status_code = 200 if self.endpoint.is_ready else 503
        return {"ready": self.endpoint.is_ready}

    @app.get("/metrics")
    async def metrics(self) -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    def check_health(self) -> None:
        """Ray asks for it: a replica that raises is replaced."""


if __name__ == "__main__":
    path, options = serving.settings()
    http = {"host": serving.HOST, "port": serving.port()}
    ray.init("local", num_cpus=1, include_dashboard=False)
    serve.start(http_options=http)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    serve.run(Bundle.bind(path, options))  # type: ignore[attr-defined]
    signal.sigwait([signal.SIGTERM])
    serve.delete("default")  # waits for the requests that the replica has
    serve.shutdown()
