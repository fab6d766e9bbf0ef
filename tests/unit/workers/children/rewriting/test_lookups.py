"""Lookups instead of products with one-hot matrices: the same numbers, and only where it is one."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from fractune_workers.children.rewriting.indexing import looked_up
from tests.unit.workers.children.layouts.networks import Network, calls, inputs_of, network, outputs

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})
ROWS, COLUMNS, INDICES = 6, 5, 40
op = relax.op


def whole_numbers(net: Network, x: Any) -> Any:
    """Some below 0, some above the last row."""
    return net.emit(op.astype(net.emit(op.multiply(x, relax.const(4.0))), "int32"))


def one_hot(net: Network, index: Any, places: Any = None) -> Any:
    places = np.arange(ROWS, dtype="int32") if places is None else places
    return net.emit(op.astype(net.emit(op.equal(index, relax.const(places))), "float32"))


def product(net: Network, x: Any) -> Any:
    return net.emit(op.matmul(one_hot(net, whole_numbers(net, x)), net.weight(ROWS, COLUMNS)))


def check(body: Callable[..., Any], count: int = INDICES) -> list[str]:
    mod = network([(1, count, 1)], body)
    given = [values * 1.5 for values in inputs_of(mod)]
    looked = looked_up(mod)
    expected = outputs(mod, TARGET, given)
    assert np.ptp(expected) > 0
    found = outputs(looked, TARGET, given)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    return calls(looked)[2:]  # after the two that make whole numbers


def test_a_product_with_a_one_hot_matrix_is_a_lookup() -> None:
    assert check(product) == ["lookup"]


def test_the_numbers_of_the_rows_may_be_compared_from_either_side() -> None:
    def body(net: Network, x: Any) -> Any:
        rows = relax.const(np.arange(ROWS, dtype="int32").reshape(1, 1, ROWS))
        matrix = net.emit(op.astype(net.emit(op.equal(rows, whole_numbers(net, x))), "float32"))
        return net.emit(op.matmul(matrix, net.weight(ROWS, COLUMNS)))

    assert check(body) == ["lookup"]


def gelu(net: Network, value: Any) -> Any:
    value = net.emit(op.add(value, net.weight(1, COLUMNS)))
    cube = net.emit(op.multiply(value, net.emit(op.multiply(value, value))))
    inner = net.emit(op.add(value, net.emit(op.multiply(relax.const(0.0447), cube))))
    factor = net.emit(op.add(relax.const(1.0), net.emit(op.tanh(inner))))
    return net.emit(op.multiply(value, factor))


def test_what_is_computed_of_rows_is_computed_of_the_table() -> None:
    assert check(lambda net, x: gelu(net, product(net, x))) == ["lookup"]


def test_a_table_of_more_rows_than_are_looked_up_stays_as_it_is() -> None:
    names = check(lambda net, x: gelu(net, product(net, x)), count=ROWS)
    assert names[0] == "lookup"
    assert "relax.tanh" in names


def test_rows_and_other_values_are_computed_as_ever() -> None:
    """Numbers that differ from row to row, and rows that another index finds."""

    def body(net: Network, x: Any) -> Any:
        value = net.emit(op.add(product(net, x), net.weight(INDICES, 1)))
        other = product(net, net.emit(op.negative(x)))
        return net.emit(op.subtract(value, net.emit(op.multiply(product(net, x), other))))

    names = check(body)
    assert [name for name in names if name != "lookup"][0:1] == ["relax.add"]
    assert {"relax.subtract", "relax.multiply"} <= set(names)


def test_a_result_of_more_axes_is_computed_as_ever() -> None:
    names = check(lambda net, x: net.emit(op.add(product(net, x), net.weight(1, 1, 1, COLUMNS))))
    assert names == ["lookup", "relax.add"]


def of_other_numbers(net: Network, x: Any) -> Any:
    places = np.array([0, 1, 2, 4, 3, 5], "int32")
    return net.emit(op.matmul(one_hot(net, whole_numbers(net, x), places), net.weight(ROWS, COLUMNS)))


def of_fractions(net: Network, x: Any) -> Any:
    rounded = net.emit(op.multiply(net.emit(op.round(x)), relax.const(0.5)))
    matrix = one_hot(net, rounded, np.arange(ROWS, dtype="float32"))
    return net.emit(op.matmul(matrix, net.weight(ROWS, COLUMNS)))


def of_several_ones(net: Network, x: Any) -> Any:
    matrix = net.emit(
        op.astype(net.emit(op.less(whole_numbers(net, x), relax.const(np.arange(ROWS, dtype="int32")))), "float32")
    )
    return net.emit(op.matmul(matrix, net.weight(ROWS, COLUMNS)))


@pytest.mark.parametrize("body", [of_other_numbers, of_fractions, of_several_ones])
def test_other_products_stay(body: Callable[..., Any]) -> None:
    assert "relax.matmul" in check(body)
