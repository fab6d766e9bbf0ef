"""Which tuner instance knows a search: the search continues there."""

from __future__ import annotations

from collections.abc import Collection

from fractune_server.store.records.log import LogKey

_KEPT = 10_000
"""searches; an instance keeps far fewer, and gets the results of the others from the log"""


class SearchOwners:
    """Not thread-safe: only the engine's thread calls it."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._most = kept
        self._owners: dict[LogKey, str] = {}
        """the latest at the end"""

    def may_search(self, search: LogKey, instance: str) -> bool:
        """Whether no other instance knows the search."""
        return self._owners.get(search, instance) == instance

    def give(self, search: LogKey, instance: str) -> bool:
        """Continue the search at the instance. Returns whether the search is new to the instance."""
        before = self._owners.pop(search, None)
        self._owners[search] = instance
        if len(self._owners) > self._most:
            del self._owners[next(iter(self._owners))]
        return before != instance

    def forget(self, search: LogKey) -> None:
        """Perhaps no instance knows the search: the next one gets everything from the log."""
        self._owners.pop(search, None)

    def drop(self, gone: Collection[str]) -> None:
        """These instances are gone."""
        self._owners = {search: owner for search, owner in self._owners.items() if owner not in gone}
