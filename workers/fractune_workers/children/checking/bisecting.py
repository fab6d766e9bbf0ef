"""The first node of an ONNX file that the importer makes compute something else.

The graph is cut at a value, which becomes its only output. The cut graph is imported, compiled without schedules, and
compared with the reference. By halves this finds a value that differs though all that its node reads agrees.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import onnx

from fractune_core.errors import FractuneError, first_line
from fractune_runtime.right_outputs import Deadline
from fractune_workers.children.importing.onnx_graph import makers_of, names_read, needed_for

_log = logging.getLogger(__name__)

Differs = Callable[[onnx.ModelProto], bool]
"""Whether the cut model's output differs from the reference's. It may raise any error where that is not known."""


def first_different(model: onnx.ModelProto, outputs: Sequence[str], differs: Differs, deadline: Deadline) -> Any | None:
    """The node; None if all outputs agree when the model is imported again. After the deadline it is the last node that
    was seen to differ. Raises FractuneError if that cannot be found out.
    """
    nodes = list(model.graph.node)
    makers = makers_of(nodes)
    known: dict[str, bool | None] = {}

    def test(name: str) -> bool | None:
        if name not in known:
            known[name] = _tested(model, nodes, name, differs)
        return known[name]

    found = next((name for name in outputs if test(name)), None)
    if found is None:
        if None in known.values():
            raise FractuneError("an output cannot be compared apart")
        return None
    agreeing: set[int] = set()
    while deadline.left_s > 0:
        place = makers[found]
        before = [at for at in needed_for([found], nodes) if at != place and at not in agreeing]
        if not before:
            break
        middle = before[len(before) // 2]
        names = [name for name in nodes[middle].output if name]
        wrong = next((name for name in names if test(name)), None)
        if wrong is not None:
            found = wrong
        else:
            # What cannot be compared is passed over: a value behind it will tell.
            compared = any(known[name] is False for name in names)
            agreeing.update(needed_for(names[:1], nodes) if compared and names else [middle])
    return nodes[makers[found]]


def _tested(model: onnx.ModelProto, nodes: Sequence[Any], name: str, differs: Differs) -> bool | None:
    try:
        return differs(cut_at(model, nodes, name))
    except (FractuneError, ValueError, RuntimeError, TypeError, KeyError, IndexError) as error:
        _log.info("'%s' cannot be compared: %s", name, first_line(error))
        return None


def cut_at(model: onnx.ModelProto, nodes: Sequence[Any], name: str) -> onnx.ModelProto:
    """The model with this value as its only output, and the nodes that it needs."""
    kept = [nodes[place] for place in needed_for([name], nodes)]
    read = {each for node in kept for each in names_read(node)} | {name}
    cut = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    cut.graph.name = model.graph.name or "cut"
    cut.graph.node.extend(kept)
    cut.graph.input.extend(model.graph.input)
    cut.graph.initializer.extend(each for each in model.graph.initializer if each.name in read)
    cut.graph.sparse_initializer.extend(model.graph.sparse_initializer)
    cut.graph.output.append(onnx.ValueInfoProto(name=name))
    return cut
