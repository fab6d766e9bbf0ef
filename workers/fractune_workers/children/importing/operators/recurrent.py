"""ONNX's recurrent operators: LSTM, GRU and RNN, and those with a mask, which rolled up recurrences become.

The inputs' products with their weights, for all steps at once, are a matrix product like any other. The recurrence
itself is one kernel (`recurrent/recurrence.py`).
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from tvm import relax

from fractune_workers.children.importing.onnx_graph import text_of
from fractune_workers.children.importing.operators.onnx_node import Converter, OnnxNode, dtype_of, shape_of
from fractune_workers.children.recurrent import recurrence
from fractune_workers.children.recurrent.kernel import recurrence_kernel
from fractune_workers.children.recurrent.packing import Tiling

_DEFAULT_ACTIVATIONS = {
    recurrence.LSTM: ("sigmoid", "tanh", "tanh"),
    recurrence.GRU: ("sigmoid", "tanh"),
    recurrence.RNN: ("tanh",),
}
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_COMPUTED_TYPES = ("float32", "float64")
X, W, R, B, _LENGTHS, _H, _C, _P = range(8)
_NAMES = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P", "mask")
_HIDDEN = 2
"""a GRU's gate with the reset"""


def _convert(cell: str, node: OnnxNode) -> Sequence[relax.Expr]:
    asked = dtype_of(node.input(X))
    narrow = asked == "float16"
    if not narrow and asked not in _COMPUTED_TYPES:
        raise node.refused(f"it computes with {asked}; export it with float32")
    operands = operands_of(node, widened=narrow)
    of = recurrence_of(cell, node, operands)
    added, inside = biases(node, of, operands[B])
    projected = _projected(node, of, operands, added)
    weights = _recurrent_weights(node, of, operands[R])
    outputs = outputs_of(node, of, operands, [projected, *weights], inside=inside)
    return [node.emit(relax.op.astype(each, asked)) for each in outputs] if narrow else outputs


def operands_of(
    node: OnnxNode, *, widened: bool = False, whole_weights: bool = False
) -> Mapping[int, relax.Expr | None]:
    """The inputs by their places, those of an LSTM; as float32 where the operator has float16 (`widened`).

    Raises BadModel for an input of another type than X, but for weights that are whole numbers.
    """
    known = range(len(_NAMES) if node.proto.domain == recurrence.MASKED else recurrence.MASK)
    for at in known:
        if not (whole_weights and at in (W, R)):
            _check_type(node, at)
    return {at: _operand(node, at, widened=widened) if at in known else None for at in range(len(_NAMES))}


def _check_type(node: OnnxNode, at: int) -> None:
    value, expected = node.optional(at), {_LENGTHS: "int32", recurrence.MASK: "bool"}.get(at) or dtype_of(node.input(X))
    if value is not None and dtype_of(value) != expected:
        raise node.refused(f"its input {_NAMES[at]} has {dtype_of(value)}, and {expected} is expected; export it again")


def _operand(node: OnnxNode, at: int, *, widened: bool) -> relax.Expr | None:
    value = node.optional(at)
    if value is None or not widened or at in (_LENGTHS, recurrence.MASK):
        return value
    numbers = node.constant(at)
    return node.emit(relax.op.astype(value, "float32")) if numbers is None else relax.const(numbers.astype("float32"))


def recurrence_of(cell: str, node: OnnxNode, operands: Mapping[int, relax.Expr | None]) -> recurrence.Recurrence:
    """What the node computes. Raises BadModel for attributes and shapes that do not fit."""
    attributes = node.attributes
    direction = text_of(attributes.get("direction", "forward"))
    if direction not in _DIRECTIONS:
        raise node.refused(f"its attribute 'direction' is '{direction}'; write one of {', '.join(_DIRECTIONS)}")
    layout = int(attributes.get("layout", 0))
    if layout not in (0, 1):
        raise node.refused(f"its attribute 'layout' is {layout}; write 0 or 1")
    backwards = _DIRECTIONS[direction]
    data, weights = node.input(X), node.input(R)
    if len(shape_of(data)) != 3 or len(shape_of(weights)) != 3:
        raise node.refused(f"X and R have the shapes {shape_of(data)} and {shape_of(weights)}; both have 3 axes")
    outer = shape_of(data)[:2]
    steps, batch = outer if layout == 0 else reversed(outer)
    units = shape_of(weights)[2]
    if min(steps, batch, units) < 1:
        raise node.refused(f"it has {steps} steps of {batch} rows and {units} units; each must be at least 1")
    if int(attributes.get("hidden_size", units)) != units:
        raise node.refused(f"its attribute 'hidden_size' is {attributes['hidden_size']}, and R has {units} units")
    of = recurrence.Recurrence(
        cell=cell,
        steps=steps,
        batch=batch,
        units=units,
        backwards=backwards,
        activations=_activations(cell, node, len(backwards)),
        dtype="float64" if dtype_of(data) == "float64" else "float32",
        clip=_clip(node),
        couples_forget=cell == recurrence.LSTM and bool(attributes.get("input_forget", 0)),
        resets_product=cell == recurrence.GRU and bool(attributes.get("linear_before_reset", 0)),
        has_lengths=operands[_LENGTHS] is not None and not _is_full(node, steps),
        has_mask=operands[recurrence.MASK] is not None,
        has_peepholes=cell == recurrence.LSTM and operands[_P] is not None,
        batch_first=bool(layout),
    )
    _check_shapes(node, of, operands)
    return of


def _clip(node: OnnxNode) -> float:
    """The bound of what goes into the activations; 0 for none."""
    clip = float(node.attributes.get("clip", 0.0))
    if not clip >= 0:
        raise node.refused(f"its attribute 'clip' is {clip:g}; write a positive number, or leave it out")
    return clip


def _is_full(node: OnnxNode, steps: int) -> bool:
    """Whether the lengths are known, and those of all rows are all steps."""
    lengths = node.constant(_LENGTHS)
    return lengths is not None and bool((lengths == steps).all())


def _activations(cell: str, node: OnnxNode, directions: int) -> tuple[tuple[recurrence.Activation, ...], ...]:
    """By direction. A function takes as many of the parameters in the attributes as it has."""
    defaults = _DEFAULT_ACTIVATIONS[cell]
    each = len(defaults)
    names = [text_of(name) for name in node.attributes.get("activations", ())] or defaults * directions
    if len(names) != each * directions:
        raise node.refused(f"its attribute 'activations' has {len(names)} functions; write {each} for each direction")
    unknown = next((name for name in names if name.lower() not in recurrence.ACTIVATIONS), None)
    if unknown is not None:
        raise node.refused(
            f"its attribute 'activations' has '{unknown}', which is unknown; "
            f"write one of {', '.join(recurrence.ACTIVATIONS)}"
        )
    alphas, betas = (iter(_numbers(node, f"activation_{name}")) for name in ("alpha", "beta"))
    made = [_activation(node, name.lower(), alphas, betas) for name in names]
    return tuple(tuple(made[at : at + each]) for at in range(0, len(made), each))


def _activation(node: OnnxNode, name: str, alphas: Iterator[float], betas: Iterator[float]) -> recurrence.Activation:
    defaults = zip((alphas, betas), recurrence.ACTIVATIONS[name].defaults, strict=False)
    parameters = [number for given, default in defaults if (number := next(given, default)) is not None]
    if len(parameters) < len(recurrence.ACTIVATIONS[name].defaults):
        raise node.refused(f"its activation '{name}' needs a number in 'activation_alpha' and in 'activation_beta'")
    return recurrence.Activation(name, *parameters)


def _numbers(node: OnnxNode, name: str) -> list[float]:
    given = node.attributes.get(name, ())
    return [float(number) for number in (given if isinstance(given, tuple) else (given,))]


def _check_shapes(node: OnnxNode, of: recurrence.Recurrence, operands: Mapping[int, relax.Expr | None]) -> None:
    gates = of.gates * of.units
    expected = {
        W: (of.directions, gates, shape_of(node.input(X))[2]),
        R: (of.directions, gates, of.units),
        B: (of.directions, 2 * gates),
        _LENGTHS: (of.batch,),
        _H: of.states,
        _C: of.states,
        _P: (of.directions, 3 * of.units),
        recurrence.MASK: of.outer(of.steps, of.batch),
    }
    node.input(W)
    for at, shape in expected.items():
        value = operands[at]
        if value is not None and shape_of(value) != list(shape):
            raise node.refused(f"its input {_NAMES[at]} has the shape {shape_of(value)}, and {list(shape)} is expected")


def outputs_of(
    node: OnnxNode,
    of: recurrence.Recurrence,
    operands: Mapping[int, relax.Expr | None],
    begin: Sequence[relax.Expr],
    *,
    scales: relax.Expr | None = None,
    inside: relax.Expr | None = None,
) -> Sequence[relax.Expr]:
    """The outputs, by a call of the kernel. `begin`: the projected inputs and the recurrent weights; `scales`: of whole
    weights; `inside`: the bias inside a GRU's reset.
    """
    zeros = relax.const(np.zeros(of.states), of.dtype)
    states = [zeros if operands[at] is None else operands[at] for at in (_H, _C)]
    arguments = [*begin, *states[: 2 if of.has_cell_state else 1]]
    if scales is not None:
        arguments.append(scales)
    if of.has_peepholes:
        arguments.append(operands[_P])
    if of.resets_product:
        arguments.append(relax.const(np.zeros((of.directions, of.units)), of.dtype) if inside is None else inside)
    if of.has_lengths:
        arguments.append(node.emit(relax.op.astype(operands[_LENGTHS], "int32")))
    if of.has_mask:
        arguments.append(node.emit(relax.op.astype(operands[recurrence.MASK], "int8")))
    made = [of.outputs, of.states, *([of.states] if of.has_cell_state else [])]
    kernel = node.builder.add_func(recurrence_kernel(of, Tiling()), of.cell.lower())
    call = relax.call_tir(kernel, arguments, [relax.TensorType(shape, of.dtype) for shape in made])
    results = node.emit(call)
    return [node.emit(relax.TupleGetItem(results, at)) for at in range(len(made))]


def _projected(
    node: OnnxNode, of: recurrence.Recurrence, operands: Mapping[int, relax.Expr | None], bias: Any
) -> relax.Expr:
    """The inputs' products with their weights for all steps, with the bias."""
    data, weights = operands[X], operands[W]
    *outer, inputs = shape_of(data)
    columns = of.directions * of.gates * of.units
    numbers = node.constant(W)
    if numbers is None:
        rows = node.emit(relax.op.reshape(weights, (columns, inputs)))
        right = node.emit(relax.op.permute_dims(rows))
    else:
        right = relax.const(np.ascontiguousarray(numbers.reshape(columns, inputs).T), of.dtype)
    left = node.emit(relax.op.reshape(data, (outer[0] * outer[1], inputs)))
    product = node.emit(relax.op.matmul(left, right))
    if bias is not None:
        product = node.emit(relax.op.add(product, bias))
    return node.emit(relax.op.reshape(product, of.projected))


def _recurrent_weights(node: OnnxNode, of: recurrence.Recurrence, weights: Any) -> list[relax.Expr]:
    """As the kernel reads them (`split`), by phase."""
    numbers = node.constant(R)
    if numbers is not None:
        return [relax.const(each, of.dtype) for each in recurrence.split(numbers, of)]
    by_gate = node.emit(relax.op.reshape(weights, (of.directions, of.gates, of.units, of.units)))
    made = []
    for gates in of.phases:
        own = by_gate
        if len(gates) < of.gates:
            own = node.emit(relax.op.strided_slice(by_gate, [1], [gates[0]], [gates[-1] + 1]))
        turned = node.emit(relax.op.permute_dims(own, [0, 3, 1, 2]))
        made.append(node.emit(relax.op.reshape(turned, (of.directions, of.units, len(gates) * of.units))))
    return made


def biases(node: OnnxNode, of: recurrence.Recurrence, bias: Any) -> tuple[Any, Any]:
    """The bias that is added to the projected inputs (1, D*G*H), and the one inside a GRU's reset (D, H); None each
    where there is none.
    """
    if bias is None:
        return None, None
    gates, units = of.gates * of.units, of.units
    numbers = node.constant(B)
    if numbers is not None:
        both = numbers.astype(of.dtype).reshape(of.directions, 2, of.gates, units)
        recurrent, inside = both[:, 1].copy(), None
        if of.resets_product:
            inside = relax.const(recurrent[:, _HIDDEN].copy(), of.dtype)
            recurrent[:, _HIDDEN] = 0
        return relax.const((both[:, 0] + recurrent).reshape(1, -1), of.dtype), inside
    part = partial(_slice, node, bias)
    if not of.resets_product:
        added = node.emit(relax.op.add(part(0, gates), part(gates, 2 * gates)))
        return node.emit(relax.op.reshape(added, (1, of.directions * gates))), None
    outside = node.emit(relax.op.add(part(0, 2 * units), part(gates, gates + 2 * units)))
    whole = node.emit(relax.op.concat([outside, part(2 * units, gates)], axis=1))
    return node.emit(relax.op.reshape(whole, (1, of.directions * gates))), part(2 * gates - units, 2 * gates)


def _slice(node: OnnxNode, value: Any, begin: int, end: int) -> relax.Expr:
    """Columns of a matrix."""
    return node.emit(relax.op.strided_slice(value, [1], [begin], [end]))


RECURRENT: Mapping[str, Converter] = {
    f"{domain}{cell}": partial(_convert, cell)
    for cell in (recurrence.LSTM, recurrence.GRU, recurrence.RNN)
    for domain in ("", f"{recurrence.MASKED}.")
}
