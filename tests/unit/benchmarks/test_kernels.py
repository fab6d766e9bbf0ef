"""The pairing of operators with another runtime's layers, and the order of kinds, in `benchmarks.kernels`."""

from __future__ import annotations

import pytest

from benchmarks.kernels import Convolution, convolution_of, kinds, layer_of


@pytest.mark.parametrize(
    ("shapes", "layer", "kind"),
    [
        (
            [(1, 4, 5, 40, 16), (32, 4, 1, 1, 16, 16), (1, 32, 1, 1, 16), (1, 32, 5, 40, 16)],
            [(1, 60, 5, 40), (512, 60, 1, 1), (1, 512, 5, 40)],
            "convolution 1x1",
        ),
        (
            [(1, 2, 9, 9, 16), (2, 3, 3, 16), (1, 2, 9, 9, 16)],
            [(1, 32, 9, 9), (32, 1, 1, 3, 3), (1, 32, 9, 9)],
            "depthwise 3x3",
        ),
    ],
)
def test_an_operator_and_a_layer_of_the_same_convolution_are_paired(
    shapes: list[tuple[int, ...]], layer: list[tuple[int, ...]], kind: str
) -> None:
    found = convolution_of(shapes)
    image, weights, output = layer
    assert found == layer_of(image, weights, output, 16)
    assert found is not None
    assert found.kind == kind


@pytest.mark.parametrize("shapes", [[(8, 8), (8, 8), (8, 8)], [(1, 2, 9, 9, 16), (1, 2, 9, 9, 16)]])
def test_other_operators_are_no_convolutions(shapes: list[tuple[int, ...]]) -> None:
    assert convolution_of(shapes) is None


def test_the_kind_with_the_most_time_above_its_roof_is_first() -> None:
    def row(kind: str, secs: float, roof_part: float | None) -> dict[str, object]:
        return {"kind": kind, "secs": secs, "roof_part": roof_part}

    found = kinds([row("near", 8.0, 0.9), row("far", 2.0, 0.25), row("far", 2.0, 0.75), row("unknown", 9.0, None)])
    assert [(each["kind"], each["operators"], each["roof_part"]) for each in found] == [
        ("far", 2, 0.5),
        ("near", 1, 0.9),
        ("unknown", 1, None),
    ]


def test_a_convolution_says_what_it_is() -> None:
    assert Convolution((5, 5), 1, 32, (4, 4)).kind == "depthwise 5x5"
