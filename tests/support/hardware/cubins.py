"""Reading a cubin as far as its ELF header goes: is it one, and for which GPUs."""

import struct

_EM_CUDA = 190
_FLAGS = struct.Struct("<I")
_FLAGS_AT, _MACHINE_AT, _ABI_AT = 48, 18, 8
_NEW_ABI = 8
"""of CUDA 13: the capability has moved to the second byte of the flags"""


def cubin_arch(cubin: bytes) -> str:
    """`sm_90`, for code of `sm_90a` too: what the header names. Fails for anything but a cubin."""
    assert cubin[:4] == b"\x7fELF", cubin[:4]
    assert struct.unpack_from("<H", cubin, _MACHINE_AT)[0] == _EM_CUDA
    (flags,) = _FLAGS.unpack_from(cubin, _FLAGS_AT)
    new = cubin[_ABI_AT] >= _NEW_ABI
    return f"sm_{(flags >> 8 if new else flags) & 0xFF}"


def cubins_in(content: bytes) -> list[bytes]:
    """Every cubin that an object file carries, each to the end of the file: its header is what counts."""
    starts = [at for at in range(1, len(content)) if content.startswith(b"\x7fELF", at)]
    return [content[at:] for at in starts]
