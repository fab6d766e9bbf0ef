"""Keeps PyTorch, SymPy, GPUs, unused backends, lines on standard output, and work done 50 times out of children.

TVM's FFI imports PyTorch wherever it is installed. The import takes seconds in each child. PyTorch also sets up CUDA,
which would make builders clients of the GPU. Only the child that reads `torch.export` files lets PyTorch in. TVM's FFI
imports CUDA's bindings too, to recognize streams of that package, which children do not pass to TVM.
"""

import contextlib
import io
import os
import sys
import types
import warnings
from collections.abc import Iterator

from fractune_core.cuda import VISIBLE_DEVICES

_TORCH = "torch"
_CUDA_BINDINGS = "cuda.bindings.driver"
_SHAPE_INFERENCE = "onnxslim.third_party.symbolic_shape_infer"
_DISTRIBUTED = "tvm.runtime.disco"
_AUTOLOAD = "TVM_DEVICE_BACKEND_AUTOLOAD"


def keep_torch_out() -> None:
    """Have `import torch` fail from now on, as if it were not installed; one that is imported stays."""
    # With None, Python reports that the module does not exist.
    sys.modules.setdefault(_TORCH, None)  # type: ignore[arg-type]


def keep_shape_inference_out() -> None:
    """Have `onnxslim` import no inference of shapes, which its caller switches off: SymPy takes a quarter of the time
    that the import of a child takes.
    """
    stand_in = types.ModuleType(_SHAPE_INFERENCE, "Stands in for what is not used.")
    vars(stand_in)["SymbolicShapeInference"] = None
    sys.modules.setdefault(_SHAPE_INFERENCE, stand_in)


def let_torch_in() -> None:
    """Let `import torch` work again."""
    if sys.modules.get(_TORCH, sys) is None:
        del sys.modules[_TORCH]


@contextlib.contextmanager
def functions_listed_once() -> Iterator[None]:
    """Within the block, `import tvm` lists the names of TVM's functions again only if there are new ones. It asks for
    them once for each of its 50 packages, a quarter of the time that it takes.
    """
    if sys.modules.setdefault(_CUDA_BINDINGS, None) is None:  # type: ignore[arg-type]
        import tvm_ffi  # noqa: F401  without them; a child that needs them imports them later

        del sys.modules[_CUDA_BINDINGS]
    from tvm_ffi import registry

    whole = registry.list_global_func_names
    counter = registry.get_global_func("ffi.FunctionListGlobalNamesFunctor")
    names: list[str] = []

    def listed() -> list[str]:
        if len(names) != counter()(-1):
            names[:] = whole()
        return names

    registry.list_global_func_names = listed
    try:
        yield
    finally:
        registry.list_global_func_names = whole


@contextlib.contextmanager
def backends_kept_out() -> Iterator[None]:
    """Within the block, `import tvm` loads neither the backends of GPUs nor what spreads a model over several of them:
    half of its time. `load_cuda` loads the backend that children use.
    """
    sys.modules.setdefault(_DISTRIBUTED, None)  # type: ignore[arg-type]
    os.environ[_AUTOLOAD] = "0"
    yield
    del os.environ[_AUTOLOAD]
    if "tvm" not in sys.modules:
        return  # its runtime alone
    from tvm import libinfo
    from tvm_ffi.libinfo import load_lib_ctypes

    # TVM loads it among the backends, where there is one. It has functions that kernels call, such as those that sort.
    with contextlib.suppress(OSError, RuntimeError):
        load_lib_ctypes("tvm", "tvm_runtime_extra", "RTLD_LOCAL", extra_lib_paths=libinfo.package_lib_paths())


def load_cuda() -> None:
    """Load TVM's backend for CUDA, unless it is loaded."""
    from tvm.backend.loader import load

    load("cuda")


_NO_GPU = {
    # A process that asks CUDA for a device becomes a client of the GPU and of its MPS daemon: hide all devices.
    VISIBLE_DEVICES: "",
    # TVM packs source, with or without a driver: its own compilation would depend on the machine.
    "TVM_COMPILE_FORCE_FALLBACK": "1",
}


def stay_off_gpus() -> None:
    """Keep this process from using a GPU. Takes effect until the first call of CUDA."""
    os.environ.update(_NO_GPU)


@contextlib.contextmanager
def hushed() -> Iterator[None]:
    """Within the block, libraries print nothing on standard output, and their warnings are dropped."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
