"""A bundle behind LitServe, by the Open Inference Protocol in JSON; metrics have a port of their own.

BUNDLE=model.fractune PORT=8080 METRICS_PORT=9090 python -m fractune_runtime.serving.litserve
"""

import os
import signal
from functools import partial
from typing import Any

from fractune_runtime import serving

with serving.needing("litserve prometheus-client"):
    import litserve
    from fastapi import Response
    from prometheus_client import start_http_server
    from pydantic import BaseModel


class Body(BaseModel):
    """FastAPI reads it, and refuses what is not such JSON. LitServe itself would answer 500."""

    inputs: list[Any]
    outputs: list[Any] = []
    id: str = ""


class Bundle(litserve.LitAPI):
    """LitServe runs it in a process of its own, which the metrics and the limit are of."""

    def setup(self, device: str) -> None:
        del device
        self.endpoint = serving.endpoint()
        start_http_server(_metrics_port(), serving.HOST)

    def decode_request(self, request: Body) -> dict[str, Any]:
        return request.model_dump(exclude_unset=True)

    async def predict(self, request: dict[str, Any]) -> Response:
        return Response(*await serving.answered(self.endpoint, request), media_type=serving.JSON)


def _metrics_port() -> int:
    return serving.port("METRICS_PORT", 9090)


def _end(main: int, *_: object) -> None:
    """LitServe ends its processes at Ctrl-C alone; at SIGTERM the others would go on serving. They inherit this."""
    raise KeyboardInterrupt if os.getpid() == main else SystemExit


if __name__ == "__main__":
    serving.settings()
    _metrics_port()
    signal.signal(signal.SIGTERM, partial(_end, os.getpid()))
    # One worker: the endpoint fills the limit of its process by replicas of its own, which share the weights.
    api = Bundle(enable_async=True, api_path="/v2/models/model/infer")
    server = litserve.LitServer(
        api,
        accelerator="cpu",
        workers_per_device=1,
        healthcheck_path=serving.READY,
        middlewares=[serving.BodyLimit, serving.Protocol],
    )
    serving.refuse_briefly(server.app)
    server.run(host=serving.HOST, port=serving.port(), generate_client_file=False)
