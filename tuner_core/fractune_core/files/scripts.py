"""TVMScript, which is Python code: neither a server nor a worker ever runs it, so they refuse it."""

REFUSAL = (
    "is TVMScript, which is Python code, and neither servers nor workers run that; write its module with "
    "tvm.ir.save_json, or pass --run-script, which runs the file on your own machine"
)

_READ_BYTES = 1 << 16
_WORDS = (b"ir_module", b"prim_func", b"tvm.script", b"R.function")
_BINARY = frozenset(range(32)) - frozenset(b"\t\n\r\f")
_OTHER_TEXT = (b"{", b"version https://git-lfs")


def is_script(start: bytes) -> bool:
    """Whether the file that begins with `start` is TVMScript, by words that stand there: nothing is parsed."""
    read = start[:_READ_BYTES]
    if read.lstrip().startswith(_OTHER_TEXT) or not _BINARY.isdisjoint(read[:4096]):
        return False
    return any(word in read for word in _WORDS)
