"""Pages fit into one message of gRPC."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fractune_core.pb import fractune_pb2 as pb
from fractune_server.services.paging import PAGE_BYTES, first_page


def rows(sizes: Sequence[int]) -> list[tuple[int, pb.Workload]]:
    return [(place, pb.Workload(json="x" * size)) for place, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "size", "kept", "end"),
    [
        ([], 3, 0, None),
        ([1, 1, 1], 3, 3, None),
        ([1, 1, 1, 1], 3, 3, 2),
        ([PAGE_BYTES // 4] * 9, 8, 3, 2),
        ([2 * PAGE_BYTES, 1], 8, 1, 0),
    ],
)
def test_a_page_ends_before_it_is_too_large_and_has_a_row_at_least(
    sizes: list[int], size: int, kept: int, end: int | None
) -> None:
    found = rows(sizes)
    page, last = first_page(found, size)
    assert (page, last) == ([item for _, item in found[:kept]], end)
