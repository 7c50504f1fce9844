"""The recipe of docs/architecture.md: a second algorithm of a collective, from outside the package.

It is registered in a table that the cluster carries; nothing in the package knows of it.
"""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import autoddl
from autoddl.cost.collectives import CommModel
from autoddl.plans import Plan
from autoddl.plans.figures import figures
from autoddl.plans.stage_figures import stage_figures
from autoddl.runtime.comm.groups import Groups
from autoddl.runtime.comm.redistribute import prepare
from autoddl.sbp.collectives import COLLECTIVES, Step, nic_bytes, path_bytes
from autoddl.sbp.layout import TensorSpec, local_slices
from autoddl.sbp.oracle import assemble, run_steps, scatter
from autoddl.sbp.placement import NdSbp
from autoddl.sbp.redistribute import cheapest_path, path_cost
from tests.clusters import cluster
from tests.graphs import mlp

from . import second_all_reduce
from .second_all_reduce import TABLE, WAYS

WHERE = cluster("gcp_a100", 2, 2)
WITH = dataclasses.replace(WHERE, collectives=TABLE)
SMALL, LARGE = TensorSpec((9, 4)), TensorSpec((3 * 4096, 1024))


def path(where, spec, source, target):
    comm = CommModel(where)
    steps = cheapest_path(
        spec, NdSbp.parse(source), NdSbp.parse(target), where.mesh, comm.price, comm.collectives
    )
    return steps, path_cost(spec, NdSbp.parse(source), steps, where.mesh, comm.price)


def travels(plan: Plan):
    """(tensor, placement, steps) of every redistribution of a plan."""
    for op in plan.graph.ops:
        for index, name in enumerate(op.inputs):
            edge = plan.stage.edges.get((op.name, index))
            if edge is None:
                continue
            producer = plan.graph.producers[name]
            given = plan.stage.ops[producer.name].outs[producer.outputs.index(name)]
            back = plan.stage.ops[op.name].grad_ins[index]
            yield plan.graph.tensors[name].spec, given, edge.forward
            if back is not None:
                yield plan.graph.tensors[name].spec, back, edge.backward


def test_a_step_names_its_algorithm():
    step = Step.parse("all_reduce[gather][0,1] P->B")
    assert (step.kind, step.algorithm, step.way) == ("all_reduce", "gather", "all_reduce[gather]")
    assert Step.parse(str(step)) == step != Step.parse("all_reduce[0,1] P->B")
    with pytest.raises(ValueError, match="is not a step"):
        Step.parse("all_reduce[gather][0] S0->B")


def test_the_table_stays_as_it_was():
    assert not COLLECTIVES.has_choices
    assert [entry.way for entry in TABLE.entries[: len(COLLECTIVES.entries)]] == [
        entry.way for entry in COLLECTIVES.entries
    ]


@pytest.mark.parametrize(
    ("name", "algorithm", "why"),
    [
        ("all_sum", "gather", "no collective that sends"),
        ("slice", "gather", "no collective that sends"),
        ("all_reduce", "Gather 2", "small letters"),
        ("all_reduce", "gather", "already"),
    ],
)
def test_what_cannot_be_registered_is_refused(name, algorithm, why):
    with pytest.raises(ValueError, match=why):
        TABLE.with_algorithm(name, algorithm, second_all_reduce.work)


def test_a_price_is_that_of_the_cheaper_algorithm():
    """On three hosts: few bytes are summed in fewer messages, many as they were before."""
    before = cluster("gcp_a100", 3, 1)
    where = dataclasses.replace(before, collectives=TABLE)
    for spec, algorithm in ((SMALL, "gather"), (LARGE, "")):
        steps, seconds = path(where, spec, "(P)", "(B)")
        assert {step.algorithm for step in steps} == {algorithm}
        prices = [CommModel(where).price(way, (0,)) for way in ("all_reduce", "all_reduce[gather]")]
        default, other = (alpha_s + beta * spec.bytes for alpha_s, beta in prices)
        assert seconds == pytest.approx(min(default, other), rel=1e-9)
        assert (seconds < path(before, spec, "(P)", "(B)")[1]) == (algorithm == "gather")


def test_a_way_that_the_cluster_does_not_know_is_refused():
    with pytest.raises(ValueError, match=r"all_reduce\[gather\].*is not in the table"):
        CommModel(WHERE).price("all_reduce[gather]", (0,))


def test_a_plan_takes_each_algorithm_where_it_is_cheaper(tmp_path):
    graph = mlp(4096, (1024, 1024, 512, 16))
    before, plan = (autoddl.plan(graph, where, overlap=False) for where in (WHERE, WITH))
    steps = [step for _, _, path in travels(plan) for step in path]
    small = [step for step in steps if step.algorithm]
    assert small and {step.kind for step in steps} > {"all_reduce"}
    assert figures(plan).cost.iteration_s < figures(before).cost.iteration_s
    assert stage_figures(plan.stage).gap == stage_figures(before.stage).gap == 0
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").stage.edges == plan.stage.edges


@pytest.mark.parametrize("nodes, gpus", [(2, 2), (4, 1), (1, 4), (3, 2)])
def test_it_runs_on_simulated_shards(nodes, gpus):
    where = dataclasses.replace(cluster("gcp_a100", nodes, gpus), collectives=TABLE)
    mesh, rng = where.mesh, np.random.default_rng(0)
    nd = NdSbp.parse("(P, P)")
    steps, _ = path(where, TensorSpec((6, 4)), "(P, P)", "(B, B)")
    assert any(step.algorithm for step in steps)
    whole = rng.standard_normal((6, 4))
    shards = scatter(whole, nd, mesh, rng)
    after, networks = run_steps(shards, steps, nd, mesh, WAYS)
    np.testing.assert_allclose(assemble(after, NdSbp.parse("(B, B)"), mesh, whole.shape), whole)
    spec = TensorSpec((6, 4), "float64")
    for (step, _, _), network in zip(path_bytes(spec, steps, nd, mesh), networks, strict=True):
        expected = nic_bytes(spec, nd, [step], mesh, TABLE)
        assert network.nic_bytes == pytest.approx(expected)
        nd = step.apply(nd)


def test_a_plans_paths_run_on_simulated_shards():
    """Every redistribution of a plan brings its tensor where the plan says."""
    plan = autoddl.plan(mlp(256, (1024, 1024, 512, 16)), WITH)
    rng, seen = np.random.default_rng(1), 0
    for spec, source, steps in travels(plan):
        if any(step.algorithm for step in steps):
            whole = rng.standard_normal(spec.shape)
            shards = scatter(whole, source, plan.stage.mesh, rng)
            after, _ = run_steps(shards, steps, source, plan.stage.mesh, WAYS)
            nd = source
            for step in steps:
                nd = step.apply(nd)
            for rank, shard in enumerate(after):
                expected = whole[local_slices(spec.shape, nd, plan.stage.mesh, rank)]
                np.testing.assert_allclose(shard, expected)
            seen += 1
    assert seen


def test_a_model_trains_with_it_on_four_processes(jobs):
    pytest.importorskip("oneflow", reason="needs OneFlow")
    script = Path(__file__).parent / "train_gathered.py"
    status, out = jobs.run(script, 4, timeout=240.0)
    assert status == 0, out
    assert "gathered sums" in out


def test_a_runtime_without_it_says_so():
    steps = (Step.parse("all_reduce[gather][0] P->B"),)
    groups = Groups(WHERE.mesh, 0, None)  # type: ignore[arg-type]  # nothing runs
    with pytest.raises(ValueError, match=r"does not know all_reduce\[gather\]"):
        prepare(steps, (4,), NdSbp.parse("(P, B)"), groups)
