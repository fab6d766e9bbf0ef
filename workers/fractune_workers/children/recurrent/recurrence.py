"""The recurrence of an LSTM, a GRU or a plain RNN as one kernel with the loop over time, and its activations.

The product of the inputs with their weights does not depend on the state: it is computed before, for all steps. Each
step then computes the product of the state with the recurrent weights, and the activations. The weights of all gates of
a block of units lie side by side (`tilings.pack`): a step reads them once, from one end to the other.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from tvm import tirx

from fractune_workers.children.rewriting.transcendental import MOST_TANH, OF_TANH, polynomial


@dataclass(frozen=True)
class Activation:
    """One of ONNX's activation functions, with its parameters."""

    name: str
    """in lower case: a key of ACTIVATIONS"""
    alpha: float = 0.0
    beta: float = 0.0

    def __call__(self, x: Any) -> Any:
        return ACTIVATIONS[self.name].compute(x, _like(x, self.alpha), _like(x, self.beta))


@dataclass(frozen=True)
class _Function:
    compute: Callable[[Any, Any, Any], Any]
    """of x, alpha and beta"""
    defaults: tuple[float | None, ...] = ()
    """of alpha and beta, as far as the function has them; None where ONNX has no default"""


def tanh(x: Any) -> Any:
    if str(x.ty.dtype) != "float32":
        return tirx.tanh(x)
    bounded = _clipped(x, -MOST_TANH, MOST_TANH)
    above, below = (polynomial(bounded * bounded, each) for each in OF_TANH)
    return bounded * above / below


def sigmoid(x: Any) -> Any:
    half = _like(x, 0.5)
    return tanh(x * half) * half + half


def _like(x: Any, number: float) -> Any:
    return tirx.const(number, str(x.ty.dtype))


def _clipped(x: Any, low: float, high: float) -> Any:
    return tirx.max(tirx.min(x, _like(x, high)), _like(x, low))


def _softplus(x: Any) -> Any:
    """log(1 + exp(x)) without an overflow: exp is taken of numbers below 0 alone."""
    one, zero = _like(x, 1.0), _like(x, 0.0)
    return tirx.max(x, zero) + tirx.log(one + tirx.exp(tirx.min(x, zero - x)))


def _elu(x: Any, alpha: Any) -> Any:
    zero = _like(x, 0.0)
    return tirx.max(x, zero) + alpha * (tirx.exp(tirx.min(x, zero)) - _like(x, 1.0))


ACTIVATIONS: dict[str, _Function] = {
    "affine": _Function(lambda x, alpha, beta: x * alpha + beta, (1.0, 0.0)),
    "elu": _Function(lambda x, alpha, _: _elu(x, alpha), (1.0,)),
    "hardsigmoid": _Function(lambda x, alpha, beta: _clipped(x * alpha + beta, 0.0, 1.0), (0.2, 0.5)),
    "leakyrelu": _Function(lambda x, alpha, _: tirx.Select(x >= _like(x, 0.0), x, x * alpha), (0.01,)),
    "relu": _Function(lambda x, _alpha, _beta: tirx.max(x, _like(x, 0.0))),
    "scaledtanh": _Function(lambda x, alpha, beta: tanh(x * beta) * alpha, (None, None)),
    "sigmoid": _Function(lambda x, _alpha, _beta: sigmoid(x)),
    "softplus": _Function(lambda x, _alpha, _beta: _softplus(x)),
    "softsign": _Function(lambda x, _alpha, _beta: x / (_like(x, 1.0) + tirx.abs(x))),
    "tanh": _Function(lambda x, _alpha, _beta: tanh(x)),
    "thresholdedrelu": _Function(lambda x, alpha, _: tirx.Select(x > alpha, x, _like(x, 0.0)), (1.0,)),
}
"""by the name in lower case, with ONNX's default parameters"""


Array = npt.NDArray[Any]

LSTM, GRU, RNN = "LSTM", "GRU", "RNN"
MASKED, MASK = "fractune", 8
"""The domain of ONNX's recurrent operators with one more input, and its place: the mask (steps, batch), bool. Where it
is false, a row keeps its states, and its output is the state."""
_GATES = {LSTM: 4, GRU: 3, RNN: 1}
LARGEST_WEIGHT = {"int8": 128, "int16": 255}
"""of whole weights, by type; 16 bits hold 8-bit weights less a zero point of 8 bits"""


@dataclass(frozen=True)
class Recurrence:
    """What a kernel of a recurrent operator computes; the words and the order of gates are ONNX's."""

    cell: str
    """LSTM, GRU or RNN"""
    steps: int
    batch: int
    units: int
    """the hidden size"""
    backwards: tuple[bool, ...]
    """by direction, whether it begins with the last step"""
    activations: tuple[tuple[Activation, ...], ...]
    """by direction: f, g, h of an LSTM; f, g of a GRU; f of an RNN"""
    dtype: str = "float32"
    clip: float = 0.0
    """bound of what the activations read; 0 = none"""
    couples_forget: bool = False
    """of an LSTM: the forget gate is 1 - the input gate"""
    resets_product: bool = False
    """of a GRU: the reset gate scales the product of the state with its weights, and not the state"""
    has_lengths: bool = False
    has_mask: bool = False
    """whether each step has a mask over the rows: a row whose mask is 0 keeps its states"""
    has_peepholes: bool = False
    batch_first: bool = False
    """whether the batch is the outermost axis of inputs, outputs and states"""
    whole_weights: str = ""
    """Type of recurrent weights that are whole numbers; empty = `dtype`. With such weights each step quantizes the
    state to 8 bits by the range of its numbers, as DynamicQuantizeLinear does, and the products are exact."""

    @property
    def directions(self) -> int:
        return len(self.backwards)

    @property
    def gates(self) -> int:
        return _GATES[self.cell]

    @property
    def phases(self) -> tuple[tuple[int, ...], ...]:
        """The gates whose products with the state are computed together; a later phase reads what an earlier one
        makes.
        """
        if self.cell == GRU and not self.resets_product:
            return (0, 1), (2,)
        return (tuple(range(self.gates)),)

    @property
    def has_cell_state(self) -> bool:
        return self.cell == LSTM

    @property
    def projected(self) -> tuple[int, ...]:
        """The shape of the inputs' products with their weights, biases added."""
        return *self.outer(self.steps, self.batch), self.directions, self.gates, self.units

    @property
    def states(self) -> tuple[int, ...]:
        """The shape of the states before the first and after the last step."""
        return self.ordered(self.directions, self.batch, self.units)

    @property
    def outputs(self) -> tuple[int, ...]:
        """The shape of the states after all steps."""
        if self.batch_first:
            return self.batch, self.steps, self.directions, self.units
        return self.steps, self.directions, self.batch, self.units

    def outer(self, step: Any, row: Any) -> tuple[Any, ...]:
        """The outer axes of the inputs: an index, or the shape."""
        return (row, step) if self.batch_first else (step, row)

    def ordered(self, direction: Any, row: Any, unit: Any) -> tuple[Any, ...]:
        """Of a state: an index, or the shape."""
        return (row, direction, unit) if self.batch_first else (direction, row, unit)

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        known = json.loads(text)
        activations = tuple(tuple(Activation(**each) for each in own) for own in known.pop("activations"))
        return cls(**{**known, "backwards": tuple(known["backwards"]), "activations": activations})


def split(weights: Array, recurrence: Recurrence) -> list[Array]:
    """The weights of each phase as the plain kernel reads them: (D, H, G*H), by the unit of the state that is read.
    ONNX's recurrent weights are (D, G*H, H), gates one after the other.
    """
    directions, _, units = weights.shape
    by_gate = weights.reshape(directions, recurrence.gates, units, units)
    return [
        np.ascontiguousarray(by_gate[:, list(gates)].reshape(directions, -1, units).transpose(0, 2, 1))
        for gates in recurrence.phases
    ]
