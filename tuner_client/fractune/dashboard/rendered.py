"""Pages of one state of the server: twenty tabs of a page cost as much as one."""

from __future__ import annotations

from fractune.dashboard.reading.following import Snapshot

_MOST = 64
"""pages that are kept"""


class RenderedPages:
    """The texts of pages by their addresses, until the server is read again."""

    def __init__(self) -> None:
        self._state: Snapshot | None = None
        self._texts: dict[str, str] = {}

    def text(self, state: Snapshot, address: str) -> str | None:
        """None for a page that was not rendered in this state."""
        return self._texts.get(address) if state is self._state else None

    def keep(self, state: Snapshot, address: str, text: str) -> None:
        if state is not self._state:
            self._state, self._texts = state, {}
        if len(self._texts) < _MOST:
            self._texts[address] = text
