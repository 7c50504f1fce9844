"""What a step's executor holds at most by four of its equal blocks, against the whole step."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoddl.cost import required
from autoddl.cost.exchange import Buckets, exchanges, filling
from autoddl.cost.liveness import StepTape
from autoddl.cost.memory_rules import rules_of
from autoddl.cost.model import CostModel
from autoddl.cost.recompute import Recomputation
from autoddl.cost.required import (
    bucket_room,
    executor_peak,
    fullest_passes,
    memory_peak,
    required_bytes,
)
from autoddl.cost.step_tensors import PlannedStep
from autoddl.graph.graph import SOURCE_KINDS, Graph
from autoddl.graph.regions import repeated_blocks
from autoddl.planner.realize import place
from autoddl.planner.tables.tables import build_tables
from tests.clusters import cluster
from tests.graphs import Builder, attention, mlp, residual

ROWS, WIDTH = 64, 32
RULES = {name: rules_of(name) for name in ("oneflow", "torch")}


def shared(blocks: int, reads_first: bool = False, returned: bool = False) -> Graph:
    """Blocks of x W m s + b_n: the weight, a factor and the stem are the same for all.

    reads_first: all blocks read the output of the first one
    returned: the mean of all outputs is the model's
    """
    b = Builder(ROWS)
    x = b.input(0, (ROWS, WIDTH))
    weight, factor = b.param("weight", (WIDTH, WIDTH)), b.param("factor", (WIDTH,))
    stem = x = b.linear("stem", x, WIDTH)
    made = []
    for n in range(blocks):
        y = b.op(f"block{n}/product", "matmul", (x, weight), (ROWS, WIDTH),
                 transpose_a=False, transpose_b=False, alpha=1.0)  # fmt: skip
        y = b.op(f"block{n}/scaled", "broadcast_mul", (y, factor), (ROWS, WIDTH))
        y = b.op(f"block{n}/stem", "add_n", (y, stem), (ROWS, WIDTH))
        bias = b.param(f"block{n}/bias", (WIDTH,))
        x = b.op(f"block{n}/sum", "broadcast_add", (y, bias), (ROWS, WIDTH))
        stem = x if reads_first and not n else stem
        made.append(x)
    if returned:
        x = b.op("mean", "add_n", tuple(made), (ROWS, WIDTH))
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
    "all returned": lambda blocks: shared(blocks, returned=True),
    "turned": turned,
    "skipping": skipping,
}


def drawn(
    graph: Graph, nodes: int, gpus: int, parts: int, kinds: Sequence[int], again: Sequence[int],
    seed: int, optimizer: str = "adam", in_flight: int = 1,
) -> PlannedStep:  # fmt: skip
    """A plan at random, the same in blocks of the same kind.

    kinds: of blocks, in turn; again: which blocks are run again
    """
    graph = graph.with_forks()
    model = CostModel(cluster("gcp_a100", nodes, gpus), optimizer, memory_limit_bytes=np.inf)
    blocks = tuple(b for n, b in enumerate(repeated_blocks(graph)) if n in again)
    tables = build_tables(graph, model, parts, again=Recomputation(graph, blocks))
    assert tables is not None
    rng, values = np.random.default_rng(seed), {}
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
            value = values.setdefault(key, int(rng.integers(1 << 30)))
            choice[variable] = value % tables.problem.sizes()[variable]
    ops, edges = place(tables, choice)
    flight = Recomputation(graph, blocks, in_flight)
    return PlannedStep(graph, model.cluster.mesh, "cuda", parts, optimizer, ops, edges, flight)


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
    in_flight=st.integers(1, 3),
    most=st.sampled_from([0, 0, 1, 2, 100]),
    alone=st.sets(st.integers(0, 13), max_size=2).map(sorted),
    takes_turns=st.booleans(),
    late=st.sampled_from([0, 0, 1, 7, 40]),
    crossing=st.sampled_from([0, 0, 1, 2, 3, 5]),
    back_end=st.sampled_from(sorted(RULES)),
)
def test_it_is_that_of_the_whole_step(
    name, blocks, shape: tuple[int, int], parts, kinds, again, seed, optimizer, in_flight, most,
    alone, takes_turns, late, crossing, back_end,
):  # fmt: skip
    """most: gradients of a block in a bucket; 0 for no buckets; late: so long some of these wait

    crossing: gradients in a bucket wherever they are from, instead
    """
    graph = GRAPHS[name](blocks)
    if not graph.batch:
        parts = 1
    step = drawn(graph, *shape, parts, kinds, again, seed, optimizer, in_flight)
    rules = RULES[back_end]
    if most:
        step = replace(step, buckets=in_order(step, crossing) or in_blocks(step, most, alone))
    if takes_turns and 1 < in_flight <= parts:
        step = replace(step, turns=turns(step, in_flight, seed))
    elif late:
        step = waiting(step, (0, late, late // 2))
    found, whole = executor_peak(step, rules), memory_peak(step, rules, "executor")
    assert (found.bytes, found.moment) == (whole.bytes, whole.moment)
    for told, right in ((found.by_cause, whole.by_cause), (found.always, whole.always)):
        assert {c: n for c, n in told.items() if n} == {c: n for c, n in right.items() if n}


def turns(step: PlannedStep, count: int, seed: int) -> list[tuple[int, int]]:
    """Of so many strands, at random: none is ahead of one before it."""
    end = 4 * sum(op.kind not in SOURCE_KINDS for op in step.graph.ops)
    rng, at, found = random.Random(seed), [0] * count, []
    while at[-1] < end:
        strand = rng.randrange(count)
        most = at[strand - 1] if strand else end
        if at[strand] < most:
            at[strand] = min(most, at[strand] + rng.choice([1, 2, 5, end]))
            found.append((strand, at[strand]))
    return found


def waiting(step: PlannedStep, times: Sequence[int]) -> PlannedStep:
    """Its buckets wait for so many operators, in turns, or for all that are left."""
    every = exchanges(step.graph, step.ops, step.edges)
    last = sum(op.kind not in SOURCE_KINDS for op in step.graph.ops) - 1
    full = filling(step.graph, every, step.buckets)
    waits = (min(late, last - place) for late, place in zip(itertools.cycle(times), full))
    return replace(step, waits=tuple(waits))


def in_blocks(step: PlannedStep, most: int, alone: Sequence[int] = ()) -> Buckets:
    """At most so many gradients of a block in a bucket, of those that may travel together.

    alone: blocks of which each travels by itself
    """
    every = exchanges(step.graph, step.ops, step.edges)
    number_of = {name: n for n, b in enumerate(repeated_blocks(step.graph)) for name in b}
    found: dict[object, list[list[int]]] = {}
    for number in reversed(range(len(every))):
        exchange = every[number]
        block = number_of.get(exchange.op, -1)
        own = found.setdefault((block, exchange.company), [[]])
        if len(own[-1]) == (1 if block in alone else most):
            own.append([])
        own[-1].append(number)
    return tuple(tuple(bucket) for buckets in found.values() for bucket in buckets)


def in_order(step: PlannedStep, most: int) -> Buckets:
    """So many gradients in a bucket as they come, of those that may travel together; () for 0."""
    if not most:
        return ()
    every = exchanges(step.graph, step.ops, step.edges)
    found: dict[object, list[list[int]]] = {}
    for number in reversed(range(len(every))):
        own = found.setdefault(every[number].company, [[]])
        if len(own[-1]) == most:
            own.append([])
        own[-1].append(number)
    return tuple(tuple(bucket) for buckets in found.values() for bucket in buckets)


@settings(deadline=None, max_examples=10)
@given(
    name=st.sampled_from(sorted(GRAPHS)),
    blocks=st.integers(1, 4),
    shape=st.sampled_from([(1, 2), (2, 2)]),
    parts=st.sampled_from([1, 2, 4]),
    again=st.sets(st.integers(0, 3)).map(sorted),
    seed=st.integers(0, 1000),
    most=st.sampled_from([1, 3, 100]),
    back_end=st.sampled_from(sorted(RULES)),
)
def test_buckets_need_no_more_room_than_that(
    name, blocks, shape: tuple[int, int], parts, again, seed, most, back_end
):
    """Whichever gradients share a bucket, of those that may, and whenever these leave."""
    graph = GRAPHS[name](blocks)
    rules, parts = RULES[back_end], parts if graph.batch else 1
    step = drawn(graph, *shape, parts, [0], again, seed)
    every, rng = exchanges(step.graph, step.ops, step.edges), random.Random(seed)
    buckets: list[list[int]] = []
    for number in rng.sample(range(len(every)), len(every)):
        company = every[number].company
        beside = [b for b in buckets if len(b) < most and every[b[0]].company == company]
        rng.choice(beside).append(number) if beside else buckets.append([number])
    bucketed = waiting(replace(step, buckets=tuple(map(tuple, buckets))), (0, 3, 50))
    with_them, without = (required_bytes(s, rules, math.inf) for s in (bucketed, step))
    assert with_them <= without + bucket_room(bucketed, rules)


@pytest.fixture
def built(monkeypatch) -> list[int]:
    """How many operators the tapes have that were made."""
    counts: list[int] = []
    build = StepTape.build

    def counting(self):
        counts.append(len(self.plan.graph.ops))
        return build(self)

    monkeypatch.setattr(StepTape, "build", counting)
    return counts


def lengths(step: PlannedStep, built: list[int]) -> list[int]:
    """Of the tapes made for the bytes of a step, which are right."""
    rules = RULES["oneflow"]
    whole = max(p.build().sweep().bytes for p in fullest_passes(step, rules))
    built.clear()
    assert executor_peak(step, rules).bytes == whole
    return built


@pytest.mark.parametrize("back_end", RULES)
@pytest.mark.parametrize("again", [(), range(16), range(8)], ids=["none", "all", "half"])
@pytest.mark.parametrize("most, strands", [(0, 1), (2, 1), (2, 2)])
@pytest.mark.parametrize(
    "name",
    [
        "residual",
        *(pytest.param(n, marks=pytest.mark.full) for n in ("mlp", "attention", "shared")),
    ],
)
def test_of_equal_blocks_four_are_enough(name, most, strands, again, back_end, built):
    """Whether gradients travel in buckets, and micro-batches take turns."""
    step, rules = drawn(GRAPHS[name](16), 1, 2, 4, [0], again, 0, "adam", strands), RULES[back_end]
    step = replace(step, buckets=in_blocks(step, most)) if most else step
    for seed in range(3 if strands > 1 else 1):
        step = replace(step, turns=turns(step, strands, seed) if strands > 1 else ())
        built.clear()
        assert executor_peak(step, rules).bytes == memory_peak(step, rules, "executor").bytes
        assert len(built) == 2 * strands and built[0] < built[-1] * 0.8


@pytest.mark.parametrize(
    "alone, left_out",
    [(range(4, 9), [1, 2]), (range(0, 16, 2), [3]), ((0, 3, 4, 7, 8, 11, 12, 15), [])],
    ids=["several", "every second", "two of four"],
)
def test_blocks_whose_buckets_differ_are_not_alike(alone, left_out, built):
    """But pairs of them may be."""
    step = drawn(GRAPHS["residual"](16), 1, 2, 2, [0], (), 1)
    step = replace(step, buckets=in_blocks(step, 3, alone))
    assert {1, 2} <= {len(bucket) for bucket in step.buckets}
    short, runs = required._shortened(step)
    assert [run.left_out for run in runs] == left_out
    assert lengths(step, built) == [len(short.graph.ops)]


@pytest.mark.parametrize("late, is_short", [(2, True), (30, True), (None, False)])
def test_blocks_whose_gradients_leave_beside_others_are_alike_if_all_do(late, is_short, built):
    """late: None for every bucket another one"""
    step = drawn(GRAPHS["residual"](16), 1, 2, 1, [0], (), 1)
    step = replace(step, buckets=in_blocks(step, 1))
    step = waiting(step, (late,) if late is not None else range(len(step.buckets)))
    assert (lengths(step, built)[0] < len(step.graph.ops)) == is_short


@pytest.mark.parametrize("late", [None, 0, 9])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("most, is_short", [(2, True), (3, False)])
def test_gradients_that_travel_with_those_of_the_block_beside_are_told_by_few_blocks(
    most, is_short, parts, late, built
):
    """A bucket has those of one place in two blocks, or in three."""
    step = drawn(GRAPHS["residual"](24), 1, 2, parts, [0], (), 16)
    assert not any(exchange.is_often for exchange in exchanges(step.graph, step.ops, step.edges))
    step = replace(step, buckets=in_order(step, most))
    step = step if late is None else waiting(step, (late,))
    assert (lengths(step, built)[0] < len(step.graph.ops)) == is_short
    assert max(map(len, step.buckets)) == most


def test_blocks_whose_gradients_travel_with_those_of_others_are_all_there(built):
    """Each place in a block has its counterpart eight blocks later."""
    step = drawn(GRAPHS["mlp"](16), 1, 2, 2, [0], (), 1)
    alone = in_blocks(step, 1)
    pairs = tuple((*one, *other) for one, other in zip(alone[:15], alone[15:], strict=True))
    step = replace(step, buckets=pairs)
    assert lengths(step, built) == [len(step.graph.ops)]


def test_two_kinds_of_blocks_are_two_runs():
    """The first block of each kind reads what others gave; others read the last of all."""
    step = drawn(GRAPHS["residual"](16), 2, 2, 2, [0] * 8 + [1] * 8, (), 0)
    assert [run.left_out for run in required._shortened(step)[1]] == [3, 2]


def test_what_a_tape_shows_not_to_repeat_is_not_shortened(built):
    """Strides are those of three blocks before."""
    step = drawn(GRAPHS["turned"](12), 1, 1, 1, [0], (), 0)
    short, runs = required._shortened(step)
    assert runs and lengths(step, built) == [len(short.graph.ops), len(step.graph.ops)]


@pytest.mark.parametrize("name", ["skipping", "all returned"])
def test_blocks_whose_outputs_others_read_are_all_there(name, built):
    step = drawn(GRAPHS[name](12), 2, 2, 2, [0], (), 0)
    assert lengths(step, built) == [len(step.graph.ops)]
