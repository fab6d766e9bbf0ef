from collections.abc import Callable

import pytest

from fractune_runtime import model

Clock = Callable[[float], None]


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Moves the clock of the looks."""
    now = [0.0]
    monkeypatch.setattr(model, "monotonic", lambda: now[0])

    def move(secs: float) -> None:
        now[0] += secs

    return move
