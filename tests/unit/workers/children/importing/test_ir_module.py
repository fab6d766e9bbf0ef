"""IRModules as JSON and TVMScript: what TVM writes is read again, and nothing else is run."""

from __future__ import annotations

from pathlib import Path

import pytest
import tvm
import tvm_ffi
from tvm.script import ir as I  # noqa: N812  TVM's own names in scripts
from tvm.script import relax as R  # noqa: N812
from tvm.script import tirx as T  # noqa: N812

from fractune_core.errors import BadModel
from fractune_workers.children.importing.model_file import load_model
from fractune_workers.children.importing.passes import prepare
from fractune_workers.children.tvm_api.target import default_target

SCRIPT = """
from tvm.script import ir as I
from tvm.script import relax as R, tirx as T

@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((2, 8), dtype="float32")) -> R.Tensor((2, 8), dtype="float32"):
        {statement}
        with R.dataflow():
            y: R.Tensor((2, 8), dtype="float32") = {expression}
            R.output(y)
        return y
"""


def sample() -> tvm.IRModule:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((2, 8), "float32"), w: R.Tensor((8, 4), "float32")) -> R.Tensor((2, 4), "float32"):  # noqa: N805
            with R.dataflow():
                y = R.nn.relu(R.matmul(x, w))
                z = R.add(y, R.const([[1.0, 2, 3, 4], [5, 6, 7, 8]], "float32"))
                R.output(z)
            return z

    return Module


def write(folder: Path, text: str) -> Path:
    path = folder / "module.txt"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(path: Path, shapes: dict[str, list[int]] | None = None) -> str:
    with pytest.raises(BadModel) as caught:
        load_model(path, shapes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_json_comes_back_equal(tmp_path: Path) -> None:
    path = write(tmp_path, str(tvm.ir.save_json(sample())))
    assert tvm_ffi.structural_equal(load_model(path), sample())


@pytest.mark.parametrize("lowered", [False, True])
def test_script_comes_back_equal(tmp_path: Path, *, lowered: bool) -> None:
    """Also of a lowered module, which holds TIR with blocks, loops and axes; constants are in the metadata."""
    mod = prepare(sample(), default_target(1)) if lowered else sample()
    path = write(tmp_path, mod.script(show_meta=True))
    assert tvm_ffi.structural_equal(load_model(path), mod)


def test_script_with_its_imports(tmp_path: Path) -> None:
    path = write(tmp_path, SCRIPT.format(statement="pass", expression="R.nn.relu(x)"))
    assert "relu" in load_model(path).script()


@pytest.mark.parametrize(
    ("statement", "expression"),
    [
        ("pass", "__import__('os').system('touch {pwned}')"),
        ("pass", "open('{pwned}', 'w')"),
        ("exec(\"open('{pwned}', 'w')\")", "x"),
        ("import os", "x"),
        ("z = R.Tensor((\"open('{pwned}', 'w')\", 2), 'float32')", "x"),
        ("z: R.Tensor((\"open('{pwned}', 'w')\", 2), 'float32') = x", "x"),
        ("z = 'open' + '(...)'", "x"),
        ("z = 'open'", "x"),
        ("z = T.meta_var('open')", "x"),
        ("z = tvm.ffi.get_global_func", "x"),
        ("z = T.tvm", "x"),
        ("z = R._parser", "x"),
        ("z = R.const.__globals__", "x"),
        ("z = x.__class__", "x"),
        ("z = x.with_attr", "x"),
        ("z = (lambda: x)()", "x"),
        ("z = [i for i in x]", "x"),
        ("z = f'{{x}}'", "x"),
        ("z = 9 ** 9", "x"),
        ("z = R.emit_te(x)", "x"),
        ("z = T.call_kernel(x)", "x"),
        ("z = R.ExternFunc('system')", "x"),
        ("T = x", "x"),
        ("open = x", "__builtins__"),
    ],
)
def test_python_in_a_script_is_refused_before_it_runs(tmp_path: Path, statement: str, expression: str) -> None:
    pwned = tmp_path / "pwned"
    text = SCRIPT.format(statement=statement.format(pwned=pwned), expression=expression.format(pwned=pwned))
    assert "is not allowed in TVMScript from a file" in refusal(write(tmp_path, text))
    assert not pwned.exists()


@pytest.mark.parametrize(
    "text",
    [
        "import os\nclass ir_module: pass",
        "x = open('ir_module')",
        "@I.pyfunc\ndef ir_module(): pass",
        "@I.ir_module\nclass Module(list): pass",
        "metadata = tvm.ir.load_json(open('ir_module'))",
    ],
)
def test_other_python_files_are_refused(tmp_path: Path, text: str) -> None:
    assert "is not allowed in TVMScript from a file" in refusal(write(tmp_path, text))


def test_a_syntax_error_has_its_line(tmp_path: Path) -> None:
    assert "syntax error at line 2" in refusal(write(tmp_path, "@I.ir_module\nclass Module\n"))


def calling_out() -> tvm.IRModule:
    @I.ir_module
    class Module:
        @T.prim_func(s_tir=True)
        def kernel(a: T.Buffer((8,), "float32")) -> None:  # noqa: N805
            for i in T.serial(8):
                with T.sblock("block"):
                    v = T.axis.spatial(8, i)
                    a[v] = T.call_extern("float32", "system", "ls")

    return Module


def foreign_code() -> tvm.IRModule:
    @I.ir_module
    class Module:
        @T.prim_func(s_tir=True)
        def kernel(a: T.Buffer((8,), "float32")) -> None:  # noqa: N805
            for i in T.serial(8, annotations={"pragma_import_c": "int system(const char*);"}):
                with T.sblock("block"):
                    v = T.axis.spatial(8, i)
                    a[v] = T.float32(0)

    return Module


def packed_call() -> tvm.IRModule:
    @I.ir_module
    class Module:
        @R.function(pure=False)
        def main(x: R.Tensor((2, 8), "float32")) -> R.Tensor((2, 8), "float32"):  # noqa: N805
            y = R.call_packed("runtime.something", x, ty_args=R.Tensor((2, 8), "float32"))
            return y  # noqa: RET504  TVMScript binds before it returns

    return Module


@pytest.mark.parametrize(
    ("mod", "words"),
    [
        (calling_out(), "calls 'system' through tirx.call_extern"),
        (foreign_code(), "carries foreign code under 'pragma_import_c'"),
        (packed_call(), "calls the external function"),
    ],
)
@pytest.mark.parametrize("form", ["json", "script"])
def test_calls_out_of_the_module_are_refused(tmp_path: Path, mod: tvm.IRModule, words: str, form: str) -> None:
    text = str(tvm.ir.save_json(mod)) if form == "json" else mod.script(show_meta=True)
    assert words in refusal(write(tmp_path, text))


@pytest.mark.parametrize("text", ["{}", '{"root_index": 0, "nodes": 3}', '{"root_index": 7, "nodes": []}'])
def test_json_that_is_no_module(tmp_path: Path, text: str) -> None:
    assert "is no IRModule as JSON" in refusal(write(tmp_path, text))


def test_json_of_something_else(tmp_path: Path) -> None:
    text = str(tvm.ir.save_json(tvm.runtime.convert([1, 2])))
    assert "not an IRModule" in refusal(write(tmp_path, text))


def test_a_module_without_main(tmp_path: Path) -> None:
    text = SCRIPT.format(statement="pass", expression="R.nn.relu(x)").replace("def main", "def other")
    assert "no Relax function named 'main'" in refusal(write(tmp_path, text))


def test_a_module_with_an_open_dimension(tmp_path: Path) -> None:
    text = SCRIPT.format(statement="pass", expression="R.nn.relu(x)").replace("(2, 8)", '("n", 8)', 1)
    text = text.replace("-> R.Tensor((2, 8)", '-> R.Tensor(("n", 8)').replace(
        'y: R.Tensor((2, 8), dtype="float32")', "y"
    )
    assert "input 'x' has open dimensions" in refusal(write(tmp_path, text))


def test_shapes_are_not_taken_for_a_module(tmp_path: Path) -> None:
    text = SCRIPT.format(statement="pass", expression="R.nn.relu(x)")
    assert "leave out --input" in refusal(write(tmp_path, text), {"x": [1, 8]})
