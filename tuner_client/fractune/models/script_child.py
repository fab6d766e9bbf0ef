"""Entry of the process for a model script: `python -m fractune.models.script_child PARENT_PID SCRIPT OUT ERROR`.

It writes the module as JSON to OUT, or a one-line error to ERROR.
"""

import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

from fractune_core.errors import BadModel
from fractune_core.host.parent_death import die_with_parent

_RUN_NAME = "fractune_model_script"
"""`__name__` of the script. It is not `__main__`, so tests and examples at the end of the file do not run"""


def main() -> None:
    parent_pid, script, out, error_file = sys.argv[1:]
    die_with_parent(int(parent_pid))
    try:
        Path(out).write_text(module_json(Path(script)), encoding="utf-8")
    except BadModel as error:
        Path(error_file).write_text(str(error), encoding="utf-8")


def module_json(script: Path) -> str:
    """The only IRModule with a name in the script, as JSON. Raises BadModel."""
    import tvm

    modules = {
        name: value
        for name, value in _globals_of(script).items()
        if isinstance(value, tvm.IRModule) and not name.startswith("_")
    }
    if not modules:
        raise BadModel("makes no tvm.IRModule; give one a name at the file's top level, as `@I.ir_module` does")
    if len(set(map(id, modules.values()))) > 1:
        names = ", ".join(sorted(modules))
        raise BadModel(f"makes several IRModules ({names}); let the names of all but one begin with an underscore")
    return str(tvm.ir.save_json(next(iter(modules.values()))))


def _globals_of(script: Path) -> dict[str, Any]:
    """The names that the script has defined at its end. Raises BadModel if it fails."""
    import tvm
    from tvm.script import ir, relax, tirx

    names = {"tvm": tvm, "I": ir, "R": relax, "T": tirx}  # a script that TVM printed has its imports in comments
    sys.argv = [str(script)]
    sys.path.insert(0, str(script.parent))
    try:
        return runpy.run_path(str(script), init_globals=names, run_name=_RUN_NAME)
    except (Exception, SystemExit) as error:
        raise BadModel(f"its code failed{_place(error, script)}: {_summary(error)}") from error


def _place(error: BaseException, script: Path) -> str:
    """The line of the script that failed; empty for a syntax error, whose text has the line."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(script)]
    return f" at line {lines[-1]}" if lines else ""


def _summary(error: BaseException) -> str:
    """The error's type and the first line of its message."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return ": ".join(filter(None, (type(error).__name__, first)))


if __name__ == "__main__":
    main()
