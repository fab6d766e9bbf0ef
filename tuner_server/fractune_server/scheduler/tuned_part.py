"""How much of a model was tuned: an operator that many models share, the copy at its end, is not yet the model."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fractune_core.analysis.roofline import Arithmetic


def tuned_part(weights: Mapping[str, int], arithmetic: Mapping[str, Arithmetic], tuned: Collection[str]) -> float:
    """The part of a model's work that the `tuned` operators do, from 0 to 1; operators by workload hash.

    An operator's work is how often it runs (`weights`) times its operations; where these are not known, as of a copy,
    the bytes that it moves. Without either of any operator, one that is tuned counts as all.
    """
    work = {name: weight * _work(arithmetic.get(name)) for name, weight in weights.items()}
    whole = sum(work.values())
    if whole == 0:
        return 1.0 if tuned else 0.0
    return sum(work[name] for name in tuned) / whole


def _work(known: Arithmetic | None) -> float:
    return 0.0 if known is None else known.flops or known.io_bytes
