"""The executor's fullest moment by four of equal blocks, against that of the whole step."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoddl.cost import fullest
from autoddl.cost.fullest import fullest_bytes
from autoddl.cost.lifetime import StepTape
from autoddl.cost.memory_peak import memory_peak
from autoddl.cost.model import CostModel
from autoddl.cost.planned_step import PlannedStep
from autoddl.cost.recompute import Recomputation
from autoddl.cost.shortened import shortened
from autoddl.graph.graph import Graph
from autoddl.graph.regions import repeated_blocks
from autoddl.planner.placements import place
from autoddl.planner.tables.tables import build_tables
from tests.clusters import cluster
from tests.graphs import Builder, attention, mlp, residual

ROWS, WIDTH = 64, 32


def shared(blocks: int, reads_first: bool = False) -> Graph:
    """Blocks of x W m s + b_n: the weight, a factor and x's own sum over rows are the same for all.

    reads_first: all blocks read the output of the first one
    """
    b = Builder(ROWS)
    x = b.input(0, (ROWS, WIDTH))
    weight, factor = b.param("weight", (WIDTH, WIDTH)), b.param("factor", (WIDTH,))
    stem = x = b.linear("stem", x, WIDTH)
    for n in range(blocks):
        y = b.op(f"block{n}/product", "matmul", (x, weight), (ROWS, WIDTH),
                 transpose_a=False, transpose_b=False, alpha=1.0)  # fmt: skip
        y = b.op(f"block{n}/scaled", "broadcast_mul", (y, factor), (ROWS, WIDTH))
        y = b.op(f"block{n}/stem", "add_n", (y, stem), (ROWS, WIDTH))
        bias = b.param(f"block{n}/bias", (WIDTH,))
        x = b.op(f"block{n}/sum", "broadcast_add", (y, bias), (ROWS, WIDTH))
        stem = x if reads_first and not n else stem
    return b.graph(x, "shared")


def turned(blocks: int) -> Graph:
    """A cube that each block turns by a third, as a view, of which it adds up a part."""
    b = Builder(0)
    x = sums = b.unary("relu", b.param("start", (8, 8, 8)), "first")
    for n in range(blocks):
        x = b.op(f"block{n}/turned", "transpose", (x,), (8, 8, 8), perm=(1, 2, 0))
        y = b.linear(f"block{n}.fc", b.unary("gelu", x, f"block{n}/gelu"), 8)
        sums = b.op(f"block{n}/sum", "add_n", (sums, y), (8, 8, 8))
    return b.graph(sums, "turned")


def skipping(blocks: int) -> Graph:
    """Each block reads what the last three gave."""
    b = Builder(ROWS)
    given = [b.linear(f"stem{n}", b.input(n, (ROWS, WIDTH)), WIDTH) for n in range(3)]
    for n in range(blocks):
        y = b.linear(f"block{n}.fc", given[-1], WIDTH)
        given.append(b.op(f"block{n}/sum", "add_n", (*given[-3:], y), (ROWS, WIDTH)))
    return b.graph(given[-1], "skipping")


GRAPHS = {
    "mlp": lambda blocks: mlp(ROWS, (WIDTH,) * (blocks + 1)),
    "attention": lambda blocks: attention(blocks, 8, 16, WIDTH, 4),
    "residual": lambda blocks: residual(blocks, ROWS, WIDTH),
    "shared": shared,
    "reads first": lambda blocks: shared(blocks, reads_first=True),
    "turned": turned,
    "skipping": skipping,
}


def planned(
    graph: Graph, nodes: int, gpus: int, parts: int, kinds: Sequence[int], again: Sequence[int],
    seed: int, optimizer: str = "adam",
) -> PlannedStep:  # fmt: skip
    """A plan at random, the same in blocks of the same kind.

    kinds: of blocks, in turn; again: which blocks are run again
    """
    graph = graph.with_forks()
    model = CostModel(cluster("gcp_a100", nodes, gpus), optimizer, memory_limit_bytes=np.inf)
    blocks = repeated_blocks(graph)
    recomputed = Recomputation(graph, tuple(b for n, b in enumerate(blocks) if n in again))
    tables = build_tables(graph, model, parts, again=recomputed)
    assert tables is not None
    rng = np.random.default_rng(seed)
    drawn: dict[tuple[int, str, int], int] = {}
    choice = np.zeros(len(tables.problem.sizes()), dtype=np.int64)
    for number, (group, first) in enumerate(
        zip(tables.grouping.groups, tables.variables, strict=True)
    ):
        block = re.search(r"\d+", group.head.name)
        kind = kinds[int(block[0]) % len(kinds)] if block else -1
        name = re.sub(r"\d+", "", group.head.name)
        is_stored = tables.table_of(number).storage is not None
        for variable in (first, first + 1)[: 1 + is_stored]:
            key = kind, name, variable - first
            value = drawn.setdefault(key, int(rng.integers(1 << 30)))
            choice[variable] = value % tables.problem.sizes()[variable]
    ops, edges = place(tables, choice)
    mesh = model.cluster.mesh
    return PlannedStep(graph, mesh, parts, optimizer, ops, edges, recomputed)


@settings(deadline=None, max_examples=40)
@given(
    name=st.sampled_from(sorted(GRAPHS)),
    blocks=st.integers(1, 14),
    shape=st.sampled_from([(1, 1), (1, 2), (2, 2)]),
    parts=st.sampled_from([1, 2, 4]),
    kinds=st.lists(st.integers(0, 1), min_size=1, max_size=14),
    again=st.one_of(st.just(range(14)), st.sets(st.integers(0, 13)).map(sorted)),
    seed=st.integers(0, 1000),
    optimizer=st.sampled_from(["sgd", "adam"]),
)
def test_it_is_that_of_the_whole_step(
    name, blocks, shape: tuple[int, int], parts, kinds, again, seed, optimizer
):
    graph = GRAPHS[name](blocks)
    if not graph.batch:
        parts = 1
    step = planned(graph, *shape, parts, kinds, again, seed, optimizer)
    assert fullest_bytes(step) == memory_peak(step, "executor").bytes


@pytest.fixture
def built(monkeypatch) -> list[int]:
    """How many operators the tapes have that were made."""
    counts: list[int] = []

    class Counting(StepTape):
        def build(self):
            counts.append(len(self.plan.graph.ops))
            return super().build()

    monkeypatch.setattr(fullest, "StepTape", Counting)
    return counts


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(
    ("name", "again"),
    [
        *itertools.product(("mlp", "attention", "residual"), ((), range(16), range(8))),
        *itertools.product(("shared", "reads first"), ((),)),
    ],
)
def test_of_equal_blocks_four_are_enough(name, parts, again, built):
    for seed in range(2):
        step = planned(GRAPHS[name](16), 1, 2, parts, [0], again, seed)
        built.clear()
        assert fullest_bytes(step) == memory_peak(step, "executor").bytes
        assert len(built) == 1 and built[0] < len(step.graph.ops) * 0.8


def test_two_kinds_of_blocks_are_two_runs():
    """The first block of a kind reads what another kind gave."""
    step = planned(GRAPHS["residual"](16), 2, 2, 2, [0] * 8 + [1] * 8, (), 0)
    assert [run.count for run in shortened(step).runs] == [7, 7]


def test_what_a_tape_shows_not_to_repeat_is_not_shortened(built):
    """Strides are those of three blocks before."""
    step = planned(GRAPHS["turned"](12), 1, 1, 1, [0], (), 0)
    assert fullest_bytes(step) == memory_peak(step, "executor").bytes
    short = shortened(step).plan
    assert built == [len(short.graph.ops), len(step.graph.ops)]


def test_blocks_that_read_what_the_last_three_gave_are_all_there(built):
    step = planned(GRAPHS["skipping"](12), 2, 2, 2, [0], (), 0)
    assert fullest_bytes(step) == memory_peak(step, "executor").bytes
    assert built == [len(step.graph.ops)]
