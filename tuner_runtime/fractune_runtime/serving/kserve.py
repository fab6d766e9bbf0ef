"""A bundle as a custom predictor of KServe: REST and gRPC of the Open Inference Protocol, metrics at /metrics.

BUNDLE=model.fractune python -m fractune_runtime.serving.kserve --http_port 8080 --grpc_port 8081
"""

import struct
from functools import partial
from typing import Any
from uuid import uuid4

from fractune_runtime import errors, serving
from fractune_runtime.endpoint import MODEL_NAME, TYPE_OF, Busy, array_in, by_name, check_id, shaped

with serving.needing("kserve"):
    from kserve import InferInput, InferOutput, InferRequest, InferResponse, Model, ModelServer
    from kserve.errors import InvalidInput, ServerNotReady
    from kserve.model_server import app
    from kserve.protocol.dataplane import DataPlane


class Bundle(Model):
    def load(self) -> bool:
        self.endpoint = serving.endpoint()
        metadata = serving.metadata(serving.settings()[0])
        self.get_input_types, self.get_output_types = (partial(metadata.get, each) for each in ("inputs", "outputs"))
        self.ready = True
        return self.ready

    async def predict(self, payload: InferRequest, *_: Any, **__: Any) -> InferResponse:
        try:
            outputs = await self.endpoint.answer(_arrays_of(payload))
        except errors.BadRequest as error:
            raise InvalidInput(str(error)) from error
        except Busy as error:
            refused = ServerNotReady(str(error))
            refused.reason = str(refused)  # KServe's gRPC reads it
            raise refused from error
        answers = [InferOutput(name, list(array.shape), TYPE_OF[array.dtype.name]) for name, array in outputs.items()]
        for answer, array in zip(answers, outputs.values(), strict=True):
            answer.set_data_from_numpy(array)
        return InferResponse(
            payload.id or uuid4().hex, self.name, answers, use_binary_outputs=payload.use_binary_outputs
        )


class Decoder(DataPlane):
    """KServe itself answers 500 to most of what it cannot decode."""

    def decode(self, *args: Any, **options: Any) -> Any:
        try:
            payload, attributes = super().decode(*args, **options)
            payload.use_binary_outputs  # noqa: B018  it reads parameters, which only a request of version 2 has
        except InvalidInput:
            raise
        except Exception as error:
            why = errors.one_line(errors.first_line(error))
            raise InvalidInput(
                f"not as /v2/models/{MODEL_NAME}/infer takes it ({type(error).__name__}: {why})"
            ) from error
        return payload, attributes


def _arrays_of(payload: InferRequest) -> dict[str, Any]:
    """Raises BadRequest, also for an id that no answer can have."""
    check_id(payload.id or "")
    return by_name(list(map(_array_of, payload.inputs)))


def _array_of(given: InferInput) -> tuple[str, Any]:
    """`as_numpy` takes what is sent in binary, beside an empty list. In JSON it would also take texts and nulls. Raises
    BadRequest.
    """
    shape = given.shape
    if given.data is not None and given.data != []:
        return array_in({"name": given.name, "datatype": given.datatype, "shape": shape, "data": given.data})
    try:
        given.shape = [-1]
        numbers = given.as_numpy()
    except (ValueError, struct.error) as error:
        raise errors.BadRequest(f"input '{errors.one_line(given.name)}': {errors.first_line(error)}") from error
    return given.name, shaped(given.name, numbers, shape)


if __name__ == "__main__":
    bundle = Bundle(MODEL_NAME)
    bundle.load()
    app.add_middleware(serving.BodyLimit)
    serving.refuse_briefly(app)
    server = ModelServer(grace_period=30)
    server.dataplane = Decoder(server.registered_models)
    server.start([bundle])
    bundle.endpoint.close()
