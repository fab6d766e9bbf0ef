"""Names that follow from what they name."""

from __future__ import annotations

import hashlib
import json


def digest_of(*parts: object) -> str:
    """32 hex digits (128 bits of SHA-256) that name these JSON values in their order. Other values have another name,
    wherever one of them ends and the next begins.
    """
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
