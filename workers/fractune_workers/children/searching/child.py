"""The tuner instance's child: MetaSchedule's search for the instance's operators.

Search state lives here and nowhere else. A new operator is warmed from its trials in the log. The operator that was
opened or proposed for longest ago is forgotten first.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fractune_core.records import candidate_id
from fractune_workers.children.searching.competition import CompetingSearches
from fractune_workers.children.tvm_api.keep_out import stay_off_gpus
from fractune_workers.children.tvm_api.target import load_target
from fractune_workers.children.tvm_api.traces import read_workloads

_OPERATORS_KEPT = 256


class SearcherChild:
    """All operators of one tuner instance."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._operators: OrderedDict[tuple[str, str, str], CompetingSearches] = OrderedDict()

    def knows(self, workload_hash: str, target_key: str, of: str = "") -> bool:
        """`of`: the owner of the search. An operator may have several searches, which share no knowledge."""
        return (workload_hash, target_key, of) in self._operators

    def open(
        self,
        workload_hash: str,
        workload: str,
        target: str,
        target_key: str,
        seed: int,
        history: list[dict[str, Any]],
        transferred: list[str],
        of: str = "",
    ) -> None:
        """Take on an operator: its workloads in the log's form, its earlier trials (PastTrial), and other operators'
        traces to try first.
        """
        # Operators of one job must not all draw the same random numbers.
        own_seed = seed + int(workload_hash[:8], 16)
        search = CompetingSearches(read_workloads(workload), load_target(target), own_seed, self._threads)
        search.warm((trial["candidate"], trial["trace"], trial["secs"]) for trial in history)
        search.transfer(transferred)
        self._operators[workload_hash, target_key, of] = search
        while len(self._operators) > _OPERATORS_KEPT:
            self._operators.popitem(last=False)

    def learn(
        self,
        workload_hash: str,
        target_key: str,
        results: list[tuple[str, str, float]],
        shares: list[str],
        of: str = "",
        units: Sequence[int] = (),
    ) -> None:
        """Take in results of an operator: (candidate, share, seconds or 0 for a failure); unknown ones are ignored.
        From now on the search is for `shares`, and expects these `units` of the device at them.
        """
        search = self._operators.get((workload_hash, target_key, of))
        if search is not None:
            search.learn(results, shares)
            search.expect(units)

    def propose(
        self,
        workload_hash: str,
        target_key: str,
        count: int,
        *,
        of: str = "",
        exact: bool = False,
        lost: Sequence[str] = (),
        known: Sequence[str] = (),
    ) -> list[dict[str, str]]:
        """Up to `count` new candidates of an open operator; fewer when its spaces hold no more.

        `exact`: only candidates that round like the operator itself. `lost`: candidates that were proposed and never
        measured; they come first. `known`: candidates that must not be proposed from now on.
        """
        self._operators.move_to_end((workload_hash, target_key, of))
        search = self._operators[workload_hash, target_key, of]
        name = partial(candidate_id, workload_hash, target_key)
        return search.propose(count, name, exact=exact, lost=lost, known=known)


def open_child(args: list[str]) -> dict[str, Callable[..., Any]]:
    """The methods; the one argument is the number of threads to search with."""
    stay_off_gpus()
    child = SearcherChild(int(args[0]))
    return {"knows": child.knows, "open": child.open, "learn": child.learn, "propose": child.propose}
