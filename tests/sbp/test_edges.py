"""Edges between states: the definition of a legal step."""

import numpy as np
import pytest

from autoddl.sbp.collectives import COLLECTIVES, legal_steps
from autoddl.sbp.edges import distinct_pairs, edges_between, mask_axes, row_numbers
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.placement import NdSbp
from autoddl.sbp.states import core_codes


def legal(sources, targets, ndim):
    states, ends = ([NdSbp.from_codes(row) for row in codes] for codes in (sources, targets))
    found = {
        (states[src], COLLECTIVES.entries[kind].name, mask_axes(mask), ends[dst])
        for src, dst, kind, mask in edges_between(sources, targets, ndim).T.tolist()
    }
    expected = {
        (nd, step.kind, step.axes, step.apply(nd))
        for nd in states
        for step in legal_steps(nd, ndim)
        if step.apply(nd) in set(ends)
    }
    return found, expected


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


@pytest.mark.parametrize("length", [0, 1, 6, 50])
def test_numbers_of_rows_are_in_the_order_of_the_rows(length):
    rng = np.random.default_rng(length)
    rows = rng.integers(-2, 4, (200, length)).astype(np.int8)
    rows = rows[rng.integers(0, 200, 400)]
    _, number = np.unique(row_numbers(rows), return_inverse=True)
    expected = np.unique(rows, axis=0, return_inverse=True)[1].ravel()
    assert (number == expected).all()


def test_distinct_pairs_of_rows():
    rng = np.random.default_rng(0)
    first, second = rng.integers(-2, 2, (2, 300, 2)).astype(np.int8)
    rows, which = distinct_pairs(first, second)
    pairs = np.hstack([first, second])
    expected, numbers = np.unique(pairs, axis=0, return_inverse=True)
    assert (pairs[rows] == expected).all()
    assert (which == numbers.ravel()).all()
