"""Scheduled TIR becomes an object file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

from fractune_workers.children.tvm_api.byte_products import with_byte_products
from fractune_workers.children.tvm_api.parallel_modes import build_library
from fractune_workers.children.tvm_api.prefetches.convolutions import with_convolution_prefetches
from fractune_workers.children.tvm_api.prefetches.products import with_product_prefetches


def build_object(mod: Any, target: Any) -> bytes:
    """Compile a TIR module to one object file. Raises whatever TVM raises."""
    mod = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(
        with_product_prefetches(with_byte_products(mod, target))
    )
    return written(build_library(with_convolution_prefetches(mod), target))


def written(library: Any) -> bytes:
    """The object file of a compiled library."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "code.o"
        library.write_to_file(str(path), "o")
        return path.read_bytes()
