"""What a server has between its protocol and a bundle: a queue, batches of what waits, metrics, and an orderly end.

endpoint = Endpoint("model.fractune")
outputs = await endpoint.answer({"data": array})
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, Self

from fractune_core.codec.plain_json import is_storable, json_bytes, strict_json
from fractune_core.errors import BadRequest, FractuneError, first_line, shortened
from fractune_core.files.buckets import BATCH
from fractune_core.share_kinds import CPU
from fractune_runtime.bucketed_model import BucketedModel
from fractune_runtime.choosing import VariantChoice
from fractune_runtime.loading import load, open_bundle
from fractune_runtime.model import Model
from fractune_runtime.replica_pool import ReplicaPool
from fractune_runtime.tvm_runtime.tensors import Array, TensorSpec

LATENCY_BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""of the histogram of latencies"""
MOST_WAITING = 1024
"""requests in the queue and in work; more are refused"""
MODEL_NAME = "model"
"""in answers, and in the paths of servers"""
_MOST_AXES = 32


class Busy(FractuneError):
    """Too many requests wait, or the endpoint ends: servers answer 503."""


class Endpoint:
    """A bundle for requests of any threads, and of one event loop.

    The limit of the process chooses share, threads and replicas. If a bundle has several batches, and rows do not
    depend on each other, requests that wait together run in the smallest batch that holds them. They wait for the
    model alone, never for a timer. Close it, or use it in `with`: it answers what it has taken.
    """

    inputs: list[TensorSpec]
    outputs: list[TensorSpec]

    def __init__(self, path: str | os.PathLike[str], *, most_waiting: int = MOST_WAITING, **options: Any) -> None:
        """`options` are those of `load`, and `replicas` of a `ReplicaPool`. Raises as they do."""
        self._runs = _runs_of(path, options)
        self.inputs, self.outputs = self._runs.inputs, self._runs.outputs
        self._free = threading.BoundedSemaphore(most_waiting)
        self._most_waiting = most_waiting
        self._turn = threading.Lock()
        self._is_open = True
        self._watchers: list[Callable[[str, float], object]] = []

    @property
    def is_ready(self) -> bool:
        """Whether it takes requests: a server's readiness. It is false from the beginning of `close`."""
        return self._is_open

    def submit(self, inputs: Mapping[str, Array]) -> Future[dict[str, Array]]:
        """The outputs by name. Raises BadRequest for wrong inputs, here or in the future, and Busy."""
        began = perf_counter()
        answer: Future[dict[str, Array]] = Future()
        answer.set_running_or_notify_cancel()
        with self._turn:
            if not self._is_open:
                raise Busy("the server ends; ask another one")
            if not self._free.acquire(blocking=False):
                raise Busy(f"{self._most_waiting} requests wait already; ask later, or ask another server")
            try:
                running = self._runs.submit(inputs)
            except BaseException:
                self._free.release()
                raise
        running.add_done_callback(partial(self._answered, answer, inputs, began))
        return answer

    async def answer(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """As `submit`, awaited."""
        return await asyncio.wrap_future(self.submit(inputs))

    async def infer(self, request: Any) -> dict[str, Any]:
        """The answer to a request of the Open Inference Protocol, both as JSON objects. Raises BadRequest and Busy."""
        inputs, wanted = arrays_in(request), self._wanted(request)
        outputs = await self.answer(inputs)
        same_id = {"id": request["id"]} if "id" in request else {}
        return {"model_name": MODEL_NAME, **same_id, "outputs": [described(name, outputs[name]) for name in wanted]}

    async def infer_json(self, request: Any) -> bytes:
        """As `infer`, of a request's body or of the JSON in it. The answer is text; NaN and infinity are null there."""
        if isinstance(request, bytes):
            try:
                request = strict_json(request)
            except ValueError as error:
                raise BadRequest(f"the request is not JSON ({shortened(first_line(error), 80)})") from error
        return json_bytes(await self.infer(request))

    def close(self) -> None:
        """Take no more requests, and answer those that were taken."""
        with self._turn:
            was_open, self._is_open = self._is_open, False
        if was_open:
            self._runs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def watch(self, watcher: Callable[[str, float], object]) -> None:
        """Call `watcher(bucket, seconds)` at each answer."""
        self._watchers.append(watcher)

    def register(self, registry: Any = None) -> None:
        """Show metrics in a registry of `prometheus_client`, by default in its own: latencies by bucket, the time in
        which a CPU limit stopped the process, and the variant in use.
        """
        try:
            from prometheus_client import REGISTRY, Histogram
        except ImportError as error:
            raise FractuneError("metrics need the package prometheus-client; install it") from error
        registry = registry or REGISTRY
        latency = Histogram(
            "fractune_request_seconds",
            "From the arrival of a request to its answer",
            ["bucket"],
            buckets=LATENCY_BOUNDS_S,
            registry=registry,
        )
        self.watch(lambda bucket, secs: latency.labels(bucket).observe(secs))
        registry.register(self)

    def collect(self) -> Iterator[Any]:
        """The metrics that are read when somebody asks."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        if self.throttled is not None:
            yield CounterMetricFamily("fractune_throttled_seconds", "Stopped by a CPU limit", value=self.throttled)
        labels = ("variant", "threads", "replicas")
        in_use = GaugeMetricFamily("fractune_variant", "1 for the variant in use", labels=labels)
        in_use.add_metric([self.choice.variant, str(self.choice.threads), str(self._runs.replicas)], 1)
        yield in_use

    @property
    def throttled(self) -> float | None:
        """As `Model.throttled`."""
        return self._runs.throttled

    @property
    def choice(self) -> VariantChoice:
        """The variant in use, its threads, and why."""
        return self._runs.choice

    def _wanted(self, request: dict[str, Any]) -> list[str]:
        """The names of the outputs that a request names, by default of all. Raises BadRequest, also for a wrong id."""
        check_id(request.get("id", ""))
        names, given = [spec.name for spec in self.outputs], request.get("outputs") or []
        each_of = given if isinstance(given, list) else [given]
        wanted = [each.get("name") if isinstance(each, dict) else None for each in each_of]
        if not all(each in names for each in wanted):
            raise BadRequest(f"'outputs' is not a list of outputs of the model, which are {', '.join(names)}")
        return list(map(str, wanted)) or names

    def _answered(
        self, answer: Future[dict[str, Array]], inputs: Mapping[str, Array], began: float, running: Future[list[Array]]
    ) -> None:
        self._free.release()
        error = running.exception()
        if error is not None:
            answer.set_exception(error)
            return
        try:
            for watch in self._watchers:
                watch(self._runs.bucket(inputs), perf_counter() - began)
        finally:
            answer.set_result({spec.name: array for spec, array in zip(self.outputs, running.result(), strict=True)})


TYPES = {
    "BOOL": "bool",
    "BF16": "bfloat16",
    **{f"FP{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"{sign}INT{bits}": f"{sign.lower()}int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)},
}
"""NumPy's names of types by those of the Open Inference Protocol"""
TYPE_OF = {name: datatype for datatype, name in TYPES.items()}


def check_id(given: Any) -> None:
    """Raises BadRequest for an id that no answer can have."""
    if not is_storable(given):
        raise BadRequest("the request's 'id' is not a text")


def arrays_in(request: Any) -> dict[str, Array]:
    """The inputs of a request of the Open Inference Protocol in JSON. Raises BadRequest."""
    inputs = request.get("inputs") if isinstance(request, dict) else None
    if not isinstance(inputs, list):
        raise BadRequest("the request has no list 'inputs'")
    return by_name(list(map(array_in, inputs)))


def by_name(inputs: Sequence[tuple[str, Array]]) -> dict[str, Array]:
    """Raises BadRequest for two of one name."""
    arrays = dict(inputs)
    if len(arrays) < len(inputs):
        raise BadRequest("the request has two inputs of one name")
    return arrays


def array_in(tensor: Any) -> tuple[str, Array]:
    """The name of an input in JSON, and its data. Raises BadRequest."""
    import numpy as np

    name = tensor.get("name") if isinstance(tensor, dict) else None
    if not isinstance(name, str):
        raise BadRequest("an input of the request has no 'name'")
    dtype = TYPES.get(str(tensor.get("datatype")))
    if dtype is None or dtype == "bfloat16":
        raise BadRequest(
            f"input {shortened(name, 60)!r}: 'datatype' is not a type of numbers in JSON, such as FP32 or INT64"
        )
    return name, shaped(name, _numbers(shortened(name, 60), tensor.get("data"), np.dtype(dtype)), tensor.get("shape"))


def shaped(name: str, numbers: Array, shape: Any) -> Array:
    """The numbers of an input in the shape that a request has for it. Raises BadRequest."""
    if not isinstance(shape, list) or len(shape) > _MOST_AXES or not all(type(each) is int for each in shape):
        raise BadRequest(f"input {shortened(name, 60)!r}: 'shape' is not a list of at most {_MOST_AXES} sizes")
    most = max(numbers.size, 1)
    if not all(0 <= each <= most for each in shape) or numbers.size != math.prod(shape):
        raise BadRequest(f"input {shortened(name, 60)!r} has {numbers.size} numbers, which is not what 'shape' says")
    return numbers.reshape(shape)


def _numbers(name: str, data: Any, dtype: Any) -> Array:
    """Raises BadRequest for data of another kind: a text, nothing, a fraction for a whole number."""
    import numpy as np

    try:
        given = np.asarray(data)
    except (OverflowError, TypeError, ValueError) as error:
        raise BadRequest(f"input {name!r}: 'data' are not numbers of {dtype} ({first_line(error)})") from error
    fits = not given.size or given.dtype.kind in ("biuf" if dtype.kind == "f" else "biu")
    if fits and given.size and dtype.kind in "iu":
        fits = np.iinfo(dtype).min <= int(given.min()) and int(given.max()) <= np.iinfo(dtype).max
    if not fits:
        raise BadRequest(f"input {name!r}: 'data' are not numbers of {dtype}")
    with np.errstate(over="ignore"):
        found: Array = given.astype(dtype)
    if dtype.kind == "f" and not np.isfinite(found).all():
        raise BadRequest(f"input {name!r}: 'data' has numbers that {dtype} does not hold")
    return found


def tensor_type(spec: TensorSpec) -> dict[str, Any]:
    """An input or output as the metadata of the Open Inference Protocol has it: -1 is a size that a request chooses."""
    shape = [-1 if size is None else size for size in spec.shape]
    return {"name": spec.name, "datatype": TYPE_OF.get(spec.dtype, spec.dtype.upper()), "shape": shape}


def described(name: str, array: Array) -> dict[str, Any]:
    """An input or output as the Open Inference Protocol has it in JSON."""
    return {
        "name": name,
        "datatype": TYPE_OF[array.dtype.name],
        "shape": list(array.shape),
        "data": array.ravel().tolist(),
    }


def _runs_of(path: str | os.PathLike[str], options: dict[str, Any]) -> _Replicas | _Queue:
    """Replicas, where the bundle has one shape and is for a CPU; else one model behind a queue."""
    with contextlib.closing(open_bundle(path)) as bundle:
        manifest = bundle.manifest
    if "buckets" not in manifest and "stages" not in manifest and manifest["device"]["kind"] == CPU:
        return _Replicas(path, options)
    if options.pop("replicas", 1) != 1:
        raise BadRequest("replicas: only a bundle of one shape for a CPU has several; leave them out")
    if "buckets" in manifest:
        with contextlib.suppress(BadRequest):  # no batch, or rows that depend on each other
            return _Queue(load(path, split="batch", **options), batches=True)
    return _Queue(load(path, **options), batches=False)


class _Replicas:
    def __init__(self, path: str | os.PathLike[str], options: Mapping[str, Any]) -> None:
        self._pool = pool = ReplicaPool(path, **options)
        self.inputs, self.outputs = pool.inputs, pool.outputs
        self.submit, self.close = pool.submit, pool.close

    def bucket(self, inputs: Mapping[str, Array]) -> str:
        del inputs
        return "all"

    @property
    def throttled(self) -> float | None:
        return self._pool.throttled

    @property
    def choice(self) -> VariantChoice:
        return self._pool.choice

    @property
    def replicas(self) -> int:
        return self._pool.replicas


@dataclass
class _Waiting:
    inputs: Mapping[str, Array]
    rows: int
    alike: tuple[Any, ...]
    """requests for which this is equal may be in one batch"""
    future: Future[list[Array]] = field(default_factory=Future)


class _Queue:
    """One thread that runs a model, with all requests that wait and fit into its largest batch."""

    replicas = 1

    def __init__(self, model: Model, *, batches: bool) -> None:
        self._model = model
        self.inputs, self.outputs = model.inputs, model.outputs
        self._most = 1
        if batches and isinstance(model, BucketedModel):
            self._most = max(sizes[BATCH] for sizes in model.bucket_sizes)
        self._waiting: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="fractune-endpoint", daemon=True)
        self._thread.start()

    def submit(self, inputs: Mapping[str, Array]) -> Future[list[Array]]:
        rows, named = self._rows(inputs), sorted(inputs.items())
        alike = tuple((name, getattr(array, "dtype", None), getattr(array, "shape", ())[1:]) for name, array in named)
        one = _Waiting(inputs, rows, alike)
        self._waiting.put(one)
        return one.future

    def _rows(self, inputs: Mapping[str, Array]) -> int:
        """Of one request; a wrong one is run alone, which names its fault and fails no other request."""
        found = {len(array) if getattr(array, "shape", ()) else 0 for array in inputs.values()}
        rows = found.pop() if len(found) == 1 else 0
        return rows or self._most

    def bucket(self, inputs: Mapping[str, Array]) -> str:
        """The sizes of the bucket that holds the request."""
        if not isinstance(self._model, BucketedModel):
            return "all"
        sizes = self._model.axes.sizes({spec.name: inputs[spec.name].shape for spec in self.inputs})
        held = (each for each in self._model.bucket_sizes if all(each[axis] >= size for axis, size in sizes.items()))
        return " ".join(f"{axis}={size}" for axis, size in next(held, sizes).items())

    @property
    def throttled(self) -> float | None:
        return self._model.throttled

    @property
    def choice(self) -> VariantChoice:
        return self._model.choice

    def close(self) -> None:
        self._waiting.put(None)
        self._thread.join()

    def _serve(self) -> None:
        later: _Waiting | None = None
        while (first := later or self._waiting.get()) is not None:
            together, later, ends = self._gathered(first)
            self._run(together)
            if ends:
                return

    def _gathered(self, first: _Waiting) -> tuple[list[_Waiting], _Waiting | None, bool]:
        """What waits and fits into one batch with the first; then the one that does not, and whether that is all."""
        together, rows = [first], first.rows
        while rows < self._most:
            try:
                after = self._waiting.get_nowait()
            except queue.Empty:
                break
            if after is None:
                return together, None, True
            if after.alike != first.alike or rows + after.rows > self._most:
                return together, after, False
            together.append(after)
            rows += after.rows
        return together, None, False

    def _run(self, together: Sequence[_Waiting]) -> None:
        try:
            answers = self._answers(together)
        except BaseException as error:  # noqa: BLE001  the callers get it
            for each in together:
                each.future.set_exception(error)
            return
        for each, outputs in zip(together, answers, strict=True):
            each.future.set_result(outputs)

    def _answers(self, together: Sequence[_Waiting]) -> Iterable[list[Array]]:
        import numpy as np

        if len(together) == 1:
            return [self._model.run(together[0].inputs)]
        names = together[0].inputs
        outputs = self._model.run({name: np.concatenate([each.inputs[name] for each in together]) for name in names})
        ends = np.cumsum([each.rows for each in together])[:-1]
        return list(map(list, zip(*(np.split(output, ends) for output in outputs), strict=True)))
