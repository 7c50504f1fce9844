import dataclasses
import itertools

import pytest

from autoddl.cost.collectives import CommModel
from autoddl.sbp.collectives import Step, StepKind, device_intra_bytes, nic_bytes
from autoddl.sbp.layout import TensorSpec
from autoddl.sbp.placement import B, NdSbp, P, S
from autoddl.sbp.redistribute import path_cost
from tests.clusters import cluster

SHAPES = [(4, 2), (2, 4), (3, 2), (4, 1), (1, 4)]
STEPS = {
    "all_gather": (S(0), B),
    "reduce_scatter": (P, S(0)),
    "all_reduce": (P, B),
    "all_to_all": (S(0), S(1)),
}


def only_nic(nodes, gpus):
    """A cluster whose only cost is a byte through a NIC: one second each."""
    where = cluster("gcp_a100", nodes, gpus)
    free = dataclasses.replace(where.inter, alpha_s=1e-30, beta_s_per_byte=1e-30)
    nic = dataclasses.replace(free, beta_s_per_byte=1.0)
    return dataclasses.replace(where, inter=nic, intra=free)


def subsets(axes):
    return [c for n in range(1, axes + 1) for c in itertools.combinations(range(axes), n)]


@pytest.mark.parametrize(("nodes", "gpus"), SHAPES)
@pytest.mark.parametrize("kind", STEPS)
def test_seconds_are_the_bytes_through_the_nic(kind, nodes, gpus):
    where = only_nic(nodes, gpus)
    mesh, price = where.mesh, CommModel(where).price
    spec = TensorSpec((144, 144))
    source, target = STEPS[kind]
    for axes in subsets(mesh.num_axes):
        nd = NdSbp((B,) * mesh.num_axes).replace(axes, source)
        step = Step(kind, axes, source, target)
        expected = nic_bytes(spec, nd, (step,), mesh)
        assert path_cost(spec, nd, (step,), mesh, price) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("kind", STEPS)
def test_inside_a_host_seconds_are_each_devices_bytes(kind):
    where = cluster("gcp_a100", 2, 4)
    where = dataclasses.replace(
        where, intra=dataclasses.replace(where.intra, alpha_s=1e-30, beta_s_per_byte=1.0)
    )
    mesh, spec, (source, target) = where.mesh, TensorSpec((144, 144)), STEPS[kind]
    for axes in ((1,), (2,), (1, 2)):
        nd = NdSbp((B,) * 3).replace(axes, source)
        step = Step(kind, axes, source, target)
        expected = device_intra_bytes(spec, nd, (step,), mesh)
        assert expected > 0
        seconds = path_cost(spec, nd, (step,), mesh, CommModel(where).price)
        assert seconds == pytest.approx(expected)


def test_the_paper_table():
    """AutoDDL Table II for a group of 4 nodes with one device each."""
    where = cluster("piz_daint", 4, 1)
    alpha, beta, n = where.inter.alpha_s, where.inter.beta_s_per_byte, 1e6
    rounds_of: dict[StepKind, int] = {"all_reduce": 2, "all_gather": 1, "all_to_all": 1}
    for rule in ("shared_nic", "plain"):
        price = CommModel(where, rule).price
        for kind, rounds in rounds_of.items():
            latency, per_byte = price(kind, (0, 1))
            assert latency + per_byte * n == pytest.approx(rounds * (3 * alpha + 0.75 * n * beta))


def test_the_plain_rule_ignores_who_else_uses_the_nic():
    where = cluster("gcp_a100", 2, 16)
    shared, plain = (CommModel(where, rule).price for rule in ("shared_nic", "plain"))
    node_axis = (0,)
    assert shared("all_gather", node_axis)[1] == pytest.approx(
        16 * plain("all_gather", node_axis)[1]
    )
    whole = tuple(range(where.mesh.num_axes))
    assert shared("all_gather", whole)[1] == pytest.approx(plain("all_gather", whole)[1])


def test_free_steps_and_single_devices_cost_nothing():
    price = CommModel(cluster("gcp_a100", 2, 2)).price
    assert price("slice", (0, 1)) == price("to_partial", (1,)) == price("all_reduce", ()) == (0, 0)


def test_unknown_rule_is_named():
    with pytest.raises(ValueError, match="magic"):
        CommModel(cluster("laptop", 2, 2), "magic")  # pyright: ignore[reportArgumentType]
