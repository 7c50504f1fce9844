"""Changes of plans, and what becomes of a file that was changed so.

A change keeps the file a plan as far as its format goes: other placements, other steps (with those
around them made to fit, or not), other storage, blocks, buckets, turns, stages and schedules. What
loads is trained on NumPy's back end.
"""

import contextlib
import dataclasses
import functools
import json
import random
import threading
from collections.abc import Callable

import autograd.numpy as anp
import numpy as np
from autograd import grad

from autoddl.cost.sharded_storage import Storage, split_storage
from autoddl.graph.graph import Graph
from autoddl.graph.placed import PlannedEdge, PlannedOp
from autoddl.graph.regions import repeated_blocks
from autoddl.planner import baselines
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans import Plan, StagePlan
from autoddl.plans.schedule.orders import SCHEDULES
from autoddl.plans.stage_figures import stage_figures
from autoddl.runtime.nested import Slot
from autoddl.runtime.traced import Evaluation, Traced
from autoddl.runtime.trainer import Trainer
from autoddl.sbp.collectives import legal_steps
from autoddl.sbp.placement import B, NdSbp, P, Placement, S
from autoddl.sbp.redistribute import PathTable
from tests.exactness.numpy_backend import Momentum, NumPy, World
from tests.exactness.test_numpy_backend import MOMENTUM, batch, run, start
from tests.plans.test_mutations import WRONG, at, paths
from tests.runtime.random_plans import cluster_of, draw, planned_op, random_plan, with_zero

STEPS, RATE = 2, 0.01


def plans_of(graph: Graph) -> dict[str, Plan]:
    """Good plans of all kinds, which are changed."""
    four, line = cluster_of(2, 2), cluster_of(1, 4)
    found = {
        "found": find_plan(graph, four, PlanOptions(baselines=False)),
        "overlapped": find_plan(
            graph, four, PlanOptions(baselines=False, overlap=True, micro_batches=2)
        ),
        "turns": find_plan(
            graph, line, PlanOptions(baselines=False, overlap=True, micro_batches=4, in_flight=2)
        ),
        "stages": find_plan(graph, four, PlanOptions(stages=2, micro_batches=4)),
        "random": random_plan(graph, four, 1),
        "random in two": random_plan(graph, four, 2, micro_batches=2),
        "random on a line": random_plan(graph, line, 3, micro_batches=2, favour_splits=False),
    }
    options = PlanOptions(baselines=False, micro_batches=2)
    rows = find_plan(graph, four, options, space=baselines.data_parallel(graph))
    found["split"] = with_zero(rows, "mixed")
    found["split and again"] = with_zero(rows, "3").changed(recomputed=repeated_blocks(rows.graph))
    return found


# ---- changes: (plan, what is drawn) -> a plan that may be none


def _on_a_stage(change: Callable[[StagePlan, random.Random], StagePlan]):
    def changed(plan: Plan, rng: random.Random) -> Plan:
        number = rng.randrange(len(plan.stages))
        stages = list(plan.stages)
        stages[number] = change(stages[number], rng)
        return dataclasses.replace(plan, stages=tuple(stages))

    changed.__name__ = change.__name__
    return changed


def _table(stage: StagePlan) -> PathTable:
    return PathTable(stage.mesh, lambda kind, axes: (1.0, 1.0))


def _fitted(stage: StagePlan, ops: dict[str, PlannedOp]) -> StagePlan:
    """With steps that lead between the placements, where they have changed and any do."""
    table, edges = _table(stage), dict(stage.edges)
    for op in stage.graph.ops:
        for index, name in enumerate(op.inputs):
            producer = stage.graph.producers[name]
            out = producer.outputs.index(name)
            if ops[op.name] is stage.ops[op.name] and (
                ops[producer.name] is stage.ops[producer.name]
            ):
                continue
            given, taken = ops[producer.name], ops[op.name]
            spec = stage.graph.tensors[name].spec
            old = edges.get((op.name, index), PlannedEdge(op.name, index))
            try:
                forward = table.path(spec, given.outs[out], taken.ins[index])
                source, target = taken.grad_ins[index], given.grad_outs[out]
                back = () if source is None or target is None else table.path(spec, source, target)
            except (ValueError, AssertionError, IndexError):
                continue
            edges[op.name, index] = dataclasses.replace(old, forward=forward, backward=back)
    return dataclasses.replace(stage, ops=ops, edges=edges)


def another_signature(stage: StagePlan, rng: random.Random) -> StagePlan:
    """Of an operator; the steps around it are made to fit, mostly."""
    op = rng.choice(stage.graph.ops)
    chosen = draw(stage.graph, op, stage.mesh, rng, rng.random() < 0.5)
    ops = {**stage.ops, op.name: planned_op(stage.graph, op, chosen)}
    return _fitted(stage, ops) if rng.random() < 0.8 else dataclasses.replace(stage, ops=ops)


def another_placement(stage: StagePlan, rng: random.Random) -> StagePlan:
    """Of one tensor of an operator on one axis; likewise."""
    op = rng.choice(stage.graph.ops)
    placed = stage.ops[op.name]
    sides = [
        (side, n) for side in ("ins", "outs", "grad_outs", "grad_ins")
        for n, nd in enumerate(getattr(placed, side)) if nd is not None
    ]  # fmt: skip
    if not sides:
        return stage
    side, number = rng.choice(sides)
    old = getattr(placed, side)
    nd = _other(old[number], rng)
    new = dataclasses.replace(placed, **{side: (*old[:number], nd, *old[number + 1 :])})
    if rng.random() < 0.3 and side in ("ins", "outs"):  # and its gradient alike
        grads = getattr(new, f"grad_{side}")
        grads = (*grads[:number], grads[number] and nd, *grads[number + 1 :])
        new = dataclasses.replace(new, **{f"grad_{side}": grads})
    return _fitted(stage, {**stage.ops, op.name: new})


def _other(nd: NdSbp, rng: random.Random) -> NdSbp:
    axis = rng.randrange(len(nd))
    label: Placement = rng.choice((B, P, S(0), S(1), S(2)))
    return nd.replace((axis,), label)


def inner(stage: StagePlan, rng: random.Random) -> StagePlan:
    op = rng.choice(stage.graph.ops)
    axes = tuple(a for a in range(stage.mesh.num_axes) if rng.random() < 0.5)
    placed = dataclasses.replace(stage.ops[op.name], inner_axes=axes)
    return dataclasses.replace(stage, ops={**stage.ops, op.name: placed})


def swapped(stage: StagePlan, rng: random.Random) -> StagePlan:
    """Two operators have each other's placements."""
    a, b = rng.sample([op.name for op in stage.graph.ops], 2)
    ops = {**stage.ops, a: stage.ops[b], b: stage.ops[a]}
    return _fitted(stage, ops)


def another_way(stage: StagePlan, rng: random.Random) -> StagePlan:
    """Steps of an edge at random, which may lead to the same placement and may not."""
    op = rng.choice([op for op in stage.graph.ops if op.inputs])
    index = rng.randrange(len(op.inputs))
    producer = stage.graph.producers[op.inputs[index]]
    spec = stage.graph.tensors[op.inputs[index]].spec
    old = stage.edges.get((op.name, index), PlannedEdge(op.name, index))
    out = producer.outputs.index(op.inputs[index])
    forward = (stage.ops[producer.name].outs[out], stage.ops[op.name].ins[index])
    backward = (stage.ops[op.name].grad_ins[index], stage.ops[producer.name].grad_outs[out])
    side = rng.choice(("forward", "backward"))
    source, target = forward if side == "forward" else backward
    if source is None or target is None:
        source, target, side = *forward, "forward"
    nd, steps = source, []
    for _ in range(rng.randint(1, 3)):
        choices = list(legal_steps(nd, len(spec.shape)))
        if not choices:
            break
        steps.append(rng.choice(choices))
        nd = steps[-1].apply(nd)
    with contextlib.suppress(ValueError, AssertionError):
        steps += _table(stage).path(spec, nd, target)
    if rng.random() < 0.3:
        rng.shuffle(steps)
    return _edge(stage, dataclasses.replace(old, **{side: tuple(steps)}))


def _edge(stage: StagePlan, edge: PlannedEdge) -> StagePlan:
    return dataclasses.replace(stage, edges={**stage.edges, (edge.op, edge.index): edge})


def steps_of_another(stage: StagePlan, rng: random.Random) -> StagePlan:
    """One axis for another, a step that is not there, or two in another order."""
    edges = [e for e in stage.edges.values() if e.forward or e.backward]
    if not edges:
        return stage
    edge = rng.choice(edges)
    side = rng.choice([s for s in ("forward", "backward") if getattr(edge, s)])
    steps = list(getattr(edge, side))
    at, how = rng.randrange(len(steps)), rng.choice(("axes", "gone", "order", "twice", "label"))
    if how == "axes":
        size = rng.randint(1, stage.mesh.num_axes)
        axes = tuple(rng.sample(range(stage.mesh.num_axes), size))
        steps[at] = dataclasses.replace(steps[at], axes=axes)
    elif how == "gone":
        del steps[at]
    elif how == "order":
        rng.shuffle(steps)
    elif how == "twice":
        steps.append(steps[at])
    else:
        place = rng.choice((B, P, S(0), S(1)))
        steps[at] = dataclasses.replace(steps[at], **{rng.choice(("source", "target")): place})
    return _edge(stage, dataclasses.replace(edge, **{side: tuple(steps)}))


def no_edge(stage: StagePlan, rng: random.Random) -> StagePlan:
    if not stage.edges:
        return stage
    gone = rng.choice(list(stage.edges))
    return dataclasses.replace(stage, edges={k: e for k, e in stage.edges.items() if k != gone})


def stage_of_zero(stage: StagePlan, rng: random.Random) -> StagePlan:
    """A number beside the steps of a parameter."""
    readers = [
        (op.name, index) for op in stage.graph.ops for index, name in enumerate(op.inputs)
        if stage.graph.producers[name].kind == "param"
    ]  # fmt: skip
    if not readers:
        return stage
    key = rng.choice(readers)
    old = stage.edges.get(key, PlannedEdge(*key))
    return _edge(stage, dataclasses.replace(old, zero_stage=rng.randint(0, 3)))


def stored_split(stage: StagePlan, rng: random.Random) -> StagePlan:
    """Parameters in storages at random, wherever they can be split."""
    axes = range(stage.mesh.num_axes)
    storage = {
        op.outputs[0]: Storage(rng.randint(0, 3), tuple(a for a in axes if rng.random() < 0.6))
        for op in stage.graph.params
    }
    storage = {name: one for name, one in storage.items() if one.axes}
    comm = stage_figures(stage).model.comm
    try:
        ops, edges = split_storage(stage.graph, comm, storage, stage.ops, stage.edges)
    except (ValueError, AssertionError, IndexError):  # it is given plans that are whole
        return stage
    return dataclasses.replace(stage, ops=ops, edges=edges)


def blocks(stage: StagePlan, rng: random.Random) -> StagePlan:
    """Runs of operators, or any operators, that are computed again."""
    names = [op.name for op in stage.graph.ops if op.kind not in ("param", "input", "buffer")]
    if rng.random() < 0.5:
        rng.shuffle(names)
    found, begin = [], 0
    while begin < len(names):
        end = begin + rng.randint(1, 5)
        if rng.random() < 0.5:
            found.append(tuple(names[begin:end]))
        begin = end
    return dataclasses.replace(stage, recomputed=tuple(found))


def buckets(stage: StagePlan, rng: random.Random) -> StagePlan:
    """The gradients in others, in another order, some of which wait."""
    numbers = list(range(len(stage.exchanges)))
    rng.shuffle(numbers)
    found, begin = [], 0
    while begin < len(numbers):
        end = begin + rng.choice((1, 1, 1, 2, 3))
        found.append(tuple(numbers[begin:end]))
        begin = end
    if found and rng.random() < 0.2:
        found.append(rng.choice(found))
    waits = [rng.choice((0, 0, 1, 2, 5)) for _ in found] if rng.random() < 0.5 else []
    if waits and rng.random() < 0.2:
        waits[-1:] = rng.choice(([], [99], [0, 0]))
    return dataclasses.replace(stage, buckets=tuple(found), waits=tuple(waits))


def turns(stage: StagePlan, rng: random.Random) -> StagePlan:
    found = [list(turn) for turn in stage.turns] or [[0, 1], [1, 1]]
    one = rng.choice(found)
    one[rng.randrange(2)] = rng.randint(0, 9)
    if rng.random() < 0.5:
        rng.shuffle(found)
    return dataclasses.replace(stage, turns=tuple((a, b) for a, b in found))


def numbers(stage: StagePlan, rng: random.Random) -> StagePlan:
    name = rng.choice(("in_flight", "first", "last"))
    return dataclasses.replace(stage, **{name: getattr(stage, name) + rng.choice((-1, 1))})


def shares(stage: StagePlan, rng: random.Random) -> StagePlan:
    found = tuple(rng.randint(1, 3) for _ in range(rng.choice((1, 2, 2, 4))))
    return dataclasses.replace(stage, shares=found)


def schedule(plan: Plan, rng: random.Random) -> Plan:
    try:
        changed = plan.under(rng.choice(SCHEDULES), rng.choice((None, 0, 1, 2)))
    except (ValueError, AssertionError, IndexError):
        return plan
    return changed if rng.random() < 0.7 else dataclasses.replace(changed, stages=plan.stages)


def stages_in_another_order(plan: Plan, rng: random.Random) -> Plan:
    stages = list(plan.stages)
    rng.shuffle(stages)
    return dataclasses.replace(plan, stages=tuple(stages))


CHANGES = [
    *map(_on_a_stage, (
        another_signature, another_placement, inner, swapped, another_way, another_way,
        steps_of_another, steps_of_another, no_edge, stage_of_zero, stored_split, blocks, buckets,
        turns, numbers, shares,
    )),
    schedule, stages_in_another_order,
]  # fmt: skip


def by_fields(text: str, rng: random.Random) -> str:
    """One field or item gone, twice there, another's, or a wrong one."""
    data = json.loads(text)
    places = [path for path in paths(data) if path[0] not in ("graph", "cluster", "baselines")]
    *home, key = rng.choice(places)
    parent = at(data, tuple(home))
    how = rng.choice(("gone", "twice", "another's", "wrong"))
    if how == "gone":
        del parent[key]
    elif how == "twice" and isinstance(parent, list):
        parent.append(parent[key])
    elif how == "another's":
        parent[key] = at(data, rng.choice(places))
    else:
        parent[key] = rng.choice(WRONG)
    return json.dumps(data)


def changed_file(plan: Plan, seed: int) -> tuple[str, str]:
    """What was done, and the file's text."""
    rng = random.Random(seed)
    done = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        change = rng.choice(CHANGES)
        with contextlib.suppress(ValueError, IndexError, AssertionError, KeyError):
            plan = change(plan, rng)  # what is no plan any more may not be changed further
            done.append(change.__name__)
    text = plan.dumps()
    if rng.random() < 0.15:
        text = by_fields(text, rng)
        done.append("by_fields")
    return ", ".join(done), text


# ---- what becomes of it


@dataclasses.dataclass(frozen=True)
class Expected:
    """Of one process: losses, and parameters after all steps."""

    losses: list[float]
    params: dict[str, np.ndarray]


def expected_of(graph: Graph) -> Expected:
    params, velocity, losses = start(graph), {}, []
    for step in range(STEPS):
        x = batch(graph, step)
        losses.append(float(run(graph, params, x)[graph.loss]))
        slopes = grad(lambda p, x=x: anp.sum(run(graph, p, x)[graph.loss]))(params)
        velocity = {k: MOMENTUM * velocity.get(k, 0.0) + g for k, g in slopes.items()}
        params = {k: v - RATE * velocity[k] for k, v in params.items()}
    return Expected(losses, params)


def outcome(text: str, graph: Graph, expected: Expected) -> tuple[str, str]:
    """What becomes of a file ("refused" when it is read, "equal", or what is wrong), and why."""
    try:
        plan = Plan.loads(text)
        plan.check_model(graph)
    except ValueError as error:
        return "refused", str(error)
    except Exception as error:
        return "traceback", f"{type(error).__name__}: {error}"

    def train(backend: NumPy) -> tuple[list[float], dict[str, np.ndarray]]:
        params = start(graph)
        traced = Traced(graph, params, {}, {n: n for n in params}, evaluation=Evaluation(Slot(0)))
        optimizer = functools.partial(Momentum, lr=RATE, momentum=MOMENTUM)
        trainer = Trainer(traced, plan, optimizer, backend)
        losses = [float(trainer.step(batch(graph, step))) for step in range(STEPS)]
        return losses, trainer.state_dict()

    try:
        found = World(plan.cluster.num_devices).run(train)
    except threading.BrokenBarrierError:
        return "hang", ""
    except ValueError as error:
        # a plan for fewer rows than the model was traced with is told so by the first batch
        return ("refused" if "batch" in str(error) else "fails"), str(error)
    except Exception as error:
        return "traceback", f"{type(error).__name__}: {error}"
    for losses, params in found:
        if not np.allclose(losses, expected.losses, rtol=1e-9):
            return "other losses", f"{losses} {expected.losses}"
        for name, value in params.items():
            if not np.allclose(value, expected.params[name], rtol=1e-8, atol=1e-11):
                return "other parameters", name
    return "equal", ""
