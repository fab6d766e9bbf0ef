"""An alternative as the settings of Kubernetes and of the runtime."""

from __future__ import annotations

from pathlib import Path

from fractune.features.fit.measuring import ONNX_RUNTIME, OPENVINO
from fractune_core.analysis.cpu_limits.fitting import Alternative


def resources_text(best: Alternative) -> str:
    """The block of a container; the request equals the limit, because a prediction holds only if the CPU time is
    there.
    """
    cpu = f"{best.limit.quota_m}m"
    return f"resources:\n  requests:\n    cpu: {cpu}\n  limits:\n    cpu: {cpu}"


def settings_text(best: Alternative, runtime: str, model: Path) -> tuple[str, ...]:
    """How to run the model in that container."""
    replicas = "1 replica of the model, which answers one request after the other"
    if best.replicas > 1:
        replicas = f"{best.replicas} replicas of the model in this container, with one queue for all of them"
    if runtime == OPENVINO:
        each = _openvino(best)
    else:
        each = _onnx_runtime(best.threads) if runtime == ONNX_RUNTIME else _fractune(best, model.name)
    burst = f"burst of the limit (cpu.max.burst): {best.limit.burst_us} us" if best.limit.burst_us else ""
    return tuple(filter(None, (replicas, each, burst)))


def _onnx_runtime(threads: int) -> str:
    return (
        f"session of a replica: intra_op_num_threads = {threads}, inter_op_num_threads = 1, "
        'session.intra_op.allow_spinning = "0"'
    )


def _openvino(best: Alternative) -> str:
    from fractune.inference.runtimes.sessions import stream_settings

    settings = ", ".join(f"{name} = {value}" for name, value in stream_settings(best.threads, best.replicas).items())
    return f"compiled model: {settings}; {best.replicas} infer request{'s' * (best.replicas > 1)}"


def _fractune(best: Alternative, name: str) -> str:
    if best.replicas > 1:
        return f'fractune.ReplicaPool("{name}", replicas={best.replicas}, threads={best.threads})'
    return f'fractune.load("{name}", threads={best.threads})'
