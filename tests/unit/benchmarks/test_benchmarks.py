"""The benchmarks as programs, read and not run: each can be started alone, and tells of its smoke run."""

from __future__ import annotations

import ast
from pathlib import Path

import benchmarks
from benchmarks.__main__ import BENCHMARKS

FOLDER = Path(benchmarks.__file__).parent
PEER = "stock"
"""the one program that is no benchmark: another one runs it"""


def parsed(name: str) -> ast.Module:
    return ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))


def has_main(name: str) -> bool:
    return any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in parsed(name).body)


def test_a_benchmark_has_main_and_documents_its_smoke_run() -> None:
    for name in BENCHMARKS:
        assert has_main(name), name
        words = (ast.get_docstring(parsed(name)) or "").split()
        assert all(each in " ".join(words) for each in ("--quick", "--out", f"python -m benchmarks.{name}")), name


def test_every_program_among_them_is_run_with_the_others() -> None:
    programs = {path.stem for path in FOLDER.glob("*.py") if path.stem != "__main__" and has_main(path.stem)}
    assert programs - {PEER} == set(BENCHMARKS)


def test_a_result_is_one_line() -> None:
    lines = {path: path.read_text(encoding="utf-8").count("\n") for path in (FOLDER / "results").glob("**/*.json")}
    assert [path for path, count in lines.items() if count != 1] == []
