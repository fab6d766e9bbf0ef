"""A bundle as a custom predictor of KServe: REST and gRPC of the Open Inference Protocol, metrics at /metrics.

BUNDLE=model.fractune python -m fractune_runtime.serving.kserve --http_port 8080 --grpc_port 8081
"""

from typing import Any
from uuid import uuid4

from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer
from kserve.errors import InvalidInput, ServerNotReady
from kserve.model_server import app

from fractune_runtime import errors, serving
from fractune_runtime.endpoint import TYPE_OF, Busy


class Bundle(Model):
    def load(self) -> bool:
        self.endpoint = serving.endpoint()
        self.ready = True
        return self.ready

    async def predict(self, payload: InferRequest, *_: Any, **__: Any) -> InferResponse:
        try:
            outputs = await self.endpoint.answer({each.name: each.as_numpy() for each in payload.inputs})
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


if __name__ == "__main__":
    bundle = Bundle("model")
    bundle.load()
    app.add_middleware(serving.BodyLimit)
    ModelServer(grace_period=30).start([bundle])
    bundle.endpoint.close()
