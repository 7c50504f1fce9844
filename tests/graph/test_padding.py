"""Where padding has to be kept out of sums over rows, and where it cannot be."""

from dataclasses import replace

import pytest

from autoddl.graph.padding import Summed, find_padding
from autoddl.graph.rows import State
from autoddl.sbp.placement import S
from tests.graph.test_rows import Loss, decayed, weighted


def test_each_sum_over_rows_and_each_factor_is_found():
    found = find_padding(weighted(Loss()))
    assert found.power == 0 and found.known == {"below": 0} and not found.sizes
    assert len(found.summed) == 2, "the numerator and the denominator"
    assert set(found.summed.values()) == {Summed(State(S(0)), 0.0)}
    mixed = find_padding(decayed(Loss()))
    assert mixed.power == 1 and mixed.sizes == {("terms", 0): 1, ("terms", 2): 1}


def test_a_graph_without_a_batch_dim_is_refused():
    graph = weighted(Loss())
    with pytest.raises(ValueError, match="no batch dim.*drop_last=True"):
        find_padding(replace(graph, batch=0))
