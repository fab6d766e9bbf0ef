"""Names of the public contract: resources (`models/{sha256}`, `jobs/{job}`, ...), the variants of a bundle, and the
operators that change a layout; the parts of a server's health.
"""

from __future__ import annotations

import re
from enum import StrEnum

from fractune_core.errors import BadRequest

UNTUNED_VARIANT = "untuned"
ROBUST_VARIANT = "robust"
"""the schedules that lose least at the worst of the bundle's shares"""

TO_BLOCKS, FROM_BLOCKS = "to_blocks", "from_blocks"
"""what the operators that only change a layout are called, alone or fused with others"""

_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


def changes_layout(operator: str) -> bool:
    """Whether an operator changes a layout, by its name."""
    return TO_BLOCKS in operator or FROM_BLOCKS in operator


class HealthPart(StrEnum):
    """What a server needs to work, as gRPC's health service names it; its empty name is for all of them."""

    ENGINE = "engine"
    """it turns; a server without it does not get well by itself"""
    STORE = "store"
    """it takes writes"""
    REDIS = "redis"
    """it answers"""


class Collection(StrEnum):
    MODELS = "models"
    JOBS = "jobs"
    RECORDS = "records"
    BUNDLES = "bundles"
    WORKERS = "workers"

    def of(self, identifier: str) -> str:
        """The resource name of the thing with this identifier."""
        return f"{self.value}/{identifier}"

    def parse(self, name: str) -> str:
        """The identifier inside a resource name. Raises BadRequest for a name of another form."""
        collection, _, identifier = name.partition("/")
        if collection != self.value or not _ID.fullmatch(identifier):
            raise BadRequest(f"'{name}' is no resource name of this kind; write {self.value}/ID")
        return identifier
