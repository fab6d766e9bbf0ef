"""What all results of the Python API have in common."""

from __future__ import annotations

from tests.support.client_results import results

RESULTS = results()


def test_a_result_is_one_short_line_at_the_prompt() -> None:
    for result in RESULTS.values():
        line = repr(result)
        assert "\n" not in line
        assert len(line) < 250
        assert line.startswith(f"{type(result).__name__}(")


def test_a_tuning_names_its_model_its_times_and_its_bundle() -> None:
    line = repr(RESULTS["tune"])
    for expected in ("light_squeezenet", "cpu:1 4.31 ms (2.88x)", "cpu:8 4.31 ms", "light_squeezenet.fractune)"):
        assert expected in line
