"""A bundle behind Triton's Python backend: `model.py` of a model repository, with the bundle beside it.

Checked by the interface of the backend alone, not by a running Triton. In config.pbtxt set `backend: "python"`,
`instance_group [{ kind: KIND_CPU, count: 1 }]` and the parameter `bundle` with the file's name.
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
        counter = pb_utils.MetricFamily.COUNTER
        seconds = pb_utils.MetricFamily("fractune_request_seconds_sum", "Seconds of requests, by bucket", counter)
        count = pb_utils.MetricFamily("fractune_request_seconds_count", "Requests, by bucket", counter)
        gauge = pb_utils.MetricFamily.GAUGE
        throttled = pb_utils.MetricFamily("fractune_throttled_seconds", "Stopped by a CPU limit", gauge).Metric({})
        in_use = pb_utils.MetricFamily("fractune_variant", "1 for the variant in use", gauge)
        in_use.Metric({"variant": self.endpoint.choice.variant}).set(1)
        by_bucket: dict[str, tuple[Any, Any]] = {}

        def watch(bucket: str, secs: float) -> None:
            if bucket not in by_bucket:
                by_bucket[bucket] = seconds.Metric({"bucket": bucket}), count.Metric({"bucket": bucket})
            by_bucket[bucket][0].increment(secs)
            by_bucket[bucket][1].increment(1)
            throttled.set(self.endpoint.throttled or 0)

        self.endpoint.watch(watch)

    def execute(self, requests: list[Any]) -> list[Any]:
        """All requests that Triton hands over run side by side, or as one batch."""
        return [self._answer(future) for future in [self._submitted(request) for request in requests]]

    def _submitted(self, request: Any) -> Any:
        tensors = ((name, pb_utils.get_input_tensor_by_name(request, name)) for name in self.names)
        try:
            return self.endpoint.submit({name: tensor.as_numpy() for name, tensor in tensors if tensor is not None})
        except errors.FractuneError as error:
            return error

    def _answer(self, submitted: Any) -> Any:
        try:
            if isinstance(submitted, errors.FractuneError):
                raise submitted
            outputs = [pb_utils.Tensor(name, array) for name, array in submitted.result().items()]
        except errors.FractuneError as error:
            return pb_utils.InferenceResponse([], error=pb_utils.TritonError(str(error)))
        return pb_utils.InferenceResponse(outputs)

    def finalize(self) -> None:
        self.endpoint.close()
