"""`green:N`: N SMs by a green context, rounded up as CUDA does. No daemon, no root, one process.

A cap and no reservation: CUDA separates only the green contexts of one process. This one shares the GPU with those of
other processes, one after the other, or side by side under an MPS daemon. Inside a percentage of MPS a green context
may grow to the whole percentage, so it is refused there.
"""

from fractune_core.errors import ShareUnavailable
from fractune_core.shares import GrantedShare
from fractune_workers.confinement.mps import BesideMps
from fractune_workers.cuda.driver import GreenContext


class GreenConfinement(BesideMps):
    """A `green:N` share of the GPU that this process sees first. Once entered, kernels must be launched on `stream`."""

    _context: GreenContext | None = None

    @property
    def stream(self) -> int:
        """The address of the only stream that is confined. Raises ShareUnavailable before `enter`."""
        return self._entered().stream

    @property
    def _sms(self) -> int:
        return int(self.share.size)

    def probe(self) -> None:
        self._process.refuse_mig()
        self._process.refuse_mps_share()
        gpu = self._process.gpu
        if self._sms > gpu.sms:
            raise ShareUnavailable(
                f"share '{self.share}' is larger than {gpu.name}, which has {gpu.sms} SMs; ask for fewer, or for full"
            )

    def enter(self) -> None:
        self.probe()
        self._process.check_start(self.environment())
        gpu, driver = self._process.gpu, self._process.driver
        self._process.check_device(gpu.uuid)
        # Not only the environment can hold a percentage: a daemon has one for all of its clients.
        self._process.check_shown(gpu.sms)
        try:
            self._context = GreenContext(driver, self._sms)
        except ShareUnavailable as error:
            raise ShareUnavailable(f"share '{self.share}' cannot be had: {error}") from error

    def verify(self) -> GrantedShare:
        """The SMs of the green context, once a kernel on its stream has run on all of them and on no others."""
        context = self._entered()
        granted = context.sm_count()
        if not self._sms <= granted < self._sms + context.step:
            raise ShareUnavailable(
                f"share '{self.share}': CUDA granted {granted} SMs, more than a step of {context.step} away; ask for "
                f"green:{granted}"
            )
        if not context.owns_its_stream():
            raise ShareUnavailable(
                f"share '{self.share}' is not in force: its stream is not one of its green context; start the worker "
                "again"
            )
        self._process.check_met(granted, context.stream)
        return self._process.granted(granted, reserved=False)

    def leave(self) -> None:
        if self._context is not None:
            self._context.close()
            self._context = None

    def _entered(self) -> GreenContext:
        if self._context is None:
            raise ShareUnavailable(f"share '{self.share}' was never entered: this process has no green context")
        return self._context
