"""One fresh process that loads a bundle and runs it: its seconds, or its memory, as one line of JSON.

Usage: python -m benchmarks.support.load_child seconds|memory BUNDLE
"""

import json
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any

_RUNS = 5
_PRIVATE = re.compile(r"^Private_(?:Clean|Dirty): +(\d+) kB", re.MULTILINE)
_STORAGE = re.compile(r"call +vm\.builtin\.alloc_storage in: %vm, c\[(\d+)\]")
_CONSTANT = re.compile(r"(shapetuple\[[\d, ]*\]|\"ErrorContext\(.*?\) \"|[^,\]]+)(?:, |\])")
_SHAPE = re.compile(r"shapetuple\[(\d+)\]")


def seconds(bundle: str) -> dict[str, Any]:
    """From `load` to the first output when nothing is imported, and the inference alone once it is warm."""
    start = time.perf_counter()
    import fractune

    model = fractune.load(bundle)
    loaded = time.perf_counter()
    inputs = model.random_inputs()
    given = time.perf_counter()
    model.run(inputs)
    done = time.perf_counter()
    run_secs = [_timed(model, inputs) for _ in range(_RUNS)]
    return {
        "load_s": loaded - start,
        "first_run_s": done - given,
        "first_output_s": (loaded - start) + (done - given),
        "later_run_s": statistics.median(run_secs),
        "variant": model.choice.variant,
    }


def memory(bundle: str) -> dict[str, Any]:
    """The growth of the process's memory from its imports to loading and running; the imports are timed as well."""
    start = time.perf_counter()
    import numpy as np  # noqa: F401  imported here to be timed, as are the next ones
    import tvm_ffi_orcjit

    import fractune
    from fractune_core.files.bundles import Bundle
    from fractune_runtime import runner
    from fractune_runtime.tvm_runtime import drawing, runtime, tensors

    runtime.load_runtime()
    tvm_ffi_orcjit.default_session()
    imported = time.perf_counter()
    inputs = drawing.random_inputs(tensors.specs_of(Bundle(Path(bundle)).manifest["inputs"]))
    before = _private_bytes()
    begun = time.perf_counter()
    model = fractune.load(bundle)
    loaded = time.perf_counter()
    for _ in range(_RUNS):
        model.run(inputs)
    after = _private_bytes()
    # TVM keeps operators' scratch memory for each thread, all else once: one more thread shows how much it is.
    another = model._runner = runner.Runner(model.share.units, model.share.cpus)  # noqa: SLF001  no model has two
    model.run(inputs)
    scratch = _private_bytes() - after
    another.stop()
    return {
        "imports_s": imported - start,
        "load_after_imports_s": loaded - begun,
        "imports_bytes": before,
        "model_bytes": after - before,
        "weights_bytes": sum(weight["size"] for weight in model.bundle.manifest["weights"]),
        "planned_bytes": _planned_bytes(model),
        "scratch_bytes": scratch,
    }


def _timed(model: Any, inputs: dict[str, Any]) -> float:
    start = time.perf_counter()
    model.run(inputs)
    return time.perf_counter() - start


def _private_bytes() -> int:
    """Memory that is this process's alone: libraries that others use too are not in it."""
    return sum(map(int, _PRIVATE.findall(Path("/proc/self/smaps_rollup").read_text()))) * 1024


def _planned_bytes(model: Any) -> int:
    """The storage that the compiled program requests from the virtual machine for values between its operators, in
    all.
    """
    import tvm_ffi
    import tvm_ffi_orcjit

    load = tvm_ffi.get_global_func("tvm_ffi_orcjit.SessionLoadModule")
    objects = model.bundle.objects(model.choice.variant)
    module = load(tvm_ffi_orcjit.default_session(), objects, "", None, None)
    if module.kind != "relax.VMExecutable":
        (module,) = (part for part in module.imports if part.kind == "relax.VMExecutable")
    constants = str(module["stats"]()).partition("Constant pool")[2].partition(": [")[2]
    pool = _CONSTANT.findall(constants)
    planned = 0
    for number in _STORAGE.findall(str(module["as_text"]())):
        size = _SHAPE.fullmatch(pool[int(number)])
        if size is None:
            raise SystemExit("load: the compiled program cannot be read; has TVM's text of it changed?")
        planned += int(size.group(1))
    return planned


if __name__ == "__main__":
    print(json.dumps({"seconds": seconds, "memory": memory}[sys.argv[1]](sys.argv[2])))
