"""The times of other runtimes in a bundle, as a log keeps them."""

from __future__ import annotations

import contextlib
import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from fractune_core.analysis.runtime_times import RuntimeTime
from fractune_core.analysis.slowdown_ci import Estimate
from fractune_core.files.buckets import input_shapes
from fractune_core.files.bundles import Bundle
from fractune_core.files.compared import OURS, Compared, Runtime


def runtime_times(path: Path, shares: Sequence[str]) -> list[RuntimeTime]:
    """Those at the `shares`, just measured, each under a name of its own. Raises BadBundle."""
    return list(_times(path, shares))


def _times(path: Path, shares: Sequence[str]) -> Iterator[RuntimeTime]:
    with contextlib.closing(Bundle(path)) as bundle:
        runtimes = bundle.manifest.get("runtimes", {})
        for each in bundle.members if "buckets" in bundle.manifest else [bundle]:
            for share in each.manifest.get("compared", {}).keys() & set(shares):
                compared = Compared.from_json(each.manifest["compared"][share])
                ours = compared.times[OURS]
                for name, timed in compared.times.items():
                    if timed.loop is None or timed.paced is None:
                        continue
                    yield RuntimeTime(
                        time_id=uuid.uuid4().hex,
                        model=bundle.manifest["model"]["sha256"],
                        inputs=input_shapes(each.manifest),
                        share=share,
                        runtime=name,
                        version=Runtime.from_json(runtimes[name]).version,
                        loop_s=timed.loop_s,
                        paced_s=timed.paced_s,
                        bundle_loop_s=ours.loop_s,
                        bundle_paced_s=ours.paced_s,
                        loop_ratio=Estimate(*timed.loop),
                        paced_ratio=Estimate(*timed.paced),
                        host=socket.gethostname(),
                        measured_at=time.time(),
                    )
