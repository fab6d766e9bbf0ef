"""A bundle as a custom predictor of KServe: REST and gRPC of the Open Inference Protocol, metrics at /metrics.

BUNDLE=model.fractune python -m fractune_runtime.serving.kserve --http_port 8080 --grpc_port 8081
"""

from typing import Any
from uuid import uuid4

from kserve import InferInput, InferOutput, InferRequest, InferResponse, Model, ModelServer
from kserve.errors import InvalidInput, ServerNotReady
from kserve.model_server import app

from fractune_runtime import errors, serving
from fractune_runtime.endpoint import TYPE_OF, Busy, array_in


class Bundle(Model):
    def load(self) -> bool:
        self.endpoint = serving.endpoint()
        self.ready = True
        return self.ready

    async def predict(self, payload: InferRequest, *_: Any, **__: Any) -> InferResponse:
        try:
            outputs = await self.endpoint.answer(dict(map(_array_of, payload.inputs)))
        except errors.BadRequest as error:
            raise InvalidInput(str(error)) from error
        except Busy as error:
            raise ServerNotReady(str(error)) from error
        answers = [InferOutput(name, list(array.shape), TYPE_OF[array.dtype.name]) for name, array in outputs.items()]
        for answer, array in zip(answers, outputs.values(), strict=True):
            answer.set_data_from_numpy(array)
        return InferResponse(
            payload.id or uuid4().hex, self.name, answers, use_binary_outputs=payload.use_binary_outputs
        )


def _array_of(given: InferInput) -> tuple[str, Any]:
    """`as_numpy` takes what is sent in binary, beside an empty list. In JSON it would also take texts and nulls. Raises
    BadRequest.
    """
    if isinstance(given.data, list) and given.data:
        names = ("name", "datatype", "shape", "data")
        return array_in({name: getattr(given, name) for name in names})
    try:
        return given.name, given.as_numpy()
    except ValueError as error:
        raise errors.BadRequest(f"input '{errors.one_line(given.name)}': {errors.first_line(error)}") from error


if __name__ == "__main__":
    bundle = Bundle("model")
    bundle.load()
    app.add_middleware(serving.BodyLimit)
    ModelServer(grace_period=30).start([bundle])
    bundle.endpoint.close()
