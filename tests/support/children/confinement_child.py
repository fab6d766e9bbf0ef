"""A process that is confined as a case says: enters, verifies, leaves."""

from collections.abc import Callable
from typing import Any

from fractune_core.shares import Share
from tests.support.hardware.confinement_cases import ALL_CASES


def open_child(args: list[str]) -> dict[str, Callable[..., Any]]:
    name, share = args
    confinement = ALL_CASES[name].confinement(Share.parse(share))
    return {
        "enter": confinement.enter,
        "verify": lambda: confinement.verify().to_json(),
        "leave": confinement.leave,
    }
