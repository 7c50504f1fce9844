"""Models by a grammar, on clusters of all small shapes, by searched and random plans: as alone.

In double precision on NumPy's back end, so that a difference is a mistake.
"""

import random
import re
from collections import Counter

import numpy as np
import pytest

flow = pytest.importorskip("oneflow", reason="needs OneFlow")

from autoddl.planner.options import PlanOptions  # noqa: E402
from autoddl.planner.planner import find_plan  # noqa: E402
from autoddl.plans import Plan  # noqa: E402
from autoddl.runtime.oneflow.trace.trace import trace_with_state  # noqa: E402
from tests.exactness import in_numpy  # noqa: E402
from tests.exactness.grammar import GrammarModel, loss  # noqa: E402
from tests.runtime.random_plans import cluster_of, random_plan, with_zero  # noqa: E402

SHAPES = ((1, 2), (2, 2), (1, 4), (3, 1), (2, 3))
# Hosts, devices of each, and shares of the hosts; those that divide a model's rows are drawn from.
UNEVEN = (
    (2, 1, (2, 1)), (2, 1, (3, 1)), (2, 2, (3, 1)), (2, 2, (2, 1)), (2, 2, (5, 1)), (2, 2, (7, 1)),
    (4, 1, (5, 2, 1, 1)), (3, 1, (2, 1, 1)), (4, 1, (3, 1, 1, 1)), (4, 1, (2, 1)), (2, 1, (4, 3)),
    (4, 1, (3, 2, 1, 1)), (2, 2, (8, 5)),
    (4, 1, (2, 1, 1, 0)), (3, 1, (0, 1, 1)), (3, 2, (2, 0, 1)), (4, 1, (3, 0, 2, 1)),
)  # fmt: skip
STEPS, LIMIT = 3, 1e-8


def plans(graph, where, seed, parts):
    """Each kind; in `parts` micro-batches, or whole where these are refused."""
    options = {"baselines": False, "optimizer": "momentum"}
    for make in (
        lambda n: find_plan(graph, where, PlanOptions(micro_batches=n, **options)),
        lambda n: random_plan(graph, where, seed, micro_batches=n),
        lambda n: with_zero(
            random_plan(graph, where, seed + 1, micro_batches=n, favour_splits=False), "mixed"
        ),
    ):
        try:
            yield make(parts)
        except ValueError:
            if parts == 1:
                raise
            yield make(1)


def check(seed, folder, uneven=False) -> Counter:
    """What its plans have come to: all that train train as one process does."""
    rng = random.Random(31 * seed + 1)
    where, parts = cluster_of(*rng.choice(SHAPES)), rng.choice((1, 1, 2, 3))
    flow.manual_seed(seed)
    model = GrammarModel(seed)
    if uneven:
        nodes, gpus, shares = rng.choice([s for s in UNEVEN if model.rows % sum(s[2]) == 0])
        where = cluster_of(nodes, gpus).with_shares(shares)
    traced = trace_with_state(model, *model.batch(0), loss=loss)
    graph = in_numpy.in_float64(traced.graph, folder / "graph.json")
    params, buffers = (
        {name: in_numpy.wide(value.numpy()) for name, value in values.items()}
        for values in (traced.params, traced.buffers)
    )

    def batch(step):
        return [in_numpy.wide(x.numpy()) for x in model.batch(step)]

    expected = in_numpy.alone(graph, params, buffers, batch, STEPS)
    *inputs, target = model.batch(0)
    np.testing.assert_allclose(float(loss(model(*inputs), target)), expected[0][0], rtol=1e-4)
    found = Counter()
    for plan in plans(graph, where, seed, 1 if model.rows % parts else parts):
        try:
            ranks = in_numpy.by_plan(Plan.loads(plan.dumps()), params, buffers, batch, STEPS)
        except ValueError as error:
            assert re.search("statistics of the whole batch|rows of the batch meet", str(error))
            found["refused"] += 1
            continue
        for losses, values in ranks:
            np.testing.assert_allclose(losses, expected[0], rtol=LIMIT)
            apart = sum(((values[k] - v) ** 2).sum() for k, v in expected[1].items())
            whole = sum((v**2).sum() for v in expected[1].values())
            assert apart <= LIMIT**2 * whole
        found["equal"] += 1
        placed = (nd for op in plan.stage.ops.values() for nd in op.outs)
        found["split"] += any(p.is_split for nd in placed for p in nd)
    return found


@pytest.mark.parametrize("seed", (3, pytest.param(5, marks=pytest.mark.full)))
def test_models_by_grammar(seed, tmp_path):
    assert check(seed, tmp_path)["equal"]


@pytest.mark.full
@pytest.mark.parametrize("tens", range(20))
def test_many_models_by_grammar(tens, tmp_path):
    found = sum((check(seed, tmp_path) for seed in range(10 * tens, 10 * tens + 10)), Counter())
    print(found)
    assert found["equal"] >= 15 and found["split"]


@pytest.mark.full
@pytest.mark.parametrize("tens", range(20))
def test_many_models_by_grammar_in_uneven_shares(tens, tmp_path):
    seeds = range(10 * tens, 10 * tens + 10)
    found = sum((check(seed, tmp_path, uneven=True) for seed in seeds), Counter())
    print(found)
    assert found["equal"] >= 10 and found["split"]
