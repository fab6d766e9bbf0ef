"""A bundle in the place of an ONNX file, for programs that are written for `onnxruntime.InferenceSession`.

session = fractune.InferenceSession("model.fractune", options, providers=["CPUExecutionProvider"])
outputs = session.run(None, {session.get_inputs()[0].name: array})

Tensors, bound memory and errors are those of `io_binding`.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from fractune_core.analysis.match import DEFAULT_POLICY, Policy
from fractune_core.errors import BadRequest
from fractune_core.files.buckets import UNKNOWN
from fractune_core.files.bundles import Bundle
from fractune_core.files.compared import RUNTIMES
from fractune_core.model_inputs import parse_numbers
from fractune_core.served import ServiceGoal
from fractune_core.share_kinds import CPU
from fractune_core.shares import Share
from fractune_runtime.bucketed_model import BucketedModel
from fractune_runtime.choosing import match_share, runtime_choice
from fractune_runtime.cpu import share_of
from fractune_runtime.io_binding import IOBinding, input_of, invalid_argument, onnx_type, ort_value
from fractune_runtime.kept_caches import KeptCaches
from fractune_runtime.loading import model_of, open_bundle
from fractune_runtime.model import Model, warn_caller
from fractune_runtime.tvm_runtime.tensors import Array, TensorSpec

Providers = Sequence[str | tuple[str, dict[Any, Any]]]
Callback = Callable[[list[Any], Any, str], None]

_ON_CPU = "CPUExecutionProvider"
_PROVIDERS = {CPU: _ON_CPU, "cuda": "CUDAExecutionProvider"}
"""by the kind of a bundle's device"""
_NO_VERSION = 2**63 - 1
"""ONNX Runtime's number for a file without a version"""
_KEYWORDS = {"enable_fallback", "read_config_from_model", "disabled_optimizers"}
"""ONNX Runtime's other keywords: they choose among providers, or change the file's graph"""
_THREADS = "intra_op_num_threads"
_FOLLOWED = {_THREADS, "inter_op_num_threads", "log_severity_level", "log_verbosity_level", "logid"}
"""Operators run one after the other, and nothing is logged"""
_ENTRIES = ("session.intra_op.allow_spinning", "session.intra_op_thread_affinities", "session.dynamic_block_base")
"""entries that change how a session computes; ONNX Runtime does not list the entries that were added"""


@dataclass
class SessionOptions:
    """The options of a session by ONNX Runtime's names, for programs without onnxruntime. A session follows the number
    of threads, and warns once of the others that are not the defaults.
    """

    intra_op_num_threads: int = 0
    """at most so many threads, within the share; 0 = as the share says"""
    inter_op_num_threads: int = 0
    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    enable_profiling: bool = False
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    optimized_model_filepath: str = ""
    use_deterministic_compute: bool = False

    def add_session_config_entry(self, key: str, value: str) -> None:
        setattr(self, key, value)


@dataclass(frozen=True)
class NodeArg:
    """An input or an output."""

    name: str
    shape: list[int | str | None]
    """an open axis is a name, or None"""
    type: str
    """as ONNX Runtime writes it: `tensor(float)`"""


@dataclass(frozen=True)
class ModelMetadata:
    """What the ONNX file said about itself, as far as the bundle holds it."""

    producer_name: str = ""
    graph_name: str = ""
    graph_description: str = ""
    domain: str = ""
    description: str = ""
    version: int = _NO_VERSION
    custom_metadata_map: dict[str, str] = field(default_factory=dict)


class InferenceSession:
    """A bundle behind the interface of `onnxruntime.InferenceSession`, over `fractune.load` with its options. Any
    thread may call it.

    `sess_options` are those of onnxruntime or a `fractune.SessionOptions`. Of them the session follows the number of
    threads, within the share. A UserWarning lists what else differs from the defaults and is ignored, and the
    `providers` other than the bundle's. docs/running.md has the table.

    Names and inputs that the model does not take raise a BadRequest that is a ValueError too, and an InvalidArgument of
    onnxruntime if the program has imported it. Raises as `fractune.load`; for a bundle of a GPU also BadRequest if
    `providers` do not name CUDAExecutionProvider.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: Any = None,
        providers: Providers | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
        *,
        share: str | None = None,
        public_key: str | bytes | None = None,
        policy: Policy = DEFAULT_POLICY,
        goal: ServiceGoal = "latency",
        denormals: bool = False,
        **kwargs: Any,
    ) -> None:
        if strangers := kwargs.keys() - _KEYWORDS:
            raise TypeError(f"InferenceSession has no option '{min(strangers)}'")
        bundle = open_bundle(path_or_bytes, public_key)
        kind = bundle.manifest["device"]["kind"]
        self._name, self._provider = bundle.name, _PROVIDERS.get(kind, "")
        self._take_providers(providers, provider_options, _ignored(sess_options, kind))
        threads = _fewer_threads(bundle, sess_options, share, policy, goal)
        self.model: Model = model_of(
            bundle, share=share, policy=policy, goal=goal, threads=threads, denormals=denormals
        )
        axes = self.model.axes if isinstance(self.model, BucketedModel) else None
        self._inputs = _nodes(self.model.inputs, axes.inputs if axes else {})
        self._outputs = _nodes(self.model.outputs, axes.outputs if axes else {})
        self._places = {node.name: place for place, node in enumerate(self._outputs)}
        self._constants: Mapping[str, str] = bundle.manifest.get("constants", {})
        self._options = SessionOptions() if sess_options is None else sess_options

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: object = None
    ) -> list[Array]:
        """The outputs with these names in this order, or all of them. `run_options` are ignored.

        An input that was made a constant when the model was tuned may be given with its numbers.
        """
        del run_options
        return self._run(self._places_of(output_names), input_feed)

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callback,
        user_data: object,
        run_options: object = None,
    ) -> None:
        """Return at once. Later another thread calls `callback(outputs, user_data, "")`, or after an error
        `callback([], user_data, message)`.
        """
        del run_options
        places = self._places_of(output_names)

        def run() -> None:
            try:
                outputs: list[Any] = self._run(places, input_feed)
            except BaseException as error:  # noqa: BLE001  the callback gets it
                callback([], user_data, str(error) or repr(error))
            else:
                callback(outputs, user_data, "")

        threading.Thread(target=run).start()

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, Any], run_options: object = None
    ) -> list[Any]:
        """As `run`, with each input and output an `OrtValue`."""
        return [ort_value(each) for each in self.run(output_names, input_dict_ort_values, run_options)]

    def io_binding(self) -> IOBinding:
        """Where runs find their inputs and leave their outputs. Of a decoder it keeps the caches: a `present` that is
        bound as the next step's `past` is not copied.
        """
        caches = None if self.model.choice.variant in RUNTIMES else self.model.bundle.manifest.get("caches")
        kept = KeptCaches(self.model, caches, [node.name for node in self._outputs]) if caches else None
        return IOBinding(self.run, None if kept is None else kept.run)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: object = None) -> None:
        """Run with the inputs and outputs that are bound. Raises as `run`."""
        del run_options
        if iobinding.run_of_session != self.run:
            raise invalid_argument("the binding is of another session; make it by this session's io_binding()")
        iobinding.run()

    def get_inputs(self) -> list[NodeArg]:
        return self._inputs

    def get_outputs(self) -> list[NodeArg]:
        return self._outputs

    def get_overridable_initializers(self) -> list[NodeArg]:
        """None: a bundle's weights are fixed."""
        return []

    def get_modelmeta(self) -> ModelMetadata:
        known = self.model.bundle.manifest["model"].get("metadata", {})
        return ModelMetadata(**{each.name: known[each.name] for each in fields(ModelMetadata) if each.name in known})

    def get_session_options(self) -> Any:
        """The options that were given; all defaults without them."""
        return self._options

    def get_providers(self) -> list[str]:
        """The provider by whose name the bundle's device is known to ONNX Runtime, even if another runtime runs it."""
        return [self._provider]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {self._provider: {}}

    def set_providers(
        self, providers: Providers | None = None, provider_options: Sequence[dict[Any, Any]] | None = None
    ) -> None:
        """Check them as at the start: the bundle's code stays where it is."""
        self._take_providers(providers, provider_options, ())

    def enable_fallback(self) -> None:
        """Nothing: there is no other provider."""

    def disable_fallback(self) -> None:
        """Nothing: there is no other provider."""

    def end_profiling(self) -> str:
        """The name of no file: nothing is profiled."""
        return ""

    def _take_providers(
        self, providers: Providers | None, options: Sequence[dict[Any, Any]] | None, ignored: Collection[str]
    ) -> None:
        """Warn of providers that the bundle does not run on, of options of its own, and of what else is `ignored`."""
        given = _by_name(providers or (), options)
        own = self._provider
        if given and own not in given and own != _ON_CPU:
            raise invalid_argument(f"providers {list(given)}: {self._name} runs by {own}; name that provider, or none")
        others = [name for name in given if name not in (own, _ON_CPU)]
        own_options = [f"{own}'s {key} = {value}" for key, value in given.get(own, {}).items()]
        if ignored := [*others, *own_options, *ignored]:
            warn_caller(f"{self._name} runs by {own} and ignores {', '.join(ignored)}", UserWarning)

    def _run(self, places: list[int] | None, feed: Mapping[str, Any]) -> list[Array]:
        try:
            outputs = self.model.run(self._arrays(feed))
        except BadRequest as error:
            raise invalid_argument(str(error)) from error
        return outputs if places is None else [outputs[place] for place in places]

    def _places_of(self, names: Sequence[str] | None) -> list[int] | None:
        if not names:
            return None
        if isinstance(names, str):  # a sequence too, of its letters
            raise _not_names(names)
        try:
            return [self._places[name] for name in names]
        except TypeError as error:  # not a sequence, or a name that is not hashable
            raise _not_names(names) from error
        except KeyError as error:
            raise invalid_argument(f"the model has no output {error}; it gives {', '.join(self._places)}") from error

    def _arrays(self, feed: Any) -> Any:
        if not isinstance(feed, Mapping):
            return feed  # the model says what it takes
        found = {name: input_of(value) for name, value in feed.items()}
        for name, numbers in self._constants.items():
            if name in found:
                _check_constant(name, numbers, found.pop(name))
        return found


def _not_names(given: Any) -> BadRequest:
    return invalid_argument(f"output_names is {given!r}; give a list of names, or None for all")


def _by_name(providers: Providers, options: Sequence[dict[Any, Any]] | None) -> dict[str, dict[Any, Any]]:
    """The options by provider. Raises BadRequest for other forms than ONNX Runtime's."""
    if options is not None:
        if len(options) != len(providers) or not all(isinstance(each, str) for each in providers):
            raise invalid_argument(
                "provider_options: give one dict for each provider, and the providers by their names"
            )
        return dict(zip(map(str, providers), options, strict=True))
    found: dict[str, dict[Any, Any]] = {}
    for each in providers:
        match each:
            case str():
                found.setdefault(each, {})
            case (str(name), dict(its)):
                found.setdefault(name, its)
            case _:
                raise invalid_argument(f"providers has {each!r}; give names, or pairs of a name and a dict of options")
    return found


def _ignored(options: Any, kind: str) -> list[str]:
    """The options that differ from those of a new object of their class, and that a bundle does not follow."""
    if options is None:
        return []
    followed = _FOLLOWED if kind == CPU else _FOLLOWED - {_THREADS}
    return [f"{name} = {value}" for name, value in _changed(options) if name not in followed]


def _changed(options: Any) -> Iterator[tuple[str, Any]]:
    plain = type(options)()
    for name in dir(options):
        value = getattr(options, name)
        if not name.startswith("_") and not callable(value) and value != getattr(plain, name, None):
            yield name, value
    if hasattr(options, "get_session_config_entry"):
        for key in _ENTRIES:
            with contextlib.suppress(RuntimeError):  # no such entry
                yield key, options.get_session_config_entry(key)


def _fewer_threads(bundle: Bundle, options: Any, share: str | None, policy: Policy, goal: ServiceGoal) -> int | None:
    """The number of threads of the options, if the share would have more; else None."""
    most = getattr(options, _THREADS, 0)
    if most < 1 or bundle.manifest["device"]["kind"] != CPU:
        return None
    own, here = match_share(bundle, share_of(Share.parse(share) if share else None), policy, goal)
    found, _ = runtime_choice(bundle, here, own, goal)
    return most if most < found.threads else None


def _nodes(specs: Sequence[TensorSpec], axes: Mapping[str, Sequence[str | None]]) -> list[NodeArg]:
    return [NodeArg(spec.name, _shape(spec, axes.get(spec.name)), onnx_type(spec.dtype)) for spec in specs]


def _shape(spec: TensorSpec, symbols: Sequence[str | None] | None) -> list[int | str | None]:
    if symbols is None:
        return list(spec.shape)
    pairs = zip(spec.shape, symbols, strict=True)
    return [(None if symbol == UNKNOWN else symbol) if size is None else size for size, symbol in pairs]


def _check_constant(name: str, numbers: str, given: Any) -> None:
    """Raises BadRequest for other numbers than those of the constant."""
    import numpy as np

    held = np.asarray(given)
    wanted = parse_numbers(name, numbers, str(held.dtype))
    if len(wanted) not in (1, held.size) or not (held.ravel() == wanted).all():
        raise BadRequest(
            f"input '{name}' was made a constant when the model was tuned, and has other numbers here; leave it out, "
            "or tune the model for these numbers"
        )
