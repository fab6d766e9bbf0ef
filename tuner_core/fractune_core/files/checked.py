"""What a bundle holds of its check against another implementation of ONNX."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fractune_core.agreement import QUANTIZED_ROUNDING
from fractune_core.codec.plain_json import JsonObject

FIELD = "checked"
"""of the manifest"""
_LARGEST = 2**31 - 1


@dataclass(frozen=True)
class Checked(JsonObject):
    """The sets of inputs on which the bundle's outputs equal the reference's."""

    reference: str = ""
    """what the outputs were compared with, and its version; empty if nothing was compared"""
    sets: dict[str, float] = field(default_factory=dict)
    """by set of inputs: the largest difference, over the largest value of its output"""
    variants: tuple[str, ...] = ()
    """the variants of the bundle that were compared"""
    skipped: dict[str, str] = field(default_factory=dict)
    """sets, and variants, that were not compared, with the reason"""
    reason: str = ""
    """why nothing was compared; empty if something was"""
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    """by input of the bundle: the least and the largest number that is drawn. Integers are no index outside of their
    axis; with other numbers the outputs say something"""

    @property
    def is_equal(self) -> bool:
        """Whether the outputs equal the reference's; False if nothing was compared."""
        return bool(self.sets)

    @property
    def line(self) -> str:
        """For people."""
        if not self.is_equal:
            return f"the outputs were not compared with another runtime's: {self.reason}"
        difference = max(self.sets.values())
        count = f"{len(self.sets)} sets" if len(self.sets) > 1 else "one set"
        found = f"largest difference {difference:.1e} of the largest value" if difference else "to the last bit"
        if difference > QUANTIZED_ROUNDING:
            found += ", no more than right computations of this model differ by"
        left = "".join(f"; not compared: {name} ({why})" for name, why in self.skipped.items())
        return f"outputs equal {self.reference}'s on {count} of inputs ({', '.join(self.sets)}), {found}{left}"


def not_checked(reason: str) -> Checked:
    return Checked(reason=reason)


def checked_of(manifest: Mapping[str, Any]) -> Checked | None:
    """That of a bundle or a member; None where a bundle does not say. Raises ValueError."""
    return Checked.from_json(manifest[FIELD]) if FIELD in manifest else None


def checked_complaint(manifest: Mapping[str, Any]) -> str:
    """What is wrong with the field `checked`, empty if nothing is."""
    try:
        found = checked_of(manifest)
    except (AttributeError, TypeError, ValueError) as error:
        return f"'{FIELD}' does not say what was compared ({error})"
    if found is None:
        return ""
    texts = [found.reference, found.reason, *found.variants, *found.sets]
    texts += [text for pair in found.skipped.items() for text in pair]
    texts += found.ranges
    if not all(0 <= least <= largest <= _LARGEST for least, largest in found.ranges.values()):
        return f"'{FIELD}' has no range of numbers from 0 on"
    if not all(map(str.isprintable, texts)):
        return f"'{FIELD}' has a text that is not printable"
    if not all(0 <= difference < math.inf for difference in found.sets.values()):
        return f"'{FIELD}' has a difference that is not a number from 0 on"
    return ""
