"""TVMScript files that would write a file on the machine that evaluates them: by statements, strings, annotations,
decorators, defaults, and by names that one function binds and another one uses.

TVM's parser evaluates expressions as Python, with Python's builtins. Each way here was one to reach them.
"""

from pathlib import Path

_CANARY = "CANARY"
_HEAD = "from tvm.script import ir as I\nfrom tvm.script import relax as R, tirx as T\n"
_WRITE = f'open("{_CANARY}", "w")'
_SYSTEM = f"""__import__("os").system("touch '{_CANARY}'")"""
_STATEMENTS = f'"from pathlib import Path\\nPath(\\"{_CANARY}\\").touch()"'
_EXPRESSION = f"\"__import__('pathlib').Path('{_CANARY}').touch()\""


def _script(
    *members: str, above: str = "", statement: str = "pass", result: str = "R.nn.relu(x)", bases: str = ""
) -> str:
    """A module with a Relax `main`, and with other functions before it."""
    main = f"""
@R.function
def main(x: R.Tensor((2, 8), "float32")) -> R.Tensor((2, 8), "float32"):
    {statement}
    y: R.Tensor((2, 8), "float32") = {result}
    return y
"""
    body = "\n".join(member.strip("\n") for member in (*members, main)).replace("\n", "\n    ")
    return f"{_HEAD}{above}\n@I.ir_module\nclass Module{bases}:\n    {body}\n"


def _binds(name: str) -> str:
    """A function whose parameter has the name of a builtin."""
    return f"@T.prim_func\ndef binds({name}: T.int32):\n    T.evaluate({name})"


_SCRIPTS = {
    "a builtin that another function binds": _script(
        _binds("exec"), f"@T.prim_func\ndef b():\n    exec({_STATEMENTS})"
    ),
    "a builtin that a loop binds, after the loop": _script(
        f"@T.prim_func\ndef b():\n    for exec in range(1):\n        T.evaluate(exec)\n    exec({_STATEMENTS})"
    ),
    "a builtin bound elsewhere, in a Relax function": _script(_binds("exec"), statement=f"exec({_STATEMENTS})"),
    "a builtin bound elsewhere, in an annotation": _script(
        _binds("exec"), f"@T.prim_func\ndef b(a: exec({_STATEMENTS})):\n    T.evaluate(0)"
    ),
    "a builtin bound elsewhere, in a decorator's argument": _script(
        _binds("exec"), f"@T.prim_func(private=exec({_STATEMENTS}))\ndef b():\n    T.evaluate(0)"
    ),
    "open, bound elsewhere": _script(_binds("open"), f"@T.prim_func\ndef b():\n    {_WRITE}"),
    "__import__": _script(statement=_SYSTEM),
    "a string that stands for a dimension": _script(
        f"@R.function\ndef b(x: R.Tensor(({_EXPRESSION}, 2), 'float32')):\n    return x"
    ),
    "a string of statements": _script(statement=f"T.evaluate(exec({_STATEMENTS}))"),
    "a default": _script(f"@T.prim_func\ndef b(a: T.int32 = {_WRITE}):\n    T.evaluate(a)"),
    "the body of the class": _script(f"x = {_WRITE}"),
    "the top level of the file": _script(above=f"import os\n{_SYSTEM}\n"),
    "a lambda": _script(statement=f"(lambda: {_WRITE})()"),
    "a comprehension": _script(statement=f"z = [{_WRITE} for i in range(1)]"),
    "an f-string": _script(statement=f"z = f'{{{_WRITE}}}'"),
    "an assignment expression": _script(statement=f'(f := open)("{_CANARY}", "w")'),
    "a chain of attributes": _script(
        statement=f'T.evaluate.__globals__["__builtins__"]["open"]("{_CANARY}", "w")',
    ),
    "getattr": _script(_binds("getattr"), statement=f'getattr(T, "__builtins__")["open"]("{_CANARY}", "w")'),
    "the keywords of the class": _script(bases=f"(metaclass={_WRITE})"),
    "a star import": _script(above="from os import *\n", statement=f"system(\"touch '{_CANARY}'\")"),
    "T.meta_var": _script(f"@T.prim_func\ndef b():\n    z = T.meta_var({_WRITE})\n    T.evaluate(0)"),
    "the metadata": _script(above=f"metadata = tvm.ir.load_json({_WRITE})\n"),
}
NAMES = tuple(_SCRIPTS)


def hostile_script(name: str, canary: Path) -> str:
    """The script of this name, which would write the file `canary`."""
    return _SCRIPTS[name].replace(_CANARY, str(canary))
