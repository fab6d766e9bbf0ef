"""The nodes that stand for one node: how a decomposition writes them down.

Decompositions are made of ONNX's own operators, before anything is folded. So every tensor in them is sized before it
is computed, as in any other model.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from fractune_core.errors import BadModel
from fractune_workers.children.importing.onnx_graph import name_of_part, refusal

_COUNTER = itertools.count()
FLOAT = onnx.TensorProto.FLOAT


class Decomposition:
    """One node, what is known of its inputs, and the nodes that take its place."""

    def __init__(self, node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto | None], opset: int) -> None:
        self.node = node
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self._types = types
        self._attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        self._prefix = f"{node.op_type}.{next(_COUNTER)}"

    def attribute(self, name: str, default: Any = None) -> Any:
        return self._attributes.get(name, default)

    def attributes(self, *left_out: str) -> dict[str, Any]:
        """The node's attributes but these."""
        return {name: value for name, value in self._attributes.items() if name not in left_out}

    def optional(self, index: int) -> str:
        """The name of an input; empty where the node leaves it out."""
        return str(self.node.input[index]) if index < len(self.node.input) else ""

    def input(self, index: int) -> str:
        """The name of an input. Raises BadModel where the node leaves it out."""
        name = self.optional(index)
        if not name:
            raise self.refused(f"it has no input {index}; export the model again")
        return name

    def output(self, index: int) -> str:
        """The name of an output; empty where nothing reads it."""
        return str(self.node.output[index]) if index < len(self.node.output) else ""

    def element_type(self, index: int) -> int:
        """ONNX's number of the type of an input's elements."""
        return int(self._type(index).elem_type)

    def shape(self, index: int) -> list[int]:
        dims = self._type(index).shape.dim
        if not self._type(index).HasField("shape") or not all(dim.HasField("dim_value") for dim in dims):
            raise self.refused(f"the shape of its input '{self.input(index)}' is not known before it is computed")
        return [dim.dim_value for dim in dims]

    def rank(self, index: int) -> int:
        return len(self.shape(index))

    def _type(self, index: int) -> onnx.TypeProto.Tensor:
        known = self._types.get(self.input(index))
        if known is None or not known.HasField("tensor_type"):
            raise self.refused(f"the type of its input '{self.input(index)}' is not known before it is computed")
        return known.tensor_type

    def add(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add a node with one output, and return the output's name."""
        name = output or f"{self._prefix}.{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name_of_part(self.node), **attributes))
        return name

    def again(self, inputs: Sequence[str], **attributes: Any) -> None:
        """Add a node of the same operator, with the same outputs."""
        names = name_of_part(self.node)
        self.nodes.append(
            helper.make_node(self.node.op_type, list(inputs), list(self.node.output), names, **attributes)
        )

    def add_several(self, operator: str, inputs: Sequence[str], outputs: int) -> list[str]:
        """Add a node with several outputs, and return their names."""
        names = [f"{self._prefix}.{len(self.nodes)}.{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(operator, list(inputs), names, name_of_part(self.node)))
        return names

    def constant(self, values: npt.ArrayLike, element_type: int | None = None) -> str:
        """Add a small constant. The type is float32 or int64, or that of ONNX's number `element_type`."""
        array = np.asarray(values)
        if element_type is None:
            array = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
        else:
            array = array.astype(helper.tensor_dtype_to_np_dtype(element_type))
        return self.add("Constant", value=numpy_helper.from_array(array))

    def reshape(self, name: str, shape: Sequence[int], output: str = "") -> str:
        return self.add("Reshape", name, self.constant(np.array(shape, np.int64)), output=output)

    def as_float(self, name: str) -> str:
        return self.add("Cast", name, to=FLOAT)

    def sum(self, *names: str, output: str = "") -> str:
        """The sum of those that are there; one alone is passed on."""
        present = [name for name in names if name]
        total = present[0]
        for index, name in enumerate(present[1:], 2):
            total = self.add("Add", total, name, output=output if index == len(present) else "")
        return total if len(present) > 1 else self.named(total, output)

    def named(self, name: str, output: str) -> str:
        """The value under the name of an output, or under its own where none is asked for."""
        return self.add("Identity", name, output=output) if output else name

    def refused(self, why: str) -> BadModel:
        """The error for a node that cannot be imported. `why` says what is wrong, and what to do."""
        return refusal(self.node, self.opset, why)

    def refuse_attributes(self, **allowed: Any) -> None:
        """Raises BadModel where an attribute has another value than this."""
        for name, value in allowed.items():
            given = self.attribute(name, value)
            if given != value:
                raise self.refused(f"attribute {name}={given} is not supported; export it with {name}={value}")


Decompose = Callable[[Decomposition], None]
