"""Megatron in stages: even stages of repeated blocks, within the memory, priced as a plan."""

import dataclasses
import json

import pytest
from click.testing import CliRunner

from autoddl.cost.model import CostModel
from autoddl.graph.regions import repeated_blocks
from autoddl.planner.baselines.megatron_stages import (
    climb,
    equal_parts,
    even_cut,
    megatron_in_stages,
    stage_in_memory,
)
from autoddl.planner.options import DEFAULTS
from autoddl.planner.tables.groups import MicroBatches
from autoddl.plans import Plan
from autoddl.plans.figures import figures
from autoddl.plans.report.terminal import text
from autoddl.plans.stage_figures import stage_figures
from autoddl.tools.cli import main
from autoddl.tools.compare import MEGATRON_STAGES, OURS, compare
from autoddl.tools.report.compare import comparison_report
from tests.clusters import cluster
from tests.graphs import attention, mlp

GRAPH = attention(4, 64, 16, 128, 4)
WHERE = cluster("piz_daint", 4, 2)


def test_stages_have_equally_many_blocks_in_order():
    blocks = repeated_blocks(GRAPH)
    assert len(blocks) == 4
    for stages in (2, 4):
        cut = even_cut(GRAPH, blocks, stages)
        assert len(cut.layers) == stages
        held = [sum(block[-1] in layer for block in blocks) for layer in cut.layers]
        assert held == [4 // stages] * stages
        names = [name for layer in cut.layers for name in layer]
        order = {op.name: n for n, op in enumerate(GRAPH.ops)}
        assert sorted(names, key=order.__getitem__) == names


@pytest.mark.parametrize(
    ("nodes", "gpus", "stages", "shape"),
    [(4, 2, 2, (2, 2)), (4, 2, 4, (1, 2)), (4, 2, 8, (1, 1)), (1, 8, 4, (1, 2)), (2, 3, 6, (1, 1))],
)
def test_parts_are_equal_and_cover_the_cluster(nodes, gpus, stages, shape):
    parts = equal_parts(nodes, gpus, stages)
    assert [(p.nodes, p.gpus) for p in parts] == [shape] * stages
    ranks = [rank for part in parts for rank in part.ranks(gpus)]
    assert sorted(ranks) == list(range(nodes * gpus))


def test_a_cluster_that_does_not_divide_has_no_parts():
    assert equal_parts(4, 2, 3) == () and equal_parts(2, 3, 4) == ()


def test_the_climb_finds_the_best_of_a_valley_from_either_side():
    class Fake:
        def __init__(self, seconds):
            self.seconds = seconds

        def once(self, kind):
            return self  # its own figures

    seconds = {1: 9.0, 2: 5.0, 4: 3.0, 8: 4.0, 16: 6.0}
    for start in seconds:
        found = climb(lambda n: Fake(seconds[n]), tuple(seconds), start)  # pyright: ignore[reportArgumentType]
        assert found is not None and found.seconds == 3.0
    # where few micro-batches do not fit
    fits = climb(lambda n: Fake(seconds[n]) if n > 4 else None, tuple(seconds), 1)  # pyright: ignore[reportArgumentType]
    assert fits is not None and fits.seconds == 4.0
    assert climb(lambda n: None, tuple(seconds), 1) is None


def test_it_is_a_plan_that_keeps_to_the_memory_and_says_its_topologies():
    where = cluster("piz_daint", 4, 1)
    free = megatron_in_stages(GRAPH, CostModel(where))
    assert free is not None and free.plan.num_stages in (2, 4)
    assert len(free.topologies) == free.plan.num_stages
    assert (
        figures(Plan.from_json(free.plan.to_json())).iteration_s == figures(free.plan).iteration_s
    )
    limit = 0.8 * max(figures(free.plan).memory_bytes)
    tight = megatron_in_stages(GRAPH, CostModel(where, memory_limit_bytes=limit))
    assert tight is not None and max(figures(tight.plan).memory_bytes) <= limit
    assert figures(tight.plan).iteration_s >= figures(free.plan).iteration_s
    assert megatron_in_stages(GRAPH, CostModel(where, memory_limit_bytes=1000)) is None


def test_a_model_without_repeated_blocks_has_none():
    assert megatron_in_stages(mlp(64, (32, 64, 16)), CostModel(WHERE)) is None


@pytest.mark.full
@pytest.mark.parametrize("gpus", [1, 2])
def test_compare_in_stages_is_never_behind_and_counts_the_transfers(gpus, tmp_path, monkeypatch):
    machine = cluster("piz_daint", 4, gpus)
    found = compare(GRAPH, machine, stages=True)
    megatron = next(s for s in found.schemes if s.name == MEGATRON_STAGES)
    assert megatron.plan is not None and megatron.runs
    assert found.ours.name == OURS
    assert all(found.ours.seconds <= s.seconds * (1 + 1e-9) for s in found.schemes)
    plain = compare(GRAPH, machine)
    assert found.ours.seconds <= plain.ours.seconds
    sent = figures(megatron.plan).received_bytes
    # at each boundary activations of 64 x 16 x 128 floats, over its hosts, and gradients back;
    # a host between two stages takes both
    stages = megatron.plan.num_stages
    each = 4 * 64 * 16 * 128 / megatron.plan.stages[0].place.nodes
    assert sent.total == each * (1 if stages == 2 else 2)
    rows = comparison_report(found).to_json()["schemes"]
    told = next(row for row in rows if row["name"] == MEGATRON_STAGES)
    assert told["stages"] == megatron.plan.num_stages and 0 < told["bubble"] < 1
    GRAPH.save(tmp_path / "graph.json")

    def known(graph, where, options, *, stages, rival):
        assert (graph, where, options, stages, rival) == (GRAPH, machine, DEFAULTS, True, None)
        return found

    monkeypatch.setattr("autoddl.tools.compare.compare", known)
    words = [
        "compare", str(tmp_path / "graph.json"), "--cluster", "piz_daint",
        "--nodes", "4", "--gpus-per-node", str(gpus), "--stages", "--json",
        "--plot", str(tmp_path / "bars.png"),
    ]  # fmt: skip
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    schemes = json.loads(done.stdout)["schemes"]
    assert [s["iteration_s"] for s in schemes if s["name"] == MEGATRON_STAGES] == [megatron.seconds]
    assert (tmp_path / "bars.png").stat().st_size > 10_000
    told = text(comparison_report(found))
    assert MEGATRON_STAGES in told and "bubble" in told


@pytest.mark.parametrize("share", [0.6, pytest.param(0.9, marks=pytest.mark.full)])
def test_a_stage_is_as_fast_as_any_limit_makes_it(share):
    """Against a scan of limits, with blocks run again and without."""
    parts = held = 4
    cut = even_cut(GRAPH, repeated_blocks(GRAPH), 2)
    stage, where = cut.stage(0, 1), cluster("piz_daint", 4, 1)

    def planned(limit, checkpointing):
        model = CostModel(where, memory_limit_bytes=limit)
        found = stage_in_memory(MicroBatches.of(stage), model, parts, checkpointing=checkpointing)
        return None if found is None else dataclasses.replace(found[0], in_flight=held)

    free = planned(None, "none")
    assert free is not None
    whole = share * stage_figures(free).required_bytes()
    model = CostModel(where, memory_limit_bytes=whole)
    found = stage_in_memory(MicroBatches.of(stage, held), model, parts)
    scanned = (
        planned(whole * n / 20, checkpointing)
        for n in range(1, 21)
        for checkpointing in ("none", "all")
    )
    fitting = [p for p in scanned if p and stage_figures(p).required_bytes() <= whole]
    assert (found is None) == (not fitting)
    if found is not None:
        plan, _ = found
        assert stage_figures(plan).required_bytes() <= whole
        least = min(stage_figures(p).cost.iteration_s for p in fitting)
        assert stage_figures(plan).cost.iteration_s <= least * 1.01
