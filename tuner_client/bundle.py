"""A bundle at inference: find the share, pick its variant, load it, run it.

units = enter_share(None)              before anything loads TVM
model = load_model(Path("m.fractune"), units)
outputs = model.run({"data": array})
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner_core.bundles import UNTUNED_VARIANT, WEIGHTS, Bundle
from tuner_core.errors import BadBundle, BadRequest, FractuneError, ShareUnavailable
from tuner_core.shares import Share

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[Any]

_MIN_TURN_S = 0.02
"""One turn of a variant calls the model until this long has passed"""


@dataclass(frozen=True)
class Choice:
    """Which variant of a bundle to run, and why."""

    variant: str
    exact: bool
    """tuned at just as many cores as there are here"""
    reason: str


@dataclass(frozen=True)
class InputSpec:
    name: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape)}"


def enter_share(share: Share | None) -> int:
    """Confine this process to `share`, or find the share that it is under already; return its cores.

    TVM sizes its thread pool when it is loaded and binds its threads as it likes, so it is told before.
    Raises ShareUnavailable when the share is larger than what this process may use, BadRequest for a share
    that is no CPU share, FractuneError when TVM is loaded already.
    """
    if "tvm" in sys.modules:
        raise FractuneError("TVM is loaded already; enter the share first, in a process of its own")
    allowed = sorted(os.sched_getaffinity(0))
    if share is not None:
        if share.cores > len(allowed):
            raise ShareUnavailable(
                f"share '{share}' is larger than the {len(allowed)} core(s) that this process may use; "
                f"ask for cpu:{len(allowed)} at most"
            )
        allowed = allowed[: share.cores]
        os.sched_setaffinity(0, allowed)
    os.environ["TVM_NUM_THREADS"] = str(len(allowed))
    os.environ["TVM_BIND_THREADS"] = "0"
    return len(allowed)


def choose_variant(bundle: Bundle, units: int) -> Choice:
    """The variant tuned at `units` cores, else the one tuned at the nearest number of cores by ratio."""
    tuned = {
        entry["name"]: int(bundle.manifest["shares"][entry["name"]]["units"])
        for entry in bundle.variants
        if entry["name"] != UNTUNED_VARIANT
    }
    if not tuned:
        return Choice(UNTUNED_VARIANT, exact=False, reason="the bundle holds no tuned variant")
    name = min(tuned, key=lambda name: (max(tuned[name] / units, units / tuned[name]), tuned[name]))
    if tuned[name] == units:
        return Choice(name, exact=True, reason=f"tuned at {units} core(s), as here")
    reason = f"tuned at {tuned[name]} core(s), the nearest to the {units} here; best is to tune at cpu:{units}"
    return Choice(name, exact=False, reason=reason)


def check_processor(bundle: Bundle) -> None:
    """Raises BadBundle when the code is for another processor, or for features that this one lacks."""
    device = bundle.manifest["device"]
    if device["kind"] != "cpu":
        raise BadBundle(f"{bundle.name} is for a {device['kind']} device; run it there")
    import tvm

    host = str(tvm.get_global_func("target.llvm_get_system_cpu")())
    if device["isa"] != host:
        raise BadBundle(f"{bundle.name} is for the CPU '{device['isa']}', this one is '{host}'; tune the model here")
    lacking = sorted(_code_features(tvm, bundle.manifest["target"]) & _absent_features(tvm))
    if lacking:
        raise BadBundle(f"{bundle.name} may use {', '.join(lacking)}, which this machine lacks; tune the model here")


def _code_features(tvm: Any, target: str) -> set[str]:
    """CPU features that code for the target may use."""
    config = json.loads(target)
    named = {key: config[key] for key in ("mcpu", "mattr", "mtriple") if config.get(key)}
    parsed = tvm.target.Target({"kind": "llvm", **named})
    return {str(name) for name in tvm.get_global_func("target.llvm_get_cpu_features")(parsed)}


def _absent_features(tvm: Any) -> set[str]:
    """CPU features that this host is known to lack."""
    features = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()
    return {str(name) for name, present in features.items() if not present}


class Model:
    """The variants of a bundle, loaded; all of them share one copy of the weights. Not thread-safe."""

    def __init__(self, bundle: Bundle, choice: Choice) -> None:
        import tvm

        self.choice = choice
        self.inputs = [
            InputSpec(spec["name"], spec["dtype"], tuple(spec["shape"])) for spec in bundle.manifest["inputs"]
        ]
        self._bundle = bundle
        self._mains: dict[str, Any] = {}
        weights = tvm.runtime.load_param_dict(bundle.read(WEIGHTS))
        self._weights = [weights[f"weight{index}"] for index in range(bundle.manifest["weights"])]

    def run(self, inputs: Mapping[str, Array], variant: str | None = None) -> list[Array]:
        """The outputs of the chosen variant, or of another. Raises BadRequest for wrong inputs."""
        return _arrays(self._main(variant)(*self._arguments(inputs)))

    def random_inputs(self, seed: int = 0) -> dict[str, Array]:
        """Inputs between 0.1 and 1; 0 or 1 for integers, which may be indices."""
        import numpy as np

        rng = np.random.default_rng(seed)
        return {spec.name: _random_array(rng, spec) for spec in self.inputs}

    def time_variants(
        self, inputs: Mapping[str, Array], variants: Sequence[str], repeats: int
    ) -> dict[str, list[float]]:
        """Seconds of one inference by variant, `repeats` of them, in turns: all see the same machine."""
        arguments = self._arguments(inputs)
        mains = {name: self._main(name) for name in variants}
        for main in mains.values():
            main(*arguments)
        run_secs: dict[str, list[float]] = {name: [] for name in variants}
        for _ in range(repeats):
            for name, main in mains.items():
                run_secs[name].append(_one_turn(main, arguments))
        return run_secs

    def _main(self, variant: str | None) -> Any:
        name = variant or self.choice.variant
        if name not in self._mains:
            import tvm
            import tvm_ffi_orcjit
            from tvm import relax

            library = tvm_ffi_orcjit.default_session().load_module(self._bundle.objects(name))
            self._mains[name] = relax.VirtualMachine(library, tvm.cpu())["main"]
        return self._mains[name]

    def _arguments(self, inputs: Mapping[str, Array]) -> list[Any]:
        import tvm

        self.check_inputs(inputs)
        return [*(tvm.runtime.tensor(inputs[spec.name]) for spec in self.inputs), *self._weights]

    def check_inputs(self, inputs: Mapping[str, Array]) -> None:
        """Raises BadRequest that lists what is expected unless names, types and shapes are just these."""
        found = [
            str(InputSpec(spec.name, str(inputs[spec.name].dtype), inputs[spec.name].shape))
            for spec in self.inputs
            if spec.name in inputs
        ]
        found += [f"{name} (unknown)" for name in inputs if name not in {spec.name for spec in self.inputs}]
        expected = [str(spec) for spec in self.inputs]
        if found != expected:
            raise BadRequest(f"the model takes {', '.join(expected)}; given: {', '.join(found) or 'nothing'}")


def load_model(path: Path, units: int) -> Model:
    """Load the variant of the bundle at `path` that fits `units` cores. Raises BadBundle."""
    bundle = Bundle(path)
    check_processor(bundle)
    return Model(bundle, choose_variant(bundle, units))


def read_inputs(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file by name. Raises BadRequest when it is none, or holds Python objects."""
    import numpy as np

    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            raise BadRequest(f"--inputs {path}: one array without a name; write it by numpy.savez(FILE, NAME=...)")
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except (OSError, ValueError, EOFError) as error:
        raise BadRequest(f"--inputs {path}: cannot be read as .npz ({error})") from error


def differences(outputs: Sequence[Array], reference: Sequence[Array]) -> tuple[float, float]:
    """Largest absolute difference, and that over the reference's largest value; infinite for NaN."""
    import numpy as np

    absolute = relative = 0.0
    for output, wanted in zip(outputs, reference, strict=True):
        out, ref = output.astype("float64"), wanted.astype("float64")
        if not np.array_equal(np.isfinite(out), np.isfinite(ref)):
            return float("inf"), float("inf")
        finite = np.isfinite(ref)
        largest = float(np.abs(out[finite] - ref[finite]).max(initial=0.0))
        scale = float(np.abs(ref[finite]).max(initial=0.0)) or 1.0
        absolute, relative = max(absolute, largest), max(relative, largest / scale)
    return absolute, relative


def spread_text(run_secs: Sequence[float]) -> str:
    """`1.23 ms (1.20 .. 1.31)`: median, smallest and largest."""
    return f"{statistics.median(run_secs) * 1e3:.4g} ms ({min(run_secs) * 1e3:.4g} .. {max(run_secs) * 1e3:.4g})"


def _random_array(rng: np.random.Generator, spec: InputSpec) -> Array:
    import numpy as np

    dtype = np.dtype(spec.dtype)
    if dtype.kind == "f":
        return rng.uniform(0.1, 1.0, size=spec.shape).astype(dtype)
    return rng.integers(0, 2, size=spec.shape).astype(dtype)


def _arrays(result: Any) -> list[Array]:
    """The outputs as arrays, whether the model gives one tensor or a (nested) tuple of them."""
    if hasattr(result, "numpy"):
        return [result.numpy().copy()]
    return [array for part in result for array in _arrays(part)]


def _one_turn(main: Any, arguments: Sequence[Any]) -> float:
    """Seconds of one inference, averaged over as many as fill the shortest turn."""
    calls, start = 0, time.perf_counter()
    while True:
        main(*arguments)
        calls += 1
        spent = time.perf_counter() - start
        if spent >= _MIN_TURN_S:
            return spent / calls
