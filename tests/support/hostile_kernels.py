"""Operators that attack the process that measures them. The check of IRModules refuses most of them: a sandbox must
hold without that check.

An attack that succeeds writes `ESCAPED` and its name into the log of the process, or does what its test looks for.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tvm
from tvm import relax, te, tirx

ESCAPED = "ESCAPED"
_STDERR = 2
_AF_INET, _AF_UNIX, _STREAM = 2, 1, 1
_SHARED_MEMORY = 0x4021
"""MAP_SHARED, MAP_ANONYMOUS and MAP_NORESERVE: the kernel gives out more than there is"""
_SEIZE = 0x4206
"""of ptrace; to attach would stop the process that tests"""
_FAR = 1 << 33


def _call(name: str, *args: Any, dtype: str = "int64") -> Any:
    return tirx.call_extern(dtype, name, *(_argument(each) for each in args))


def _argument(value: Any) -> Any:
    if isinstance(value, str):
        return tvm.ir.StringImm(value)
    return tirx.const(value, "int64") if isinstance(value, int) else value


def _told(name: str, result: Any) -> Any:
    """`result`; a success is also written to the log."""
    line = f"{ESCAPED} {name} "
    return tirx.if_then_else(result >= 0, _call("write", _STDERR, line, len(line)), tirx.const(-1, "int64"))


def _shown(path: Path | str) -> Any:
    return _call("sendfile", _STDERR, _call("open", str(path), os.O_RDONLY, dtype="int32"), 0, 4096)


def _forked() -> Any:
    """A new process ends at once. If it went on, it would fork too, and so would its own: a sandbox that is broken
    would take the machine down.
    """
    pid = tirx.Var("pid", "int32")
    fork = _call("syscall", 57 if os.uname().machine == "x86_64" else 1079, dtype="int32")
    return tirx.Let(pid, fork, tirx.if_then_else(tirx.EQ(pid, 0), _call("_exit", 0), _told("fork", pid)))


def attacks(secret: Path, folder: Path, victim: int) -> Mapping[str, Any]:
    """Expressions by name: what each does to the file `secret`, the `folder`, and the process `victim`, which is its
    supervisor's.
    """
    write, made = os.O_WRONLY | os.O_CREAT, str(folder / "made")
    told: dict[str, Any] = {
        "socket": _call("socket", _AF_INET, _STREAM, 0, dtype="int32"),
        "unix-socket": _call("socket", _AF_UNIX, _STREAM, 0, dtype="int32"),
        "memory-file": _call("memfd_create", "x", 0, dtype="int32"),
        "shared-memory": _call("mmap", 0, 1 << 45, 3, _SHARED_MEMORY, -1, 0),
        "signal": _call("kill", victim, 0, dtype="int32"),
        "trace": _call("ptrace", _SEIZE, victim, 0, 0),
        "memory-of-others": _call("process_vm_readv", victim, 0, 0, 0, 0, 0),
        "file": _call("open", made, write, 0o600, dtype="int32"),
        "link": _call("symlink", str(secret), str(folder / "link"), dtype="int32"),
        "folder": _call("mkdir", str(folder / "folder"), 0o700, dtype="int32"),
        "outliving": _call("prctl", 1, 0, 0, 0, 0, dtype="int32"),
        "group": _call("setsid", dtype="int32"),
        "limit": _call("truncate", str(secret), 0, dtype="int32"),
    }
    return {
        **{name: _told(name, result) for name, result in told.items()},
        "fork": _forked(),
        "secret": _shown(secret),
        "environment": _shown(f"/proc/{victim}/environ"),
        "shell": _call("system", f"echo {ESCAPED} shell >&2", dtype="int32"),
        "program": _call("execl", "/bin/sh", "sh", "-c", f"echo {ESCAPED} program >&2", 0, dtype="int32"),
    }


def endless() -> Mapping[str, Any]:
    """Those that end only with their process."""
    return {"sleeping": _call("poll", 0, 0, -1, dtype="int32"), "aborting": _call("abort", dtype="int32")}


def operator(expression: Any, far: int = 0) -> tvm.IRModule:
    """One element, with the expression computed beside it; `far`: how many elements outside it reads and writes."""
    x = te.placeholder((1,), name="x")

    def value(i: Any) -> Any:
        read = x[i + far]
        return read if expression is None else read + expression.astype("float32")

    return tvm.IRModule({"main": te.create_prim_func([x, te.compute((1,), value, name="y")])})


def operators(secret: Path, folder: Path, victim: int) -> dict[str, tvm.IRModule]:
    found = {**attacks(secret, folder, victim), **endless()}
    return {**{name: operator(expression) for name, expression in found.items()}, "outside": operator(None, _FAR)}


def model_of(operator: tvm.IRModule) -> bytes:
    """A model file that calls the operator."""
    one = relax.TensorType([1], "float32")
    builder, x = relax.BlockBuilder(), relax.Var("x", one)
    with builder.function("main", [x]):
        with builder.dataflow():
            kernel = builder.add_func(operator["main"].without_attr("global_symbol"), "kernel")
            y = builder.emit_output(relax.call_tir(kernel, (x,), one))
        builder.emit_func_output(y)
    return str(tvm.ir.save_json(builder.get())).encode()
