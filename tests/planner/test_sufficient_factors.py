"""Sufficient factors in the place of a weight's gradient, as placements of the product.

HAP (Zhang et al., EuroSys 2024, section 2.5.2): of Y = X W with rows split, X and dY are gathered
and every device makes the whole dW, which then needs no all-reduce. That is the signature B, B -> B
of the product between redistributions of X and dY, which every search knows.
"""

import itertools
from dataclasses import replace

import pytest

from autoddl.cost.collectives import CommModel
from autoddl.cost.operators import at_rate
from autoddl.planner.baselines.families import splits_only_batch
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.planner.tables.group_table import Space
from autoddl.plans.stage_figures import stage_figures
from autoddl.sbp.placement import B
from tests.clusters import cluster
from tests.graphs import Builder


def three_layers(batch, inputs, outputs):
    """The one in the middle has a gradient to give, and to take."""
    b = Builder(batch)
    x = b.input(0, (batch, 8))
    for n, width in enumerate((inputs, outputs, 8)):
        x = b.linear(f"fc{n}", x, width, bias=False)
    return b.graph(x, "three layers")


def space(graph, *kinds):
    """Rows are split, but in the middle may also be gathered."""
    graph = graph.with_forks()

    def allowed(group, composite, axis):
        rows = splits_only_batch(graph, group, composite)
        if not any("fc1" in op.name for op in group.ops):
            return rows
        whole = [p for s in composite.signatures for p in (*s.grad_outs, *s.grad_ins) if p != B]
        gathered = not whole and not any(s.divides_work for s in composite.signatures)
        return ("rows" in kinds and rows) or ("factors" in kinds and gathered)

    return Space(allowed=allowed)


GRID = [
    pytest.param(*case, marks=pytest.mark.full if case[-1] != 1e12 else ())
    for case in itertools.product(
        (16, 4096), (64, 1024), (64, 2048), (2, 4), (1e12, 1e10, 1e11, 1e14)
    )
]


@pytest.mark.parametrize(("batch", "inputs", "outputs", "hosts", "rate"), GRID)
def test_factors_are_gathered_where_that_is_cheaper(batch, inputs, outputs, hosts, rate):
    """Than to all-reduce the gradient: the formula of the paper, with the products' FLOPs."""
    graph, where = three_layers(batch, inputs, outputs), cluster("gcp_a100", hosts, 1)
    where = replace(where, device=at_rate(where.device, rate))
    options = PlanOptions(
        baselines=False, zero=False, micro_batches=1, optimizer="sgd", overlap=False
    )

    def cost(*kinds):
        return stage_figures(
            find_plan(graph, where, options, space=space(graph, *kinds)).stage
        ).cost

    rows, factors, either = cost("rows"), cost("factors"), cost("rows", "factors")
    comm, axes = CommModel(where), tuple(range(where.mesh.num_axes))

    def seconds(way, size):
        alpha_s, beta_s_per_byte = comm.price(way, axes)
        return alpha_s + beta_s_per_byte * 4 * size

    gathered = seconds("all_gather", batch * inputs) + seconds("all_gather", batch * outputs)
    summed = seconds("all_reduce", inputs * outputs)
    if hosts == 2:  # one axis: each of these is one collective
        assert factors.communication_s - rows.communication_s == pytest.approx(gathered - summed)
        again = factors.compute_s - rows.compute_s
        assert (either.iteration_s < rows.iteration_s) == (gathered + again < summed)
    assert either.iteration_s == min(rows.iteration_s, factors.iteration_s)
