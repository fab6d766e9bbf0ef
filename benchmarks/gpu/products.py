"""A model that is one matrix product, and whether a bundle of it computes what NumPy does.

python -m benchmarks.gpu.products write MODEL SIZE makes the model; ... check BUNDLE VARIANT prints the largest
difference to NumPy in double precision, relative to the largest output, as JSON, and fails where it is above what
rounding explains.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from fractune_workers.children.tvm_api.keep_out import keep_torch_out

_WEIGHTS = "weights"
TOLERANCE = 1e-4
"""float32, summed in another order"""


def write_product(path: Path, size: int) -> Path:
    """An ONNX model `y = x @ weights` of matrices of `size` x `size`."""
    import onnx

    values = np.random.default_rng(0).uniform(-0.5, 0.5, (size, size)).astype("float32")
    kind = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", _WEIGHTS], ["y"])],
        "product",
        [onnx.helper.make_tensor_value_info("x", kind, [size, size])],
        [onnx.helper.make_tensor_value_info("y", kind, [size, size])],
        [onnx.numpy_helper.from_array(values, _WEIGHTS)],
    )
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    np.save(path.with_suffix(".npy"), values)
    return path


def error_of(bundle: Path, variant: str, weights: np.ndarray) -> float:
    """Largest difference of the variant's output to NumPy's, relative to the largest output."""
    import fractune

    keep_torch_out()  # TVM's FFI would import it, which takes seconds and starts CUDA
    model = fractune.load(bundle)
    given = model.random_inputs()
    (output,) = model.run(given, variant)
    expected = given["x"].astype("float64") @ weights.astype("float64")
    return float(np.abs(np.asarray(output) - expected).max() / np.abs(expected).max())


def main() -> int:
    command, path, last = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    if command == "write":
        write_product(path, int(last))
        return 0
    error = error_of(path, last, np.load(path.with_suffix(".npy")))
    print(json.dumps({"max_error": error}))
    return 0 if error <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
