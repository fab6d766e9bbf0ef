"""Entry of a child process: `python -m fractune_workers.children FD LIFELINE PARENT_PID MODULE [ARGS]`.

The module's `open_child(args)` returns the methods that the parent may call, by name.
"""

import contextlib
import gc
import importlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fractune_core.errors import FractuneError, first_line
from fractune_core.host.parent_death import die_with_parent, group_dies_with
from fractune_core.host.sandbox import Sandbox
from fractune_core.host.syscall_filter import allow_measuring_only, refuse_to_write_files
from fractune_workers.child.errors import ChildDied, LimitMet, memory_met_by
from fractune_workers.child.messages import decode, encode
from fractune_workers.children.tvm_api import keep_out
from fractune_workers.scratch_dir import own_temporary_files, use_for_temporary_files

_WRITERS = tuple(f"fractune_workers.children.{room}." for room in ("building", "compiling", "importing", "searching"))
"""Rooms whose children write temporary files: the files of a killed child are removed when the next one starts. The
other children are confined, and find locks and MPS daemons in the folder that all processes of the host share."""
_USERS_OF_TVM = (*_WRITERS, *(f"fractune_workers.children.{module}" for module in ("checking.", "measuring.child")))

Methods = Mapping[str, Callable[..., Any]]

_CONFINED = ("fractune_workers.children.measuring.child",)
"""Children that enter a share of a CPU before their sandbox, which would keep them from it"""
_LAST_ANSWERS = frozenset((ChildDied.__name__, LimitMet.__name__))
"""errors that end this process"""


def serve(link: Connection, methods: Methods) -> None:
    """Answer calls until the parent closes the connection, or an error ends this process."""
    answer: dict[str, Any] = {}
    while answer.get("error") not in _LAST_ANSWERS:
        try:
            request = decode(link.recv_bytes())
        except EOFError:
            return
        answer = _answer(methods, request)
        link.send_bytes(encode(answer))


def _answer(methods: Methods, request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"value": methods[request["method"]](**request["value"])}
    except Exception as error:  # noqa: BLE001  TVM raises any type; the call failed, the child lives on
        return _error_json(error)


def _error_json(error: Exception) -> dict[str, Any]:
    """An error as the parent gets it: ours by name and text, any other as a failed call."""
    error = memory_met_by(error) or error
    if isinstance(error, FractuneError):
        return {"error": type(error).__name__, "message": str(error)}
    return {"error": "CallFailed", "message": f"{type(error).__name__}: {first_line(error)}"}


def _open_and_serve(link: Connection) -> None:
    said = decode(link.recv_bytes())["value"]
    lacking: list[str] = []

    def enter_sandbox() -> None:
        if said is None:
            return
        sandbox = Sandbox.from_json(said)
        lacking.extend(sandbox.enter())
        if enters_itself:  # before, it finds locks and MPS daemons in the folder that all processes of the host share
            use_for_temporary_files(Path(sandbox.writable[0]))

    enters_itself = sys.argv[4] in _CONFINED
    if not enters_itself:
        enter_sandbox()
    keep_out.keep_torch_out()
    keep_out.keep_shape_inference_out()
    gc.disable()  # nothing of what is imported is garbage, and to look takes a tenth of the time that TVM takes
    try:
        with contextlib.ExitStack() as importing:
            if sys.argv[4].startswith(_USERS_OF_TVM):
                importing.enter_context(keep_out.functions_listed_once())
                importing.enter_context(keep_out.backends_kept_out())
            open_child = importlib.import_module(sys.argv[4]).open_child
            methods: Methods = open_child(sys.argv[5:], *([enter_sandbox] if enters_itself else []))
    except Exception as error:  # noqa: BLE001  the parent must learn of any error
        link.send_bytes(encode(_error_json(error)))
        return
    if enters_itself and said is not None:
        with contextlib.suppress(OSError):
            refuse_to_write_files() if said["uses_cuda"] else allow_measuring_only()
    gc.freeze()  # nor will it be
    gc.enable()
    link.send_bytes(encode({"lacking": lacking}))
    serve(link, methods)


def main() -> None:
    link = Connection(int(sys.argv[1]))
    group_dies_with(int(sys.argv[2]))
    die_with_parent(int(sys.argv[3]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    writes = sys.argv[4].startswith(_WRITERS)
    with (
        own_temporary_files() if writes else contextlib.nullcontext(),
        contextlib.suppress(BrokenPipeError, ConnectionResetError),  # the parent has closed it
    ):
        link.send_bytes(b"{}")  # our parent may stop us from now on
        _open_and_serve(link)
    # TVM takes its time to tidy up, and there is nothing to tidy: what a child made, it has sent.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
