"""A bundle behind Triton's Python backend, with the bundle in the folder of the version. Its `model.py` has one line:

from fractune_runtime.serving.triton import TritonPythonModel

Checked by the interface of the backend alone, not by a running Triton. config.pbtxt has `backend: "python"`, one
instance of KIND_CPU, and the parameter `bundle` with the file's name.
"""

import json
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from fractune_runtime import errors
from fractune_runtime.endpoint import Endpoint


class TritonPythonModel:
    def initialize(self, args: dict[str, Any]) -> None:
        config = json.loads(args["model_config"])
        folder = Path(args["model_repository"]) / args["model_version"]
        self.endpoint = Endpoint(folder / config["parameters"]["bundle"]["string_value"])
        self.names = [spec.name for spec in self.endpoint.inputs]
        counter, gauge = pb_utils.MetricFamily.COUNTER, pb_utils.MetricFamily.GAUGE
        seconds = pb_utils.MetricFamily("fractune_request_seconds_sum", "Seconds of requests, by bucket", counter)
        count = pb_utils.MetricFamily("fractune_request_seconds_count", "Requests, by bucket", counter)
        stopped = pb_utils.MetricFamily("fractune_throttled_seconds", "Stopped by a CPU limit", gauge)
        throttled = stopped.Metric({})
        metrics: dict[tuple[str, str], tuple[Any, Any]] = {}  # Triton shows a metric while it is held

        def watch(bucket: str, secs: float) -> None:
            key = (bucket, self.endpoint.choice.variant)
            if key not in metrics:
                labels = dict(zip(("bucket", "variant"), key, strict=True))
                metrics[key] = seconds.Metric(labels), count.Metric(labels)
            for metric, more in zip(metrics[key], (secs, 1), strict=True):
                metric.increment(more)
            throttled.set(self.endpoint.throttled or 0)

        self.families = (seconds, count, stopped)
        self.endpoint.watch(watch)

    def execute(self, requests: list[Any]) -> list[Any]:
        """All requests that Triton hands over run side by side, or as one batch."""
        return [self._answer(each) for each in [self._submitted(request) for request in requests]]

    def _submitted(self, request: Any) -> Any:
        tensors = ((name, pb_utils.get_input_tensor_by_name(request, name)) for name in self.names)
        try:
            return self.endpoint.submit({name: tensor.as_numpy() for name, tensor in tensors if tensor is not None})
        except errors.FractuneError as error:
            return error

    def _answer(self, submitted: Any) -> Any:
        error = submitted if isinstance(submitted, errors.FractuneError) else submitted.exception()
        if error is not None:
            return pb_utils.InferenceResponse([], error=pb_utils.TritonError(str(error)))
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in submitted.result().items()])

    def finalize(self) -> None:
        self.endpoint.close()
