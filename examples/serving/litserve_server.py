"""A bundle behind LitServe, by the Open Inference Protocol in JSON; metrics have a port of their own.

BUNDLE=model.fractune PORT=8080 METRICS_PORT=9090 python litserve_server.py
"""

import os
from typing import Any

import litserve
from fastapi import HTTPException
from prometheus_client import start_http_server

from fractune_runtime import errors
from fractune_runtime.endpoint import Busy, Endpoint


class Bundle(litserve.LitAPI):
    """LitServe runs it in a process of its own, which the metrics and the limit are of."""

    def setup(self, device: str) -> None:
        del device
        self.endpoint = Endpoint(os.environ["BUNDLE"])
        self.endpoint.register()
        start_http_server(int(os.environ.get("METRICS_PORT", "9090")))

    async def predict(self, request: Any) -> dict[str, Any]:
        try:
            return await self.endpoint.infer(request)
        except errors.BadRequest as error:
            raise HTTPException(400, str(error)) from error
        except Busy as error:
            raise HTTPException(503, str(error)) from error


if __name__ == "__main__":
    # One worker: the endpoint fills the limit of its process by replicas of its own, which share the weights.
    api = Bundle(enable_async=True, api_path="/v2/models/model/infer")
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, healthcheck_path="/v2/health/ready")
    server.run(port=int(os.environ.get("PORT", "8080")), generate_client_file=False)
