"""The next best topologies, against each strategy priced by itself."""

import math
from dataclasses import replace

import numpy as np
import pytest

from autoddl.cost.model import CostModel
from autoddl.planner.asked import micro_graph
from autoddl.planner.layers import heavy_groups, next_best, topology, topology_letters
from autoddl.planner.tables.tables import build_tables
from autoddl.sbp.placement import NdSbp
from autoddl.search.elimination import eliminate
from tests.clusters import cluster
from tests.graphs import attention, mlp


def topologies(tables, group, op):
    """Of each strategy of a group."""
    table = tables.table_of(group)
    number = tables.grouping.groups[group].ops.index(op)

    def letter(composite):
        signature = composite.signatures[number]
        ins, outs = (tuple(NdSbp((p,)) for p in side) for side in (signature.ins, signature.outs))
        return topology_letters(op, ins, outs)[0]

    letters = [letter(composite) for composite in table.composites]
    mesh = tables.model.cluster.mesh
    return [topology(tuple(letters[c] for c in row), mesh) for row in table.assign]


@pytest.mark.parametrize("room", [np.inf, 1.1, 1.0])  # times what the choice needs
@pytest.mark.parametrize("graph", [mlp(32, (512, 2048, 96)), attention(8, 32, 64, 256, 8)])
def test_the_next_best_is_the_cheapest_of_all_others(graph, room):
    where = cluster("piz_daint", 32, 1)
    model = CostModel(where, memory_limit_bytes=1e15)
    every = build_tables(micro_graph(graph, 1), model)
    assert every is not None
    choice = eliminate(every.problem, 0.0, frozenset()).expand({})
    memory = every.problem.evaluate(choice)[1]
    limit = memory * room
    wide = replace(every, problem=replace(every.problem, memory_limit=limit))
    found, chosen = next_best(wide, choice, memory), choice.tolist()
    expected = {}
    for group, op in heavy_groups(wide):
        variable = wide.variables[group]
        now, names = chosen[variable], topologies(wide, group, op)
        cost, bytes_ = wide.problem.line(chosen, variable)
        fits = memory + bytes_ - bytes_[now] <= limit
        for s in np.flatnonzero(fits & (np.array(names) != names[now])):
            extra = expected.setdefault(group, {}).setdefault(names[s], np.inf)
            expected[group][names[s]] = min(extra, cost[s] - cost[now])
    assert found.keys() == expected.keys()
    assert found or room < np.inf
    for group, extra_s in expected.items():
        name, split, more_s = found[group]
        assert math.prod(part.parts for part in split.parts) == where.num_devices
        assert more_s == pytest.approx(extra_s[name], rel=1e-9)
        assert more_s == pytest.approx(min(extra_s.values()), rel=1e-9)
