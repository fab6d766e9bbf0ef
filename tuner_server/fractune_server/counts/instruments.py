"""The metrics that the server counts itself, each where the event happens."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

from fractune_server.counts.worker_totals import WorkerTotals

_TICK_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_LAG_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
_CALL_BOUNDS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0)


class Instruments:
    """Metrics of a server since its start. Thread-safe."""

    def __init__(self) -> None:
        # Otherwise each metric has a second, useless time series.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.workers = WorkerTotals()
        self.engine_tick = Histogram(
            "fractune_engine_turn_seconds",
            "Ticks of the engine, without its wait for results.",
            buckets=_TICK_BOUNDS_S,
            registry=self.registry,
        )
        self.recorder_lag = Histogram(
            "fractune_recorder_lag_seconds",
            "From the sending of a worker's result until it was committed and had taken effect.",
            buckets=_LAG_BOUNDS_S,
            registry=self.registry,
        )
        self.requeued = self._counter(
            "fractune_work_requeued",
            "Work that went back to its queue, by what became of its worker.",
            "kind",
            "reason",
        )
        self.given_up = self._counter("fractune_work_given_up", "Work that no worker could do.", "kind")
        method = "grpc_type", "grpc_service", "grpc_method"
        self.calls_started = self._counter("grpc_server_started", "Calls that have begun.", *method)
        self.calls_handled = self._counter("grpc_server_handled", "Calls that have ended.", *method, "grpc_code")
        self.call_duration = Histogram(
            "grpc_server_handling_seconds",
            "How long calls took; those that watch a job, until it ended.",
            method,
            buckets=_CALL_BOUNDS_S,
            registry=self.registry,
        )

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(name, meaning, labels, registry=self.registry)
