"""The parts of the suite, in the order in which they run: the most telling first, and each of use alone.

None takes more than 500 s with its start and its end: a host that is lent may give a command 600.
"""

from __future__ import annotations

from benchmarks.gpu import against_stock, checks, faults, look, matrix, noise, one_operator, shares
from benchmarks.gpu.part import Part
from benchmarks.gpu.table import part as first_table

PARTS = (
    Part("look", "facts of this machine, and a transcript of its MPS daemon", 240.0, look.run),
    Part("shares", "which shares can be had, and do they hold what they promise?", 180.0, shares.run),
    Part("operator", "is one operator tuned at three shares, with the right output?", 450.0, one_operator.run),
    Part("noise", "the reliability of a measurement beside others", 450.0, noise.run),
    Part("matrix", "the loss of a schedule at a share that it was not tuned at", 450.0, matrix.run),
    Part("vs_stock", "how fast, and how good, against stock TVM on the same GPU?", 450.0, against_stock.run),
    Part("faults", "is every candidate accounted for when some crash, hang or corrupt memory?", 420.0, faults.run),
    Part("tests", "do the tests that need a GPU pass?", 450.0, checks.run),
)

NAMED = (Part(first_table.NAME, "how fast are single operators beside NVIDIA's libraries?", 450.0, first_table.run),)
"""parts that run only when they are named: they take several slices"""
