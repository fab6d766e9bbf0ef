"""The benchmarks as programs, read and not run: each can be started alone, and tells of its smoke run."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import benchmarks
from benchmarks.__main__ import BENCHMARKS

FOLDER = Path(benchmarks.__file__).parent
PEER = "stock"
"""the one program that is no benchmark: another one runs it"""


def parsed(name: str) -> ast.Module:
    return ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))


def has_main(name: str) -> bool:
    return any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in parsed(name).body)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_has_main_and_documents_its_smoke_run(name: str) -> None:
    assert has_main(name)
    text = ast.get_docstring(parsed(name)) or ""
    assert "--quick" in text
    assert "--out" in text
    assert f"python -m benchmarks.{name}" in " ".join(text.split())


def test_every_program_among_them_is_run_with_the_others() -> None:
    programs = {path.stem for path in FOLDER.glob("*.py") if path.stem != "__main__" and has_main(path.stem)}
    assert programs - {PEER} == set(BENCHMARKS)


@pytest.mark.parametrize("path", sorted((FOLDER / "results").glob("**/*.json")), ids=lambda path: path.stem)
def test_a_result_is_one_line(path: Path) -> None:
    assert path.read_text(encoding="utf-8").count("\n") == 1
