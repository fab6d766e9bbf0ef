"""The operators of ONNX that are converted here, by name: those that TVM's importer lacks, or converts with another
meaning. An operator of another domain than ONNX's own has its domain in front: `com.microsoft.QGemm`.
"""

from __future__ import annotations

from collections.abc import Mapping

from fractune_workers.children.importing.onnx_models.onnx_branches import BRANCHES
from fractune_workers.children.importing.operators.corrected import CORRECTED
from fractune_workers.children.importing.operators.fourier import FOURIER
from fractune_workers.children.importing.operators.integer_products import INTEGER_PRODUCTS
from fractune_workers.children.importing.operators.onnx_node import Converter
from fractune_workers.children.importing.operators.packed_weights import PACKED_WEIGHTS
from fractune_workers.children.importing.operators.quantization import QUANTIZATION
from fractune_workers.children.importing.operators.quantized_lstm import QUANTIZED_LSTM
from fractune_workers.children.importing.operators.recurrent import RECURRENT

CONVERTERS: Mapping[str, Converter] = {
    **BRANCHES,
    **CORRECTED,
    **FOURIER,
    **INTEGER_PRODUCTS,
    **PACKED_WEIGHTS,
    **QUANTIZATION,
    **QUANTIZED_LSTM,
    **RECURRENT,
}
