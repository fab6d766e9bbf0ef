"""The page of measured pairs."""

from __future__ import annotations

import re
from dataclasses import replace

from fractune_core.analysis.pairs import PairedModel
from fractune_core.codec.messages import to_proto
from fractune_core.pb import fractune_pb2 as pb
from tests.support.measured_pairs import measured_pair
from tests.support.processes.scripted_server import ScriptedServer
from tests.unit.client.dashboard.conftest import Pages, until


def test_pairs_are_a_matrix_of_the_newest_and_a_table_of_all(pages: Pages, server: ScriptedServer) -> None:
    assert "no pair is in the log" in pages.page("/pairs").text
    older = measured_pair(models=tuple(replace(each, slowdown=None) for each in measured_pair().models), stp=None)
    bubble = measured_pair(models=(measured_pair().models[0], PairedModel("bubble:32MiB", "cpu:1")))
    server.pairs = [to_proto(each, pb.MeasuredPair) for each in (measured_pair(), older, bubble)]
    until(lambda: len(pages.data("/pairs")["pairs"]) == 3)
    page = pages.page("/pairs").text
    rows = [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in re.findall(r"<tr>(<td.*?)</tr>", page)]
    ratio = "1.40 (1.35 .. 1.50)"
    assert rows[:2] == [["a", "-", ratio, ratio], ["b", "1.02 (1.00 .. 1.04)", "-", "-"]]
    assert len(rows) == 2 + 5
    assert "level3" in page
    assert "level1" in page
