from __future__ import annotations

import hashlib
import re

from tests.support.paths import REPOSITORY

VENDOR = REPOSITORY / "tuner_client" / "fractune" / "dashboard" / "static" / "vendor"
PAGE = REPOSITORY / "docs" / "decisions" / "17-dashboard-and-site.md"


def test_vendored_files_are_those_of_the_page_and_have_a_licence() -> None:
    listed = dict(
        re.findall(r"^\| `([^`]+)` \|[^|]+\| `([0-9a-f]{64})` \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    )
    there = {path.name: path for path in VENDOR.iterdir() if path.suffix != ".LICENSE"}
    assert {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in there.items()} == listed
    licences = {path.stem for path in VENDOR.glob("*.LICENSE")}
    assert {name.partition(".")[0] for name in there} == licences
