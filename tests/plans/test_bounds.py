import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoddl import explain
from autoddl.planner.baselines import data_parallel, forced
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.planner.tables.group_table import WHOLE_SPACE
from autoddl.plans.accesses import Accesses, Multiply, least_accesses, memory_dependent_words
from autoddl.plans.bounds import product_bytes
from tests.clusters import cluster
from tests.graphs import attention, mlp, residual, tied


def one_product(m, n, k, devices):
    """The least accesses of one product whose matrices are all counted."""
    accesses = [Accesses(size / devices, size, 1.0) for size in (m * k, k * n, m * n)]
    return least_accesses(accesses, [Multiply((0, 1, 2), m * n * k / devices)])


def test_the_memory_dependent_bound_is_the_formula():
    m, devices, memory = 4096, 64, 1e5
    expected = m**3 / devices / (2 * math.sqrt(2) * math.sqrt(memory)) - memory
    assert expected > 0
    assert memory_dependent_words(m**3, devices, memory) == pytest.approx(expected)
    assert memory_dependent_words(m**3, devices, 1e9) == 0
    assert memory_dependent_words(m**3, devices, math.inf) == 0
    with pytest.raises(ValueError, match="memory"):
        memory_dependent_words(m**3, devices, 0)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        # Each case of the tight bound for m >= n >= k: one, two or three dims are divided.
        ((4096, 16, 16), 4096 * 16 / 8 * 2 + 16 * 16),
        ((512, 512, 16), 512 * 512 / 8 + 2 * math.sqrt(512 * 16 * 512 * 16 / 8)),
        ((64, 64, 64), 3 * (64**3 / 8) ** (2 / 3)),
    ],
)
def test_the_memory_independent_bound_of_one_product(shape: tuple[int, int, int], expected):
    assert one_product(*shape, 8) == pytest.approx(expected, rel=1e-6)


@settings(max_examples=25)
@given(
    sizes=st.tuples(*[st.sampled_from([4, 8, 32, 128])] * 3),
    devices=st.sampled_from([2, 4, 8]),
    shared=st.booleans(),
)
def test_no_grid_of_devices_touches_less(sizes, devices, shared):
    """Against every division of the three dims over the devices; `shared`: forward and backward."""
    m, n, k = sizes
    work = m * n * k / devices
    accesses = [Accesses(s / devices, s, 1.0) for s in (m * k, k * n, m * n)]
    products = [Multiply((0, 1, 2), work)]
    if shared:
        accesses += accesses
        products += [Multiply((5, 1, 3), work), Multiply((5, 0, 4), work)]
    bound = least_accesses(accesses, products)
    for a in range(1, devices + 1):
        for b in range(1, devices // a + 1):
            if devices % a or devices // a % b:
                continue
            c = devices // a // b
            touched = m * k / a / c + k * n / c / b + m * n / a / b
            assert bound <= touched * (2 if shared else 1) * (1 + 1e-9)
    assert bound >= sum(a.least for a in accesses)


def test_a_matrix_that_costs_nothing_is_touched_whole():
    accesses = [Accesses(8, 64, 0.0), Accesses(8, 64, 1.0), Accesses(8, 64, 1.0)]
    assert least_accesses(accesses, [Multiply((0, 1, 2), 64)]) == pytest.approx(16)


WIDTH = st.sampled_from([16, 64, 256])
GRAPHS = st.one_of(
    st.builds(
        lambda batch, a, b, c: mlp(batch, (a, b, c, a)),
        st.sampled_from([8, 64, 256]), WIDTH, WIDTH, WIDTH,
    ),
    st.builds(lambda n, w: residual(2, n, w), st.sampled_from([16, 128]), WIDTH),
    st.builds(tied, st.sampled_from([16, 128]), WIDTH),
    st.builds(lambda n, w: attention(2, n, 8, w, 8), st.sampled_from([4, 16]), WIDTH),
)  # fmt: skip
MESHES = st.sampled_from([(2, 1), (2, 2), (1, 4), (4, 2), (3, 2)])


@settings(max_examples=10)
@given(
    graph=GRAPHS,
    shape=MESHES,
    how=st.sampled_from(["forced", "forced", "data", "auto", "random"]),
    letters=st.lists(st.sampled_from(["S0", "B", "S1"]), min_size=3, max_size=3),
    seed=st.integers(0, 99),
)
def test_no_plan_moves_less_than_the_bound(graph, shape, how, letters, seed):
    where = cluster("piz_daint", *shape)
    space = WHOLE_SPACE
    try:
        if how == "forced":
            space = forced(graph, where.mesh, letters[: where.mesh.num_axes])
        elif how == "data":
            space = data_parallel(graph)
        search = "random" if how == "random" else "auto"
        plan = find_plan(
            graph,
            where,
            PlanOptions(search=search, restarts=1, seed=seed, baselines=False),
            space=space,
        )
    except ValueError:
        return  # the batch does not divide
    moved = product_bytes(plan.stage)
    assert moved.least <= moved.moved * (1 + 1e-9)
    assert 0 <= moved.divided <= moved.products


def test_data_parallel_layers_move_their_weights_gradients():
    """Many rows, small weights: nothing beats the all-reduce of the second layer's gradient.

    The first layer could do without: its input is on all devices, which may each take some columns.
    """
    graph, weight = mlp(4096, (32, 32, 32)), 32 * 32 * 4
    plan = find_plan(graph, cluster("piz_daint", 4, 1), space=data_parallel(graph))
    moved = product_bytes(plan.stage)
    assert moved.divided == moved.products == 2
    assert moved.least == pytest.approx(2 * 3 / 4 * weight, rel=1e-6)
    assert 2 * moved.least <= moved.moved * (1 + 1e-9)


def test_a_sum_that_nothing_needs_whole_counts_for_nothing():
    """x w w, summed up: rows of w on each device, and only the scalar is ever reduced."""
    graph = tied(4096, 32)
    plan = find_plan(graph, cluster("piz_daint", 4, 1), space=data_parallel(graph))
    assert product_bytes(plan.stage).divided == 2
    assert product_bytes(plan.stage).least == 0


def test_products_that_everyone_computes_prove_nothing():
    plan = find_plan(mlp(8, (16, 16, 16)), cluster("piz_daint", 2, 1))
    bytes_ = product_bytes(plan.stage)
    assert bytes_.divided == 0 and bytes_.least == 0 and bytes_.ratio is None
    assert "times the least" not in explain(plan)


def test_no_bound_is_made_of_rounding():
    """The products of this plan could be had where they are used: the least is nothing."""
    graph = mlp(1024, (4096, 1000))
    plan = find_plan(graph, cluster("gcp_a100", 2, 8), PlanOptions(baselines=False))
    bytes_ = product_bytes(plan.stage)
    assert bytes_.divided == 1 and bytes_.moved > 0
    assert bytes_.least == 0 and bytes_.ratio is None
    assert "any algorithm" not in explain(plan)
