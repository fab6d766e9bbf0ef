"""The Python code of docs/cpu-limits.md runs as it stands."""

from __future__ import annotations

import re

import pytest

from tests.support.paths import REPOSITORY

_PAGE = (REPOSITORY / "docs" / "cpu-limits.md").read_text(encoding="utf-8")
_BLOCKS = re.findall(r"^```python\n(.*?)^```$", _PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("block", _BLOCKS, ids=["predict", "fit"])
def test_each_block_runs_alone_and_prints(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(block, {})  # noqa: S102  - ours
    assert re.search(r"\d", capsys.readouterr().out)
