"""One inference in a loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fractune_workers.children.tvm_api.processor import Processor

MIN_REPEAT_S = 0.02
"""One repeat calls the model until this long has passed"""

Call = Callable[[], Any]
"""One inference, waited for"""


def call_of(main: Callable[..., Any], arguments: list[Any], processor: Processor) -> Call:
    def call() -> None:
        main(*arguments)
        processor.sync()

    return call


def secs_of_one(call: Call, at_least_s: float = MIN_REPEAT_S) -> float:
    """Seconds of one inference, the average over `at_least_s` seconds of inferences."""
    calls, start = 0, time.perf_counter()
    while True:
        call()
        calls += 1
        spent = time.perf_counter() - start
        if spent >= at_least_s:
            return spent / calls
