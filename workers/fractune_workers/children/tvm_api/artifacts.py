"""Artifacts: machine code of one candidate in memory, loaded without a linker and without TVM's compiler.

An artifact is one object file, or several in the archive format of `ar`, which `ar t` and `ar x` read.
"""

from collections.abc import Mapping
from typing import Any

import tvm_ffi_orcjit

_MAGIC = b"!<arch>\n"
_HEADER_BYTES = 60
_LONGEST_NAME = 15
_END = b"`\n"


def load_objects(objects: list[bytes]) -> Any:
    """The runtime module in object files, or archives of them. Two loads never share code, unlike two of one path."""
    members = [part for each in objects for part in (unpack(each).values() if is_archive(each) else [each])]
    return tvm_ffi_orcjit.default_session().load_module(members)


def pack(members: Mapping[str, bytes]) -> bytes:
    """An archive of the members, by file name, in their order; the same bytes for the same members.

    Raises ValueError for a name of more than 15 characters: the format's long names are not needed here.
    """
    archive = bytearray(_MAGIC)
    for name, content in members.items():
        if len(name) > _LONGEST_NAME:
            raise ValueError(f"'{name}' has more than {_LONGEST_NAME} characters")
        # name, time, owner, group, mode, size: all text, filled up with blanks
        archive += f"{name + '/':<16}{0:<12}{0:<6}{0:<6}{644:<8}{len(content):<10}".encode() + _END + content
        archive += b"\n" * (len(content) % 2)
    return bytes(archive)


def is_archive(content: bytes) -> bool:
    return content.startswith(_MAGIC)


def unpack(archive: bytes) -> dict[str, bytes]:
    """The members by name. Raises ValueError for bytes that `pack` did not write, and for a torn archive."""
    if not is_archive(archive):
        raise ValueError("not an archive")
    members: dict[str, bytes] = {}
    at = len(_MAGIC)
    while at < len(archive):
        header = archive[at : at + _HEADER_BYTES]
        if header[-2:] != _END or len(header) != _HEADER_BYTES:
            raise ValueError(f"no member begins at byte {at}")
        name, size = header[:16].decode().rstrip().removesuffix("/"), int(header[48:58])
        start = at + _HEADER_BYTES
        if start + size > len(archive):
            raise ValueError(f"member {name} is torn")
        members[name] = archive[start : start + size]
        at = start + size + size % 2
    return members
