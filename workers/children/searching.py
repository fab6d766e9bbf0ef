"""The tuner instance's child: MetaSchedule's search for the operators it holds.

Search state lives here and nowhere else. An operator that is new to the process is warmed from the trials that the
log already holds; one that was not needed for long is forgotten.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import tvm

from tuner_core.records import candidate_id
from workers.children.artifacts import read_workload
from workers.children.operator_search import OperatorSearch, new_cost_model

_LENT = 3
"""schedules that each lender gives"""
_OPERATORS_KEPT = 256


class SearcherChild:
    """All operators of one tuner instance, with one cost model for each target."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._operators: OrderedDict[tuple[str, str], OperatorSearch] = OrderedDict()
        self._cost_models: dict[str, Any] = {}
        self._lenders: set[tuple[str, str]] = set()

    def knows(self, workload_hash: str, target_key: str) -> bool:
        return (workload_hash, target_key) in self._operators

    def open(
        self,
        workload_hash: str,
        workload: str,
        target: str,
        target_key: str,
        seed: int,
        history: list[dict[str, Any]],
        lenders: list[dict[str, Any]],
    ) -> None:
        """Take on an operator: MetaSchedule's workload as JSON text, its earlier trials (`trace` and `secs`), and
        those of its lenders (`workload_hash`, `workload`, `trials`, the fastest first).
        """
        if target_key not in self._cost_models:
            self._cost_models[target_key] = new_cost_model(seed, self._threads)
        # Operators of one job must not all draw the same random numbers.
        search = self._search(workload, target, target_key, seed + int(workload_hash[:8], 16))
        search.warm((trial["trace"], trial["secs"]) for trial in history)
        for lender in lenders:
            self._learn_from(lender, target, target_key)
        search.borrow(trial["trace"] for lender in lenders for trial in lender["trials"][:_LENT])
        self._operators[workload_hash, target_key] = search
        while len(self._operators) > _OPERATORS_KEPT:
            self._operators.popitem(last=False)

    def _search(self, workload: str, target: str, target_key: str, seed: int) -> OperatorSearch:
        parsed = tvm.target.Target(json.loads(target))
        return OperatorSearch(read_workload(workload), parsed, self._cost_models[target_key], seed, self._threads)

    def _learn_from(self, lender: dict[str, Any], target: str, target_key: str) -> None:
        """Teach the cost model a lender's trials, unless it has seen them here."""
        key = (lender["workload_hash"], target_key)
        if key not in self._operators and key not in self._lenders:
            self._lenders.add(key)
            search = self._search(lender["workload"], target, target_key, seed=0)
            search.warm((trial["trace"], trial["secs"]) for trial in lender["trials"])

    def learn(self, workload_hash: str, target_key: str, results: list[tuple[str, str, float]], shares: int) -> None:
        """Results of an operator: (candidate, share, seconds or 0 for a failure); unknown ones are passed over."""
        search = self._operators.get((workload_hash, target_key))
        if search is not None:
            search.learn(results, shares)

    def propose(self, workload_hash: str, target_key: str, count: int) -> list[dict[str, str]]:
        """Up to `count` new candidates of an open operator; fewer when its space holds no more."""
        self._operators.move_to_end((workload_hash, target_key))
        return self._operators[workload_hash, target_key].propose(
            count, lambda trace: candidate_id(workload_hash, target_key, trace)
        )


def open_child(args: list[str]) -> dict[str, Callable[..., Any]]:
    """The methods; the one argument is the number of threads to search with."""
    child = SearcherChild(int(args[0]))
    return {"knows": child.knows, "open": child.open, "learn": child.learn, "propose": child.propose}
