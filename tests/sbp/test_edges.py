"""Edges between states: the definition of a legal step, found in either way."""

import numpy as np
import pytest

from autoddl.sbp import edges
from autoddl.sbp.edges import edges_between, mask_axes
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.placement import NdSbp
from autoddl.sbp.states import core_codes
from autoddl.sbp.steps import STEP_KINDS, legal_steps


@pytest.mark.parametrize("pairs_per_look", [0, 10**9])
@pytest.mark.parametrize(("mesh", "ndim"), [(Mesh(4, 2), 2), (Mesh(12, 1), 1)])
def test_edges_are_the_legal_steps(monkeypatch, mesh, ndim, pairs_per_look):
    monkeypatch.setattr(edges, "_PAIRS_PER_LOOK", pairs_per_look)
    codes = core_codes(mesh, ndim)
    states = [NdSbp.from_codes(row) for row in codes]
    found = {
        (states[src], STEP_KINDS[kind], mask_axes(mask), states[dst])
        for src, dst, kind, mask in edges_between(codes, codes, ndim).T.tolist()
    }
    expected = {
        (nd, step.kind, step.axes, step.apply(nd))
        for nd in states
        for step in legal_steps(nd, ndim)
    }
    assert found == expected


def test_both_ways_find_the_same_edges_of_some_states(monkeypatch):
    mesh, ndim = Mesh(32, 4), 3
    every = core_codes(mesh, ndim)
    some, others = every[::60], every[::2]
    found = []
    for pairs_per_look in (0, 10**9):
        monkeypatch.setattr(edges, "_PAIRS_PER_LOOK", pairs_per_look)
        found.append([edges_between(some, others, ndim), edges_between(others, some, ndim)])
    for by_masks, by_pairs in zip(*found, strict=True):
        assert by_masks.shape[1] > 40
        assert (by_masks == by_pairs).all()


def test_no_states_have_no_edges():
    none = np.empty((0, 3), dtype=np.int8)
    assert edges_between(none, core_codes(Mesh(8, 1), 2), 2).shape == (4, 0)
