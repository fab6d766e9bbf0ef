"""The file for a new bundle: a bundle there that serves more, or another file, is replaced only on demand. A concurrent
reader has the old file or the new one.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from fractune_core.errors import BadBundle, BadRequest, StateUnusable
from fractune_core.files.buckets import input_shapes, shape_text
from fractune_core.files.bundles import Bundle
from fractune_core.files.compared import ONNX_RUNTIME, all_compared
from fractune_core.files.staged import Stages


@contextlib.contextmanager
def replacing_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that becomes `path` if the block ends well, with the permissions of the file there, and vanishes
    otherwise. Missing folders are made. Raises StateUnusable if it cannot be written.
    """
    draft = path.with_name(f".{path.name}.{threading.get_native_id()}")  # of no other process or thread
    try:
        if not path.parent.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)  # of a thread that was killed
        with draft.open("xb") as file:  # in a folder of others it may be a link
            yield file
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(file.fileno(), path.stat().st_mode & 0o777)
        draft.replace(path)
    except OSError as error:
        raise StateUnusable(f"{path}: cannot be written ({error.strerror}); check the folder") from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


_REMEDIES = "name another file with --out, or pass --force to replace it"


@dataclass(frozen=True)
class Serves:
    """What a bundle serves."""

    shares: Collection[str]
    """those that it was measured at, CPU limits too"""
    shapes: Sequence[Mapping[str, Sequence[int]]]
    """of the inputs by name, one for each shape; of a bundle that is not made yet those of some inputs"""
    runtimes: Collection[str] | None = None
    """other runtimes that serve something of it; None = not known yet"""

    @classmethod
    def of(cls, bundle: Bundle) -> Self:
        manifest = bundle.manifest
        members = [member.manifest for member in bundle.members] if "buckets" in manifest else [manifest]
        alone = "buckets" in manifest and not manifest["buckets"]["padding"]["proved"]
        served = {name for each in members for _, found in all_compared(each) for name in found.serving(alone=alone)}
        if "stages" in manifest and Stages.from_json(manifest["stages"]).parts:
            served.add(ONNX_RUNTIME)
        return cls((*manifest["shares"], *manifest.get("limits", {})), list(map(input_shapes, members)), served)

    def without(self, other: Serves) -> list[str]:
        """What the other one does not serve, in words."""
        shares = [f"the share {share}" for share in self.shares if share not in other.shares]
        shapes = [f"the shape {shape_text(each)}" for each in self.shapes if not other._has(each)]
        runtimes = set(self.runtimes or ()) - set(other.runtimes or ()) if other.runtimes is not None else ()
        return [*shares, *shapes, *(f"{name}, which serves where it is faster" for name in sorted(runtimes))]

    def _has(self, shape: Mapping[str, Sequence[int]]) -> bool:
        return any(all(list(shape.get(name, size)) == list(size) for name, size in own.items()) for own in self.shapes)


@dataclass(frozen=True)
class NewBundle:
    """The file for a bundle."""

    path: Path
    force: bool = False
    """replace any bundle"""
    runtimes: frozenset[str] = frozenset()
    """other runtimes that are timed beside it afterwards"""

    def check(self, new: Serves) -> None:
        """Raises BadRequest if the file is a bundle that serves something beyond `new`, or cannot be read as a bundle.

        A link is replaced, and what it names stays; what would be lost at the link is the bundle that it names.
        """
        if self.force or not self.path.exists():
            return
        try:
            with contextlib.closing(Bundle(self.path)) as bundle:
                lost = Serves.of(bundle).without(new)
        except BadBundle as error:
            raise BadRequest(f"{self.path} is no bundle that this version can read ({error}); {_REMEDIES}") from error
        if lost:
            raise BadRequest(
                f"{self.path} is a bundle, and the new one would be without {' and '.join(lost)}; {_REMEDIES}"
            )

    @contextlib.contextmanager
    def writing(self) -> Iterator[IO[bytes]]:
        """A file that becomes this one if the block ends well. Raises BadRequest as `check`, StateUnusable."""
        with replacing_file(self.path) as file:
            yield file
            file.flush()
            self.check_made(Path(file.name))

    def check_made(self, made: Path) -> None:
        """As `check`, for the bundle in the file `made`, which is moved there next."""
        if not self.path.exists():
            return
        with contextlib.closing(Bundle(made)) as bundle:
            new = Serves.of(bundle)
        self.check(Serves(new.shares, new.shapes, {*(new.runtimes or ()), *self.runtimes}))
