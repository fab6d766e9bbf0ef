"""The names of the blocks of fractune's own kernels, by which a search knows what it schedules."""

from __future__ import annotations

CONV, DEPTHWISE, MATMUL = "conv2d_blocked", "depthwise_blocked", "matmul_blocked"
"""the main computation of each kernel over blocked layouts"""

PADDED, IMAGE_COLUMNS, IMAGE = "pad_temp", "winograd_image_columns", "winograd_image"
GEMM = "winograd_gemm"
OUTPUT_COLUMNS, OUTPUT = "winograd_output_columns", "winograd_output"
"""the computations of Winograd's convolution, in their order"""

ROWS, COLUMNS, INTEGER_SUMS, SUMS = "integer_rows", "integer_columns", "integer_sums", "sums"
"""The computations of a product of whole numbers, in their order. Constant weights have no columns to compute."""

KERNELS = (
    frozenset({CONV}),
    frozenset({DEPTHWISE}),
    frozenset({MATMUL}),
    frozenset({PADDED, IMAGE_COLUMNS, IMAGE, GEMM, OUTPUT_COLUMNS, OUTPUT}),
    frozenset({ROWS, INTEGER_SUMS, SUMS}),
    frozenset({ROWS, COLUMNS, INTEGER_SUMS, SUMS}),
)
"""the names that one kernel has; each is only a kernel's where all of them are"""

WHOLE_NUMBERS = "fractune.whole_numbers"
"""The annotation of a float32 kernel whose two operands are whole numbers: the smallest and the largest of its data,
then of its weights. Where the weights are computed, a 1 follows."""
