import dataclasses
import itertools
import math

import numpy as np
import pytest

from autoddl.cost.model import CostModel
from autoddl.planner.tables import strategies as space
from autoddl.planner.tables.group_table import Space
from autoddl.planner.tables.strategies import (
    Even,
    Restriction,
    assignments,
    block_sequences,
    count_block_sequences,
    num_sequences,
    runs,
)
from autoddl.planner.tables.tables import build_tables
from autoddl.sbp.mesh import Mesh
from autoddl.search.budget import Budget
from autoddl.search.elimination import eliminate
from autoddl.search.heuristics.exhaustive import exhaustive
from tests.clusters import cluster
from tests.graphs import mlp, residual

NOTHING: frozenset[int] = frozenset()


def anything(assign):
    return np.ones(len(assign), dtype=bool)


def test_runs_are_of_equal_extent_and_link():
    assert runs(Mesh(12, 4)) == (2, 1, 2)
    assert runs(Mesh(256, 1)) == (8,)
    assert runs(Mesh(1, 1)) == ()


def blocks(row):
    return [symbol for symbol, _ in itertools.groupby(row)]


@pytest.mark.parametrize("length", [1, 3, 5])
@pytest.mark.parametrize("restriction", [Restriction(3, 3, True), Restriction(2, 4, False)])
def test_block_sequences_are_all_that_the_restriction_allows(length, restriction):
    leading = frozenset({0})
    found = set(map(tuple, block_sequences((0, 1, 2), leading, length, restriction)))
    expected = set()
    for row in itertools.product(range(3), repeat=length):
        order = blocks(row)
        late = restriction.leading_first and 0 in order[1:]
        if (
            len(order) <= restriction.blocks
            and len(set(order)) <= restriction.distinct
            and not late
        ):
            expected.add(row)
    assert found == expected
    assert len(found) == num_sequences(3, 1, length, restriction)
    assert len(found) <= count_block_sequences(3, length, restriction)


@pytest.mark.parametrize("length", [1, 4, 6])
def test_sequences_are_counted_without_being_made(length):
    for restriction, symbols, leading in itertools.product(
        (Restriction(9, 9, False), Restriction(4, 4, True), Restriction(2, 3, True)),
        ((), (0,), (0, 1), (0, 1, 2, 3)),
        (frozenset(), frozenset({1, 3})),
    ):
        made = block_sequences(symbols, leading, length, restriction)
        given = len(symbols), len(leading.intersection(symbols)), length, restriction
        assert len(made) == num_sequences(*given)


def test_a_small_mesh_has_every_feasible_assignment():
    def even(assign):
        return (assign == 1).sum(axis=1) <= 1

    found = assignments(3, NOTHING, NOTHING, Mesh(2, 4), even)
    expected = [r for r in itertools.product(range(3), repeat=3) if r.count(1) <= 1]
    assert found.tolist() == [list(row) for row in expected]


def test_a_large_mesh_keeps_within_the_cap_and_has_the_simple_ones():
    found = assignments(5, frozenset({0}), frozenset({4}), Mesh(256, 1), anything, cap=450)
    rows = set(map(tuple, found.tolist()))
    assert 0 < len(rows) <= 450
    for symbol in range(4):
        assert (symbol,) * 8 in rows
    assert (0, 0, 1, 1, 1, 2, 2, 2) in rows


@pytest.mark.parametrize("is_heavy", [False, True])
@pytest.mark.parametrize("mesh", [Mesh(2, 8), Mesh(64, 4), Mesh(128, 8)])
def test_copies_are_in_every_space(mesh, is_heavy):
    """Of an image's light operators, four of whose signatures split a dim, and of heavy ones."""
    copies = frozenset({4, 5})
    asked = 6, frozenset({0}), copies if is_heavy else NOTHING, mesh, anything
    found = assignments(*asked, cap=450, copies=copies)
    rows = set(map(tuple, found.tolist()))
    axes, inside = mesh.num_axes, runs(mesh)[-1]
    assert (5,) * axes in rows and (0,) * axes in rows
    assert (0,) * (axes - inside) + (5,) * inside in rows, "a batch over hosts"
    assert (5,) * (axes - inside) + (0,) * inside in rows, "the same on every host"


def test_no_axes_leave_one_empty_assignment():
    assert assignments(3, NOTHING, NOTHING, Mesh(1, 1), anything).shape == (1, 0)


@pytest.mark.parametrize(("symbols", "axes"), [(7, 5), (1, 3), (40, 16)])  # the last is past 2^63
def test_distinct_rows_are_those_of_numpy(symbols, axes):
    rng = np.random.default_rng(0)
    rows = rng.integers(0, symbols, (60, axes)).astype(np.int16)
    rows = rows[rng.integers(0, len(rows), 200)]
    found = space._distinct(rows)
    assert found.dtype == rows.dtype
    np.testing.assert_array_equal(found, np.unique(rows, axis=0))


def test_nothing_feasible_leaves_nothing():
    def never(assign):
        return np.zeros(len(assign), dtype=bool)

    assert len(assignments(3, NOTHING, NOTHING, Mesh(2, 2), never)) == 0


def test_two_runs_too_long_for_blocks_of_their_own_share_blocks():
    """Ten axes of two links: three blocks over all of them, in every cut."""
    found = assignments(6, frozenset({0}), frozenset({4, 5}), Mesh(128, 8), anything, cap=600)
    rows = set(map(tuple, found.tolist()))
    assert len(rows) <= 600
    assert (1,) * 4 + (2,) * 4 + (1,) * 2 in rows and (0,) * 9 + (2,) in rows
    for a, b in itertools.product(range(4), repeat=2):
        assert (a,) * 7 + (b,) * 3 in rows, "no poorer than one signature a run"


@pytest.mark.parametrize("mesh", [Mesh(12, 2), Mesh(64, 4), Mesh(256, 1)])
@pytest.mark.parametrize("cap", [450, 20])
def test_what_divides_evenly_gives_the_same_as_any_mask(mesh, cap):
    """Counting what divides spares writing it down; groups that divide alike share the result."""
    rng = np.random.default_rng(0)
    for _ in range(5):
        count = int(rng.integers(2, 8))
        splits = [(rng.random(count) < 0.4, size) for size in (8, 96, 1000)]
        even = Even.of(mesh, splits)
        asked = count, frozenset({0}), frozenset({count - 1}), mesh
        found = assignments(*asked, even, cap)
        assert (found == assignments(*asked, lambda rows, even=even: even(rows), cap)).all()
        assert found is assignments(*asked, Even.of(mesh, splits), cap)
        for row in found:
            for which, size in splits:
                assert size % np.where(which[row], mesh.extents, 1).prod() == 0


@pytest.mark.parametrize("graph", [mlp(64, (16, 64, 16)), residual(1, 64, 32)], ids=["mlp", "sum"])
@pytest.mark.parametrize("share", [math.inf, 1.05])
def test_equal_axes_are_interchangeable(graph, share):
    """Each signature on neighbouring axes, in any order: as good as every assignment."""
    model = CostModel(cluster("piz_daint", 8, 1))
    tables = build_tables(graph.with_forks(), model, 1, Space(cap=10**6))
    assert tables is not None
    problem = tables.problem
    if share < math.inf:  # what the least memory of all choices leaves over binds
        least = eliminate(memory_only(problem), 0.0, frozenset()).constant
        problem = dataclasses.replace(problem, memory_limit=share * least)
    blocked = [
        np.array([n for n, row in enumerate(table.assign) if is_blocks(row)])
        for table in tables.groups
    ]
    assert sum(map(len, blocked)) < sum(map(len, problem.node_cost))
    rng = np.random.default_rng(0)
    every = exhaustive(problem, rng, Budget())
    simple = exhaustive(problem.restricted(blocked), rng, Budget())
    assert every is not None and simple is not None
    assert simple.cost == pytest.approx(every.cost, rel=1e-9)


def is_blocks(row):
    return len(blocks(row)) == len(set(row.tolist()))


def memory_only(problem):
    return dataclasses.replace(
        problem,
        node_cost=problem.node_memory,
        edge_cost=problem.edge_memory,
        memory_limit=math.inf,
    )
