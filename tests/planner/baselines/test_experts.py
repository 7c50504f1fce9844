"""Expert parallelism with data parallelism around it: a known scheme, and found where it pays."""

import pytest

from autoddl.planner.baselines import FAMILIES, data_parallel
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.planner.schemes import baseline_plans
from autoddl.plans import Plan
from autoddl.plans.figures import figures
from autoddl.sbp.placement import S
from tests.clusters import cluster
from tests.graphs import mixture, mlp
from tests.planned import planned

BATCH, LENGTH, WIDTH, ROOM, HIDDEN = 64, 64, 256, 12, 1024
DEVICES = 4
NAME = "expert parallel"
ONCE = PlanOptions(micro_batches=1)


def by_hand(experts: int, spread: int) -> float:
    """Bytes out of a host with `spread` of 4 devices to the experts, the others around them.

    Tokens go to their experts and back by all-to-alls, in the forward pass and in the backward
    pass; gradients are all-reduced, those of the experts among the devices with the same ones.
    """
    sent = 4 * experts * BATCH * ROOM * WIDTH / DEVICES
    moved = 4 * sent * (spread - 1) / spread
    dense = 4 * (WIDTH * WIDTH + WIDTH)
    mixed = 4 * 2 * experts * WIDTH * HIDDEN / spread
    around = DEVICES // spread
    return moved + 2 * dense * (DEVICES - 1) / DEVICES + 2 * mixed * (around - 1) / around


def nic_bytes(plan: Plan) -> float:
    return figures(plan).cost.nic_bytes.total


@pytest.mark.parametrize(("experts", "spread"), [(4, 4), (8, 4), (6, 2)])
def test_the_known_scheme_moves_what_is_counted_by_hand_and_the_search_finds_it(experts, spread):
    """6 experts do not divide over 4 devices: there the search mixes, and is faster."""
    graph = mixture(BATCH, LENGTH, WIDTH, experts, ROOM, HIDDEN)
    where = cluster("piz_daint", DEVICES, 1)
    record, scheme = baseline_plans(graph, where, ONCE)[NAME]
    assert scheme is not None and record.iteration_s is not None
    assert record.topology == ("experts 4" if spread == 4 else "data 2 × experts 2")
    up = scheme.stage.ops["up/product"].outs[0]
    assert scheme.stage.mesh.extent(up.axes_of(S(0))) == spread
    assert nic_bytes(scheme) == pytest.approx(by_hand(experts, spread), rel=1e-4)
    copies = planned(graph, where, data_parallel(graph), micro_batches=1)
    assert record.iteration_s < 0.7 * copies.cost.iteration_s
    found = find_plan(graph, where, ONCE)
    if spread == DEVICES:
        assert nic_bytes(found) == nic_bytes(scheme)
    assert figures(found).cost.iteration_s <= record.iteration_s * (1 + 1e-6)


def test_it_is_tried_only_on_models_with_experts():
    where = cluster("laptop", 2, 1)
    names = {family.name for family in FAMILIES}
    assert baseline_plans(mixture(8, 4, 8, 2, 2, 16), where).keys() == names | {NAME}
    assert baseline_plans(mlp(8, (16, 16)), where).keys() == names
