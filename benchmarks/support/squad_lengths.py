"""Lengths of requests, drawn from the published lengths of SQuAD 1.1 (question and paragraph, in BERT's tokens).

M. M. Krell, M. Kosec, S. P. Perez, A. Fitzgibbon: Efficient Sequence Packing without Cross-contamination, 2021
(arXiv:2107.02027), published with a histogram of its 88,641 training examples. Here it is in steps of 16 tokens.
"""

import random

STEP = 16
COUNTS = (0, 0, 293, 1488, 2208, 2542, 4369, 10267, 12428, 11583, 9448, 7855, 5883, 4539, 3538, 2722)
"""examples of 1 to 16 tokens, of 17 to 32, and so on to 256; the 11 % that are longer are left out"""
LONGEST = STEP * len(COUNTS)


def draw_lengths(count: int, seed: int) -> list[int]:
    """Lengths from 1 to LONGEST, equally likely within a step."""
    rng = random.Random(seed)
    steps = rng.choices(range(len(COUNTS)), COUNTS, k=count)
    return [step * STEP + rng.randint(1, STEP) for step in steps]
