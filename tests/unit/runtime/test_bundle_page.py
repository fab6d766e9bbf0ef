"""The example of docs/bundle.md reads real bundles, with nothing of ours."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from fractune_core.files.manifests import _FIELDS
from tests.support.client_samples import bundle_bytes
from tests.support.paths import REPOSITORY

PAGE = (REPOSITORY / "docs/bundle.md").read_text(encoding="utf-8")
EXAMPLE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]


def read(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-c", EXAMPLE, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_example_lists_the_variants_and_finds_a_change(tmp_path: Path) -> None:
    path = tmp_path / "m.fractune"
    path.write_bytes(bundle_bytes())
    ended = read(path)
    assert ended.stdout.splitlines()[1:] == [
        "variants/1: cpu:1, tuned for 1 core(s)",
        "variants/2: cpu:4, tuned for 4 core(s)",
    ]
    path.write_bytes(bundle_bytes().replace(b"rocketlake", b"rocketlaka"))
    assert read(path).returncode != 0


def test_the_page_names_every_field_that_is_checked() -> None:
    assert [field for field in (*_FIELDS, "measured", "format") if f"`{field}`" not in PAGE] == []
