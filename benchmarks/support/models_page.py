"""docs/models.md: what the importer does with each operator, from its tables and from the results of ONNX's tests."""

import json
import textwrap
from pathlib import Path
from typing import Any

from onnx import defs

from fractune_workers.children.importing.onnx_models.decompositions import DECOMPOSITIONS
from fractune_workers.children.importing.onnx_models.onnx_importer import CONVERTERS
from fractune_workers.children.importing.onnx_models.onnx_support import how

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
_HEAD = Path(__file__).with_name("models_page_head.md")
_FORMS = "operator_forms.json"
_INTERNAL = "fractune."
_MOST_REASON = 140


def models_page(results: Path) -> str:
    """The page as text."""
    measured = json.loads(results.read_text())
    rows = [_row(name, measured["operators"].get(name)) for name in sorted(_names(), key=str.lower)]
    forms = json.loads(results.with_name(_FORMS).read_text())
    counts = "\n\n".join(
        [_counts("ONNX's tests", "cases", measured), _counts("Forms of operators beside ONNX Runtime", "forms", forms)]
    )
    head = _HEAD.read_text(encoding="utf-8").format(counts=counts)
    table = ["| operator | how | ONNX's cases: passed / refused | refused forms |", "|---|---|---|---|", *rows]
    return head + "\n".join(table) + "\n"


def _counts(title: str, what: str, measured: dict[str, Any]) -> str:
    counts = measured["counts"]
    numbers = ", ".join(f"{number} {status}" for status, number in counts.items())
    return f"{title}, {sum(counts.values())} {what}:\n{numbers}."


def _names() -> set[str]:
    own = {schema.name for schema in defs.get_all_schemas() if not schema.domain and not schema.deprecated}
    tables = {name for name in {*CONVERTERS, *DECOMPOSITIONS} if not name.startswith(_INTERNAL)}
    return own | tables


def _row(name: str, tried: dict[str, Any] | None) -> str:
    kind = how(name)
    passed = tried["passed"] + tried["passed with constants"] if tried else 0
    cases = f"{passed} / {tried['refused']}" if tried else ""
    if kind == "refused":
        return f"| {name} | refused | {cases} | no kernel computes it; export without it |"
    return f"| {name} | {kind} | {cases} | {_reasons(tried['refusals']) if tried else ''} |"


def _reasons(refusals: dict[str, str]) -> str:
    # A refusal within a branch names the node of the branch first.
    short = {reason.rpartition("): ")[2] for reason in refusals}
    text = textwrap.shorten("; ".join(sorted(short)), _MOST_REASON, placeholder=" ...")
    return text.replace("|", "/")
