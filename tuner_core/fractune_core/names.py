"""Names of the public contract: resources (`models/{sha256}`, `jobs/{job}`, ...), the variants of a bundle, and the
operators that change a layout; the parts of a server's health.
"""

from __future__ import annotations

import re
from enum import StrEnum

from fractune_core.errors import BadRequest, shortened

UNTUNED_VARIANT = "untuned"
ROBUST_VARIANT = "robust"
"""the schedules that lose least at the worst of the bundle's shares"""

TO_BLOCKS, FROM_BLOCKS = "to_blocks", "from_blocks"
"""what the operators that only change a layout are called, alone or fused with others"""

MOST_NAME_BYTES = 200
"""Of the name of a model or of a variant, in UTF-8: with a suffix it still names a file"""
_SHOWN = 80
"""Characters of a name that is too long"""

_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


def changes_layout(operator: str) -> bool:
    """Whether an operator changes a layout, by its name."""
    return TO_BLOCKS in operator or FROM_BLOCKS in operator


def is_label(name: object) -> bool:
    """Whether it names a model or a variant: text that can be shown as it is, not empty and not too long."""
    return isinstance(name, str) and name.isprintable() and 0 < len(name.encode()) <= MOST_NAME_BYTES


def check_file_name(name: str, what: str) -> None:
    """Raises BadRequest where `name`, called `what`, is not the name of a model's file, without its folder."""
    if not is_label(name) or "/" in name or name in (".", ".."):
        raise BadRequest(
            f"{what} is '{shortened(name, _SHOWN)}'; name the file by 1 to {MOST_NAME_BYTES} bytes of printable UTF-8, "
            "without its folder"
        )


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
