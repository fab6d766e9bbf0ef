"""Which tuner instance knows a search: it goes on there."""

from __future__ import annotations

from collections.abc import Collection

from fractune_server.store.records.log import LogKey

_KEPT = 10_000
"""searches; an instance keeps far fewer, and is told of the others' results from the log"""


class SearchOwners:
    """One thread only."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._most = kept
        self._owners: dict[LogKey, str] = {}
        """the one that was asked for last at the end"""

    def may_search(self, search: LogKey, instance: str) -> bool:
        """Whether no other instance knows it."""
        return self._owners.get(search, instance) == instance

    def give(self, search: LogKey, instance: str) -> bool:
        """Have it go on there; whether it is new to the instance."""
        before = self._owners.pop(search, None)
        self._owners[search] = instance
        if len(self._owners) > self._most:
            del self._owners[next(iter(self._owners))]
        return before != instance

    def forget(self, search: LogKey) -> None:
        """Nobody may know it: whoever goes on with it is told all."""
        self._owners.pop(search, None)

    def drop(self, gone: Collection[str]) -> None:
        """These instances know nothing any more."""
        self._owners = {search: owner for search, owner in self._owners.items() if owner not in gone}
