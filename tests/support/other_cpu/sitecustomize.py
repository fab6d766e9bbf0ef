"""Another CPU as the default target, in every Python process that finds this folder on its path.

Python imports a module of this name when it starts, so the workers' children have that target too. `tests/conftest.py`
puts the folder on the path where FRACTUNE_TEST_CPU names a CPU. What the host lacks of that CPU is left out.
"""

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_CPU = os.environ.get("FRACTUNE_TEST_CPU", "")
_TARGET = "fractune_workers.children.tvm_api.target"
"""the module that makes the default target of the host"""


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _replace_default(module)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _TARGET:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def _replace_default(module: Any) -> None:
    def default_target(cores: int) -> Any:
        config = {"kind": "llvm", "mcpu": _CPU, "num-cores": cores}
        lacking = module.missing_features(module.tvm.target.Target(config))
        return module.tvm.target.Target({**config, "mattr": [f"-{name}" for name in lacking]} if lacking else config)

    module.default_target = default_target


if _CPU and not any(type(finder).__name__ == _Finder.__name__ for finder in sys.meta_path):
    sys.meta_path.insert(0, _Finder())
