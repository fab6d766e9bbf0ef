"""Where the kernels of this process run: TVM's device and the stream on it, what goes there, and what comes back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tvm

from fractune_core.errors import FractuneError
from fractune_workers.child import ChildDied
from fractune_workers.children.tvm_api.error_line import first_line
from fractune_workers.children.tvm_api.streams import launching_on


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Processor:
    """A CPU or a GPU as this process was confined to it."""

    device: Any
    """TVM's"""
    stream: int = 0
    """the only one that is confined (an address); 0 = the default stream"""
    flush_bytes: int = 0
    """how much to move about so that nothing of before is left in its cache; 0 = not known"""
    check: Callable[[], None] = _nothing
    """raises FractuneError when the process has lost the device for good"""

    @property
    def is_gpu(self) -> bool:
        return self.device.dlpack_device_type() != tvm.cpu().dlpack_device_type()

    def tensor(self, array: Any) -> Any:
        """The array's contents on the device."""
        return tvm.runtime.tensor(array, device=self.device)

    def write(self, tensor: Any, array: Any) -> None:
        self.sync()
        tensor.copyfrom(array)

    def read(self, tensor: Any) -> Any:
        """A copy of its contents, as an array, once all that was launched before has ended.

        TVM copies on the NULL stream, which the stream of a green context does not wait for, nor is it waited for.
        """
        self.sync()
        return tensor.numpy()

    def sync(self) -> None:
        """Wait until all that was launched has ended."""
        self.device.sync(self.stream)

    def free_unused(self) -> None:
        """Give back the memory that virtual machines have kept for calls to come."""
        tvm.get_global_func("vm.builtin.memory_manager.clear")()

    @contextlib.contextmanager
    def engaged(self) -> Iterator[None]:
        """Within the block this thread launches on the stream; it ends when all that was launched has.

        Raises ChildDied when the device is lost: after an error of a kernel CUDA refuses all further calls of this
        process, and what runs next must not be blamed for it.
        """
        try:
            with launching_on(self.stream, str(self.device)):
                yield
                self.sync()
        except Exception as error:
            self._check_after(error)
            raise

    def _check_after(self, error: Exception) -> None:
        try:
            self.check()
        except FractuneError as loss:
            raise ChildDied(f"{first_line(error)}; after it, {loss}") from error


def cpu_processor() -> Processor:
    return Processor(tvm.cpu())
