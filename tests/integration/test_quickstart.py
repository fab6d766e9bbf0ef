"""The programs of docs/quickstart.md, one after the other, as a reader runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY

pytestmark = [pytest.mark.alone, pytest.mark.long]
PAGE = REPOSITORY / "docs" / "quickstart.md"


def test_the_quickstart_runs(tmp_path: Path) -> None:
    programs = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(programs) == 3
    env = {**os.environ, "FRACTUNE_STATE": str(tmp_path / "state")}
    command = [sys.executable, "-c", "\n".join(programs)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "(1, 10)" in ended.stdout
    assert (tmp_path / "small.fractune").is_file()
