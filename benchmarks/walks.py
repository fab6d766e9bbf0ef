"""How many files and functions of the product one thing passes through, by tracing real calls.

Counted are the functions of fractune's packages that run, the files that they stand in, and the changes from one file
to another. Class bodies and imports do not count. The first walk is that of a command and of the server's threads that
answer it, in two processes; the counts are of both together. The server's workers are simulated. A model was imported
before, and a bundle loaded and run.

A candidate passes through eight processes, most of them confined: the engine of the server, three workers, and their
children. They are traced while a search is under way, for some rounds; threads that only keep locks and leases alive,
and those that answer the user, are left out. So this walk also has what a round does that a single candidate does not.

Usage: python -m benchmarks.walks [--quick] [--out FILE] [--files]
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Self
from unittest.mock import patch

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import fractune
from benchmarks.support.machine import arguments, write_result
from fractune.cli import main as run_command
from fractune.server.job_status import JobStatus
from fractune_core.fleet.options import ServerOptions
from fractune_core.jobs import JobState
from fractune_core.shares import Share
from fractune_server.main import run_server
from fractune_workers.children.compiling.child import ingest
from fractune_workers.children.tvm_api.target import host_cpu
from fractune_workers.confinement import confinement_for
from tests.support.processes.fleet_simulated import simulated_fleet
from tests.support.processes.redis_process import running_redis, wait_until
from tests.support.real_bundle import compile_model
from tests.support.secret import SECRET

_ROOT = Path(__file__).parents[1]
_PRODUCT = tuple(
    f"{_ROOT / folder}{os.sep}" for folder in ("tuner_client", "tuner_core", "tuner_runtime", "tuner_server", "workers")
)
_OPTIMIZED = 1
"""flag of the code of a function; that of a module or of a class body is without it"""
_INNER = ("<listcomp>", "<genexpr>", "<lambda>", "<dictcomp>", "<setcomp>")
_HANDLERS = "grpc"
"""how the names of the server's threads begin that answer calls"""
_SUBMITTED, _IMPORTED, _LOADED = "tune --detach to the stored job", "an ONNX file to operators", "a bundle is loaded"
_RUN, _SHARE = "model.run", "a share's text to its proof"
_SEARCHED = "candidates, from the search to the record"
AIMS = {_SUBMITTED: 45, _SEARCHED: 70, _IMPORTED: 42, _LOADED: 22, _RUN: 5, _SHARE: 13}
"""files at most"""
_BEFORE, _CANDIDATES = 8, 48
"""candidates of a search before its processes are traced, and all"""
_TRACER = """
import mmap, os, sys, threading

seen, counted = set(), ("MainThread", "engine")
out = os.open({out!r}, os.O_WRONLY | os.O_APPEND)
with open({flag!r}, "rb") as file:
    flag = mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ)

def note(frame, event, _):
    code = frame.f_code
    if event == "call" and flag[0] == 1 and code not in seen and threading.current_thread().name in counted:
        seen.add(code)
        os.write(out, f"{{code.co_flags}}\\t{{code.co_filename}}\\t{{code.co_qualname}}\\n".encode())

sys.setprofile(note)
threading.setprofile(note)
"""
"""A `sitecustomize` for all Python processes of a stack. What it needs is open before a process enters its sandbox."""
_PROVED = "cpu:1"


@dataclass
class Walk:
    """The calls of the product while it is entered, in threads whose names begin with `threads`."""

    threads: str = ""
    files: set[str] = field(default_factory=set)
    functions: set[tuple[str, str]] = field(default_factory=set)
    hops: int = 0
    _last: str = ""

    def __enter__(self) -> Self:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and threading.current_thread().name.startswith(self.threads):
            self.hops += self.enter(code.co_flags, code.co_filename, code.co_qualname)

    def enter(self, flags: int, file: str, function: str) -> bool:
        """Count a function, if it is one of the product; whether it stands in another file than the one before."""
        if not flags & _OPTIMIZED or function.rpartition(".")[2] in _INNER or not file.startswith(_PRODUCT):
            return False
        self.files.add(file.removeprefix(f"{_ROOT}{os.sep}"))
        self.functions.add((file, function))
        before, self._last = self._last, file
        return file != before

    def add(self, other: dict[str, Any]) -> None:
        """What `to_json` told in another process."""
        self.files.update(other["files"])
        self.functions.update((file, name) for file, name in other["functions"])
        self.hops += other["hops"]

    def to_json(self) -> dict[str, Any]:
        return {"files": sorted(self.files), "functions": sorted(self.functions), "hops": self.hops}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--files", action="store_true", help="print the files of each walk")
    parser.add_argument("--submit", nargs=2, metavar=("MODEL", "SERVER"), help=argparse.SUPPRESS)
    parser.add_argument("--prove", metavar="SHARE", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.submit or args.prove:
        print(json.dumps((_submitting(*args.submit) if args.submit else _proving(args.prove)).to_json()))
        return
    with tempfile.TemporaryDirectory(prefix="fractune-walks-") as text:
        folder = Path(text)
        model = _model(folder / "m.onnx")
        walks = {_SUBMITTED: _submitted(model, folder), _SEARCHED: _searched(model, folder)}
        walks |= _in_this_process(folder)
    environment = {**os.environ, **confinement_for(Share.parse(_PROVED)).environment()}
    walks[_SHARE] = Walk()
    walks[_SHARE].add(_child("--prove", _PROVED, env=environment))
    print(f"{'walk':<42}{'files':>7}{'aim':>6}{'functions':>11}{'hops':>7}")
    for name, walk in walks.items():
        hops = walk.hops or "-"  # not counted where several processes write into one file
        print(f"{name:<42}{len(walk.files):>7}{AIMS[name]:>6}{len(walk.functions):>11}{hops:>7}")
        for file in sorted(walk.files) if args.files else ():
            print(f"    {file}")
    rows = [
        {"walk": name, "files": len(walk.files), "functions": len(walk.functions), "hops": walk.hops, "aim": AIMS[name]}
        for name, walk in walks.items()
    ]
    write_result("walks", args, {"rows": rows})
    over = ", ".join(f"{len(walk.files) / AIMS[name]:.2f}" for name, walk in walks.items())
    print(f"walks: files over the aim: {over}")


def _model(path: Path) -> Path:
    """A convolution and a GELU."""
    weights = np.random.default_rng(0).standard_normal((8, 4, 3, 3)).astype(np.float32)
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"]), helper.make_node("Gelu", ["y"], ["z"])]
    taken = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 16, 16])
    given = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "walk", [taken], [given], [numpy_helper.from_array(weights, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


def _submitted(model: Path, folder: Path) -> Walk:
    """The command runs in a process of its own, and the server in this one until the command has ended."""
    told: list[dict[str, Any]] = []
    ready = folder / "ready"

    def submit() -> None:
        wait_until(ready.exists)
        try:
            told.append(_child("--submit", str(model), ready.read_text().strip()))
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    walk = Walk(threads=_HANDLERS)
    with running_redis() as url, simulated_fleet(url), walk:
        threading.Thread(target=submit).start()
        run_server(ServerOptions(url, folder / "state", SECRET, listen="127.0.0.1:0", ready_file=ready))
    walk.add(told[0])
    return walk


def _searched(model: Path, folder: Path) -> Walk:
    """Of the processes of a stack that `fractune.tune` starts, and of their children."""
    site, out, flag = folder / "site", folder / "traced", folder / "flag"
    site.mkdir()
    (site / "sitecustomize.py").write_text(_TRACER.format(out=str(out), flag=str(flag)), encoding="utf-8")
    out.touch()
    flag.write_bytes(bytes(1))

    def trace(status: JobStatus) -> None:
        with flag.open("r+b") as file:  # the same file: the processes have mapped it
            file.write(bytes([status.state is JobState.TUNING and status.progress.candidates_done >= _BEFORE]))

    path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
    with patch.dict(os.environ, PYTHONPATH=path):
        options: dict[str, Any] = {"trials": _CANDIDATES, "out": folder / "searched.fractune", "progress": trace}
        fractune.tune(model, shares=[_PROVED], state=folder / "stack", **options)
    walk = Walk()
    for line in out.read_text(encoding="utf-8").splitlines():
        flags, file_name, function = line.split("\t")
        walk.enter(int(flags), file_name, function)
    if not walk.files:
        raise SystemExit("walks: the stack was not traced; another sitecustomize may stand before ours")
    return walk


def _child(*args: str, **settings: Any) -> dict[str, Any]:
    """What a walk in a process of its own was."""
    command = [sys.executable, "-m", "benchmarks.walks", *args]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=_ROOT, **settings)
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def _submitting(model: str, server: str) -> Walk:
    with Walk() as walk:
        code = run_command(["tune", model, "--shares", _PROVED, "--server", server, "--detach"])
    if code:
        raise SystemExit(code)
    return walk


def _proving(text: str) -> Walk:
    with Walk() as walk:
        confinement = confinement_for(Share.parse(text))
        confinement.enter()
        confinement.verify()
        confinement.leave()
    return walk


def _in_this_process(folder: Path) -> dict[str, Walk]:
    model = _model(folder / "n.onnx")
    walks = {name: Walk() for name in (_IMPORTED, _LOADED, _RUN)}
    ingest(str(_model(folder / "first.onnx")), {}, "", host_cpu())
    with walks[_IMPORTED]:
        ingest(str(model), {}, "", host_cpu())
    bundle = compile_model(model, folder / "m.fractune")
    fractune.load(bundle).run({"x": np.zeros((1, 4, 16, 16), np.float32)})
    with walks[_LOADED]:
        loaded = fractune.load(bundle)
    inputs = {"x": np.ones((1, 4, 16, 16), np.float32)}
    loaded.run(inputs)
    with walks[_RUN]:
        loaded.run(inputs)
    return walks


if __name__ == "__main__":
    main()
