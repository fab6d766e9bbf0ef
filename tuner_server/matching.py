"""Match for a whole model: which record every operator would use at a share, and why."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tuner_core.devices import Device
from tuner_core.errors import NotFound, ServerUnreachable, ShareUnavailable
from tuner_core.jobs import OperatorTask
from tuner_core.match import Match, find_match
from tuner_core.shares import GrantedShare, Share
from tuner_core.targets import target_key
from tuner_server.deps import Deps
from tuner_server.fleet import COMPILE, Fleet, live_workers
from tuner_server.phases.ingesting import LooseIngests, request_ingest
from tuner_server.queues import WorkQueues
from tuner_server.store.models import IngestedModel, IngestKey

_LONGEST_S = 600.0
_LOOK_EVERY_S = 0.1


@dataclass(frozen=True)
class OperatorAnswer:
    task: OperatorTask
    match: Match


@dataclass(frozen=True)
class Place:
    """Where a model is to run."""

    device: Device
    granted: GrantedShare
    target: str
    """default target text of the device"""


class Matcher:
    """Any thread may call."""

    def __init__(self, deps: Deps, loose_ingests: LooseIngests) -> None:
        self._deps = deps
        self._loose = loose_ingests

    def match(
        self,
        *,
        model: str,
        share: str,
        inputs: Mapping[str, list[int]],
        target: str,
        time_left_s: float | None,
    ) -> list[OperatorAnswer]:
        """One answer for each operator.

        1. The share's granted form: from a live worker, else from the log, else from the size it names.
        2. The model's operators: from an earlier ingest, else from one that is made now.
        3. For each operator the log's answer.

        Raises NotFound when nothing is known of the share or the model, ShareUnavailable when the model has to be
        read and no worker can, ServerUnreachable when the time is over before it was read.
        """
        fleet = live_workers(self._deps.redis)
        place = self._place(fleet, Share.parse(share))
        key = IngestKey(model, dict(inputs), target or place.target)
        found = self._deps.store.models.find_ingested(key) or self._ingest(fleet, key, place.device, time_left_s)
        return [self._answer(task, place, found.target_key) for task in found.operators]

    def _answer(self, task: OperatorTask, place: Place, target_key: str) -> OperatorAnswer:
        records = self._deps.store.log.finals(task.workload_hash)
        return OperatorAnswer(task, find_match(records, place.granted, place.device.key, target_key))

    def _place(self, fleet: Fleet, share: Share) -> Place:
        text = str(share)
        offers = fleet.offers()
        for offer in offers:
            if offer.granted.share == text:
                return Place(offer.device, offer.granted, offer.target)
        record = self._deps.store.log.newest(text)
        if record is not None:
            return Place(record.device, record.granted, record.target_key)
        if share.mechanism == "cpu":
            known = offers[0] if offers else self._deps.store.log.newest_of_kind("cpu")
            if known is not None and share.cores <= known.granted.units_total:
                granted = replace(known.granted, share=text, units=share.cores, ids=())
                return Place(known.device, granted, target_key(known.target))
        raise NotFound(f"share {text}: no worker offers it and the log holds nothing that was measured there")

    def _ingest(self, fleet: Fleet, key: IngestKey, device: Device, time_left_s: float | None) -> IngestedModel:
        self._deps.store.models.get(key.model)
        if not fleet.of_role(COMPILE):
            raise ShareUnavailable(
                "this model was not read yet with these shapes and this target, and no worker of the role "
                f"{COMPILE} is there to read it; start one"
            )
        job = f"match-{uuid.uuid4().hex[:12]}"
        self._loose.expect(job, key)
        request_ingest(self._deps, WorkQueues(self._deps.redis), key, device.isa, job, job)
        deadline = time.monotonic() + min(time_left_s or _LONGEST_S, _LONGEST_S)
        while time.monotonic() < deadline:
            changes = self._deps.changes.count
            found = self._deps.store.models.find_ingested(key)
            if found is not None:
                return found
            error = self._loose.forget(job)
            if error is not None:
                raise error
            self._deps.changes.wait(changes, _LOOK_EVERY_S)
        raise ServerUnreachable("the model was not read in time; ask again with a longer deadline")
