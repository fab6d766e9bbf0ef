"""TVMScript without Python.

TVMScript is Python text, and TVM's parser evaluates its expressions with Python's `eval`, builtins and all;
it even evaluates strings that stand for shapes. A model file is untrusted input:
`__import__("os").system(...)` in a shape would run. So a text is parsed here first, and only what TVM's own
printer writes gets through:

1. statements: one class under `@I.ir_module`, functions under `@T.prim_func` or `@R.function`, assignments,
   loops, `with`, `if`, `return`, and the printer's `metadata = tvm.ir.load_json(...)`;
2. names: `I`, `T`, `R`, `metadata`, `range`, and what the text itself binds;
3. attributes: of `I`, `T`, `R` the functions that build IR, of other values a few that read them;
4. strings: only inside calls, and none that is an expression with a call in it.

What passes can build IR and nothing else. What the IR may call is the matter of `ir_module`.
"""

from __future__ import annotations

import ast
import types
from typing import Any

from tvm.script import ir as ir_script
from tvm.script import relax as relax_script
from tvm.script import tirx as tir_script

from fractune_core.errors import BadModel

_ROOTS: dict[str, Any] = {"I": ir_script, "T": tir_script, "R": relax_script}
_BUILTINS = frozenset({"range"})
_DECORATORS = frozenset({"I.ir_module", "T.prim_func", "R.function"})
_BUILDERS = (
    "tvm.script.ir_builder.ir.ir",
    "tvm.script.parser.ir.entry",
    "tvm.tirx.script.builder.ir",
    "tvm.tirx.script.parser.entry",
    "tvm.tirx.op",
    "tvm.tirx.expr",
    "tvm.ir.expr",
    "tvm.ir.prim",
    "tvm.relax.script.builder.ir",
    "tvm.relax.script.parser.entry",
    "tvm.relax.expr",
    "tvm.relax.op",
)
"""Modules whose functions and classes build IR"""
_NOT_BUILDERS = frozenset(
    {
        "ExternFunc",
        "add_to_parent",
        "call_py_func",
        "constexpr",
        "emit_te",
        "inline",
        "jit",
        "macro",
        "meta_class",
        "meta_var",
        "pyfunc",
        "register_script_namespace",
        "rewriter",
        "scalar_wrapper",
        "static_assert",
    }
)
"""Exceptions in these modules: they take Python code, or hand values through to it"""
_NAMESPACES = frozenset({"R.nn", "R.image", "R.vision", "R.builtin", "R.memory", "R.vm", "R.grad", "T.axis"})
_VALUE_ATTRIBUTES = frozenset(
    {
        "access_ptr",
        "astype",
        "data",
        "dtype",
        "elem_offset",
        "offset_of",
        "shape",
        "strides",
        "vload",
        "vstore",
    }
)
_STATEMENTS = (
    ast.AnnAssign,
    ast.Assert,
    ast.Assign,
    ast.AugAssign,
    ast.ClassDef,
    ast.Expr,
    ast.For,
    ast.FunctionDef,
    ast.If,
    ast.Pass,
    ast.Return,
    ast.While,
    ast.With,
)
_EXPRESSIONS = (
    ast.Attribute,
    ast.BinOp,
    ast.BoolOp,
    ast.Call,
    ast.Compare,
    ast.Constant,
    ast.Dict,
    ast.IfExp,
    ast.List,
    ast.Name,
    ast.Slice,
    ast.Subscript,
    ast.Tuple,
    ast.UnaryOp,
)
_PARTS = (
    ast.Module,
    ast.arg,
    ast.arguments,
    ast.boolop,
    ast.cmpop,
    ast.expr_context,
    ast.keyword,
    ast.operator,
    ast.unaryop,
    ast.withitem,
)
_READ_ONLY = (
    ast.Attribute,
    ast.BinOp,
    ast.Compare,
    ast.Constant,
    ast.Dict,
    ast.Expression,
    ast.List,
    ast.Name,
    ast.Tuple,
    ast.UnaryOp,
    ast.cmpop,
    ast.expr_context,
    ast.operator,
    ast.unaryop,
)
"""What a string may hold that is an expression: shapes such as `n * 2`, names such as `tvm.contrib.sort`"""
_HINT = "print it with IRModule.script(show_meta=True)"


def guarded(text: str) -> str:
    """The TVMScript in `text` without its imports, safe to give to TVM's parser. Raises BadModel."""
    tree = _parse(text)
    tree.body = [statement for statement in tree.body if not _is_script_import(statement)]
    _Guard(tree).check()
    return ast.unparse(tree)


def metadata_json(text: str) -> list[str]:
    """The JSON texts from which the script's `metadata` is loaded."""
    return [str(node.value.args[0].value) for node in _parse(text).body if _is_metadata(node)]  # type: ignore[attr-defined]


def _parse(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        where = f" at line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise BadModel(f"is no TVMScript: syntax error{where}; {_HINT}") from error


def _is_script_import(node: ast.stmt) -> bool:
    """`from tvm.script import ir as I` and the like: they name what TVM's parser has at hand anyway."""
    if not isinstance(node, ast.ImportFrom) or node.module not in {"tvm.script", "tvm.script.parser"}:
        return False
    wanted = {("ir", "I"), ("tirx", "T"), ("tir", "T"), ("relax", "R")}
    return all((alias.name, alias.asname) in wanted for alias in node.names)


def _is_metadata(node: ast.stmt) -> bool:
    """`metadata = tvm.ir.load_json("...")`, which the printer puts in front of a module with constants."""
    return (
        isinstance(node, ast.Assign)
        and [ast.unparse(target) for target in node.targets] == ["metadata"]
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) == "tvm.ir.load_json"
        and len(node.value.args) == 1
        and not node.value.keywords
        and isinstance(node.value.args[0], ast.Constant)
        and isinstance(node.value.args[0].value, str)
    )


class _Guard:
    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        nodes = list(ast.walk(tree))
        self._functions = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        self._modules = {node.name for node in nodes if isinstance(node, ast.ClassDef)} | {"cls"}
        stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        arguments = {node.arg for node in nodes if isinstance(node, ast.arg)}
        self._bound = stored | arguments | self._functions | self._modules
        self._in_calls = {id(part) for node in nodes for part in _string_places(node)}

    def check(self) -> None:
        """Raises BadModel at the first thing that TVM's printer would not write."""
        for name in sorted(self._bound & {*_ROOTS, *_BUILTINS, "tvm"}):
            self._refuse(self._tree, f"the name '{name}' bound anew")
        for name in sorted(name for name in self._bound if name.startswith("__")):
            self._refuse(self._tree, f"the name '{name}'")
        for statement in self._tree.body:
            if not _is_metadata(statement):
                for node in ast.walk(statement):
                    self._check_node(node)

    def _check_node(self, node: ast.AST) -> None:
        if not isinstance(node, (*_STATEMENTS, *_EXPRESSIONS, *_PARTS)):
            self._refuse(node, f"Python's {type(node).__name__}")
        if isinstance(node, ast.Name):
            self._check_name(node)
        elif isinstance(node, ast.Attribute):
            self._check_attribute(node)
        elif isinstance(node, ast.Call):
            self._check_call(node)
        elif isinstance(node, ast.Constant):
            self._check_constant(node)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            self._refuse(node, "the operator **")
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            self._check_definition(node)

    def _check_name(self, node: ast.Name) -> None:
        if node.id not in {*_ROOTS, *_BUILTINS, *self._bound, "metadata"}:
            self._refuse(node, f"the name '{node.id}'")

    def _check_attribute(self, node: ast.Attribute) -> None:
        path = _dotted(node)
        root, *steps = path.split(".") if path else ("", node.attr)
        if root in _ROOTS:
            allowed = path in _NAMESPACES or _builds_ir(path)
        elif root in self._modules and len(steps) == 1:
            allowed = steps[0] in self._functions
        else:
            allowed = node.attr in _VALUE_ATTRIBUTES
        if not allowed:
            self._refuse(node, f"'{path or node.attr}'")

    def _check_call(self, node: ast.Call) -> None:
        if not isinstance(node.func, ast.Name | ast.Attribute):
            self._refuse(node, "a call of what is no name")

    def _check_constant(self, node: ast.Constant) -> None:
        if not isinstance(node.value, str):
            return
        if id(node) not in self._in_calls:
            self._refuse(node, "a string outside of a call")
        if _has_call(node.value):
            self._refuse(node, "a string with a call in it")

    def _check_definition(self, node: ast.ClassDef | ast.FunctionDef) -> None:
        if isinstance(node, ast.ClassDef) and (node.bases or node.keywords):
            self._refuse(node, "a class with bases")
        for decorator in node.decorator_list:
            function = decorator.func if isinstance(decorator, ast.Call) else decorator
            if ast.unparse(function) not in _DECORATORS:
                self._refuse(node, f"the decorator '{ast.unparse(function)}'")

    def _refuse(self, node: ast.AST, what: str) -> None:
        line = f"line {node.lineno}: " if isinstance(node, ast.stmt | ast.expr) else ""
        raise BadModel(f"{line}{what} is not allowed in TVMScript from a file; {_HINT}")


def _string_places(node: ast.AST) -> list[ast.AST]:
    """Strings that go straight into a call, alone or in lists, tuples and dictionaries; and docstrings."""
    if isinstance(node, ast.Expr):
        return [node.value]
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "metadata":
        return [node.slice]
    if not isinstance(node, ast.Call):
        return []
    pending: list[ast.AST] = [*node.args, *(keyword.value for keyword in node.keywords)]
    found: list[ast.AST] = []
    while pending:
        part = pending.pop()
        found.append(part)
        if isinstance(part, ast.List | ast.Tuple):
            pending.extend(part.elts)
        elif isinstance(part, ast.Dict):
            pending.extend([*filter(None, part.keys), *part.values])
    return found


def _has_call(text: str) -> bool:
    """Whether the text, evaluated as Python, would do more than read names."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError):
        return False
    return any(not isinstance(node, _READ_ONLY) for node in ast.walk(tree))


def _dotted(node: ast.expr) -> str:
    """`T.axis.spatial` for that attribute; empty where something else than a name is at the root."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    return ""


def _builds_ir(path: str) -> bool:
    root, *steps = path.split(".")
    base = ".".join([root, *steps[:-1]])
    if any(step.startswith("_") for step in steps) or steps[-1] in _NOT_BUILDERS:
        return False
    if base not in _ROOTS and base not in _NAMESPACES:
        return False
    found: Any = _ROOTS[root]
    for step in steps:
        found = getattr(found, step, None)
    if found is None or isinstance(found, types.ModuleType):
        return False
    home = getattr(found, "__module__", None) or type(found).__module__
    return any(home == module or home.startswith(f"{module}.") for module in _BUILDERS)
