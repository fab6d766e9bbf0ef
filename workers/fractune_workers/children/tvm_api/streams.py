"""Where TVM launches: on the stream of the confined process, in the thread that measures."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import tvm_ffi

from fractune_core.errors import ShareUnavailable


@contextlib.contextmanager
def launching_on(stream: int, device: str = "cuda:0") -> Iterator[None]:
    """Within the block, this thread's kernels for `device` go to `stream` (an address; 0 = the default stream).

    The setting belongs to the thread: another one still launches on the default stream, unconfined. TVM copies and
    syncs on the NULL stream, which a green context's stream does not wait for: before reading what a kernel wrote,
    call `tvm.device(device).sync(stream)`. Raises ShareUnavailable when TVM does not take the stream.
    """
    found = tvm_ffi.device(device)
    with tvm_ffi.use_raw_stream(found, stream):
        taken = tvm_ffi.get_raw_stream(found)
        if taken != stream:
            raise ShareUnavailable(
                f"TVM launches on stream {taken:#x}, not on {stream:#x}, which is the confined one; install the locked "
                "version of apache-tvm-ffi"
            )
        yield
