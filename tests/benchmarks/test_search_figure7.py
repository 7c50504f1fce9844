"""The smallest case of Fig. 7, as the benchmark measures it."""

import pytest


@pytest.mark.full
def test_descent_and_auto_find_what_exhaustive_search_proves():
    pytest.importorskip("oneflow", reason="traces a model")
    from benchmarks.search_figure7 import CASES, measure

    (gpt,) = (case for case in CASES if case.name == "GPT")
    found = measure(gpt, [0])["algorithms"]
    assert found["auto"]["gap"] < 1e-6
    assert found["coordinate_descent"]["cost_over_optimum"][0] <= 1.01
    assert min(found["random"]["cost_over_optimum"]) >= 1
