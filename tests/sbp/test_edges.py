"""Edges between states: the definition of a legal step."""

import numpy as np
import pytest

from autoddl.sbp.edges import edges_between, mask_axes
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.placement import NdSbp
from autoddl.sbp.states import core_codes
from autoddl.sbp.steps import STEP_KINDS, legal_steps


def legal(sources, targets, ndim):
    states, ends = ([NdSbp.from_codes(row) for row in codes] for codes in (sources, targets))
    found = {
        (states[src], STEP_KINDS[kind], mask_axes(mask), ends[dst])
        for src, dst, kind, mask in edges_between(sources, targets, ndim).T.tolist()
    }
    expected = {
        (nd, step.kind, step.axes, step.apply(nd))
        for nd in states
        for step in legal_steps(nd, ndim)
        if step.apply(nd) in set(ends)
    }
    return found, expected


@pytest.mark.parametrize(
    ("mesh", "ndim"), [(Mesh(4, 2), 2), (Mesh(12, 1), 1), (Mesh(1, 1), 2), (Mesh(4, 1), 0)]
)
def test_edges_are_the_legal_steps(mesh, ndim):
    codes = core_codes(mesh, ndim)
    found, expected = legal(codes, codes, ndim)
    assert found == expected


def test_edges_between_some_states_are_the_legal_steps():
    every = core_codes(Mesh(8, 4), 3)
    some, others = every[::60], every[::2]
    for sources, targets in ((some, others), (others[::8], some)):
        found, expected = legal(sources, targets, 3)
        assert found == expected
        assert len(found) > 10


def test_no_states_have_no_edges():
    none = np.empty((0, 3), dtype=np.int8)
    assert edges_between(none, core_codes(Mesh(8, 1), 2), 2).shape == (4, 0)
