"""Names of the public contract: resources (`models/{sha256}`, `jobs/{job}`, ...), the variants of a bundle, the
operators that change a layout, and the parts of a server's health. `digest_of` makes names that follow from values.
"""

import hashlib
import json
import re
from enum import StrEnum

from fractune_core.errors import BadRequest, shortened

UNTUNED_VARIANT = "untuned"
ROBUST_VARIANT = "robust"
"""the schedules with the smallest loss at the worst of the bundle's shares"""
WITH_GRAPHS = "+graph"
"""end of the name of a variant that launches by CUDA graphs; without it, the name of the one with the same schedules"""
WITH_ATTENTION = "+attention"
"""before that end: the variant computes attention by one kernel, and without it by separate operators"""

TO_BLOCKS, FROM_BLOCKS = "to_blocks", "from_blocks"
"""names of operators that only change a layout, alone or fused with others"""

MOST_NAME_BYTES = 200
"""of the name of a model or a variant, in UTF-8; with a suffix it still fits a file name"""
_SHOWN = 80
"""shown characters of a name that is too long"""

_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


def plain_variant(name: str) -> str:
    """The name of a variant without its ends: a share, or `robust`."""
    return name.removesuffix(WITH_GRAPHS).removesuffix(WITH_ATTENTION)


def explained_variant(name: str) -> str:
    """`'full+graph' (CUDA graphs)`: the name, and what it or its ends mean. Other names have no addition."""
    ends = {WITH_ATTENTION: "attention as one kernel", WITH_GRAPHS: "CUDA graphs"}
    found = ["made for all shares"] if plain_variant(name) == ROBUST_VARIANT else []
    found += [meaning for end, meaning in ends.items() if end in name.removeprefix(plain_variant(name))]
    return f"'{name}' ({', '.join(found)})" if found else f"'{name}'"


def changes_layout(operator: str) -> bool:
    """Whether an operator changes a layout, by its name."""
    return TO_BLOCKS in operator or FROM_BLOCKS in operator


def is_label(name: object) -> bool:
    """Whether it is a name for a model or a variant: printable text, not empty and not too long."""
    return isinstance(name, str) and name.isprintable() and 0 < len(name.encode()) <= MOST_NAME_BYTES


def check_file_name(name: str, what: str) -> None:
    """Raises BadRequest unless `name`, called `what` in the message, is a model's file name without its folder."""
    if not is_label(name) or "/" in name or name in (".", ".."):
        raise BadRequest(
            f"{what} is '{shortened(name, _SHOWN)}'; name the file by 1 to {MOST_NAME_BYTES} bytes of printable UTF-8, "
            "without its folder"
        )


DEFAULT_TENANT = "default"
"""of callers without a token, and of tokens that name no other"""
_TENANT = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")


def check_tenant(name: str) -> str:
    """The name of a tenant as it is. Raises BadRequest for another text."""
    if not _TENANT.fullmatch(name):
        raise BadRequest(
            f"tenant '{shortened(name, _SHOWN)}': write at most 32 lower-case letters, digits and '-', and "
            "begin with a letter or a digit"
        )
    return name


def place_owner(tenant: str, token: str) -> str:
    """Who takes bounded places of a server: a tenant with all its tokens, or one token of the default tenant."""
    return token if tenant == DEFAULT_TENANT else tenant


class HealthPart(StrEnum):
    """Parts of a server's health, as gRPC's health service names them; its empty name means all parts."""

    ENGINE = "engine"
    """the engine's loop runs; a server without it does not recover"""
    STORE = "store"
    """the store accepts writes"""
    REDIS = "redis"
    """Redis answers"""


class Collection(StrEnum):
    MODELS = "models"
    JOBS = "jobs"
    RECORDS = "records"
    BUNDLES = "bundles"
    WORKERS = "workers"

    def of(self, identifier: str) -> str:
        """The resource name for this identifier."""
        return f"{self.value}/{identifier}"

    def parse(self, name: str) -> str:
        """The identifier inside a resource name. Raises BadRequest for a name of another form."""
        collection, _, identifier = name.partition("/")
        if collection != self.value or not _ID.fullmatch(identifier):
            raise BadRequest(f"'{name}' is not a resource name of this kind; write {self.value}/ID")
        return identifier


def digest_of(*parts: object) -> str:
    """32 hex digits (128 bits of SHA-256) that name these JSON values in their order. Other values have another name,
    wherever one of them ends and the next begins.
    """
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
