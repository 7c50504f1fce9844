"""The neutral trainer on NumPy: parallel training equals one process, without any framework.

The one process differentiates the whole graph at once, by the reference operators alone.
"""

import dataclasses
import functools
import tempfile
import weakref

import autograd.numpy as anp
import numpy as np
import pytest
from autograd import grad

from autoddl.cluster.spec import HostGroup
from autoddl.graph.graph import Graph
from autoddl.graph.regions import repeated_blocks
from autoddl.planner.baselines import data_parallel
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.planner.schemes import each_baseline
from autoddl.plans import Plan
from autoddl.runtime.comm.groups import Groups
from autoddl.runtime.comm.passing import Passing
from autoddl.runtime.execution.buckets import Bucket
from autoddl.runtime.feed import Feed
from autoddl.runtime.nested import Slot
from autoddl.runtime.traced import Evaluation, Traced
from autoddl.runtime.trainer import Trainer
from autoddl.runtime.update.loss_scale import LossScaler
from autoddl.sbp.collectives import Step
from autoddl.sbp.placement import B, S
from autoddl.sbp.signature import signatures_of
from tests import graphs
from tests.exactness.numpy_backend import Momentum, World
from tests.runtime.random_plans import cluster_of, random_plan, with_zero
from tests.sbp import operators

SMALLEST = pytest.mark.parametrize(
    "graph", ["mlp", pytest.param("attention", marks=pytest.mark.full)], indirect=True
)
STEPS, RATE, MOMENTUM = 3, 1e-3, 0.9
LIMIT = 0.5  # of the gradients' norm, which is larger


def in_float64(graph: Graph, path) -> Graph:
    """The graph in double precision, by way of a file."""
    tensors = {
        name: dataclasses.replace(t, spec=dataclasses.replace(t.spec, dtype="float64"))
        for name, t in graph.tensors.items()
    }
    dataclasses.replace(graph, tensors=tensors).save(path)
    return Graph.load(path)


MODELS = {
    "mlp": lambda: graphs.mlp(8, (16, 32, 8)),
    "attention": lambda: graphs.attention(2, 8, 4, 16, 4),
}


@pytest.fixture(params=MODELS)
def graph(request, tmp_path):
    return in_float64(MODELS[request.param](), tmp_path / "graph.json")


def start(graph):
    rng = np.random.default_rng(1)
    shapes = {op.attrs["name"]: graph.tensors[op.outputs[0]].spec.shape for op in graph.params}
    return {name: 0.3 * rng.standard_normal(shape) for name, shape in shapes.items()}


def batch(graph, step):
    (op,) = (op for op in graph.ops if op.kind == "input")
    shape = graph.tensors[op.outputs[0]].spec.shape
    return np.random.default_rng(100 + step).standard_normal(shape)


def run(graph, params, x):
    """Every tensor of the graph."""
    values = {}
    for op in graph.ops:
        if op.kind == "input":
            values[op.outputs[0]] = x
        elif op.kind == "param":
            values[op.outputs[0]] = params[op.attrs["name"]]
        elif op.kind != "loss":
            outs = operators.FORWARD[op.kind]([values[n] for n in op.inputs], op.attrs, None)
            values.update(zip(op.outputs, outs, strict=True))
    return values


def clipped(slopes, limit):
    """The gradients, scaled to a norm of at most `limit`, and the norm that they had."""
    norm = np.sqrt(sum((g**2).sum() for g in slopes.values()))
    return {k: g * min(1.0, limit / (norm + 1e-6)) for k, g in slopes.items()}, norm


def alone(graph):
    """Losses and norms, parameters after all steps, and what the model then gives."""
    params, velocity, losses, norms = start(graph), {}, [], []
    for step in range(STEPS):
        x = batch(graph, step)
        losses.append(run(graph, params, x)[graph.loss])
        slopes = grad(lambda p, x=x: anp.sum(run(graph, p, x)[graph.loss]))(params)
        slopes, norm = clipped(slopes, LIMIT)
        norms.append(norm)
        velocity = {k: MOMENTUM * velocity.get(k, 0.0) + g for k, g in slopes.items()}
        params = {k: v - RATE * velocity[k] for k, v in params.items()}
    return (losses, norms), params, run(graph, params, batch(graph, 9))[graph.outputs[0]]


def check(graph, plan: Plan, then: Plan | None = None):
    """Trains by `plan`, after a step by `then` or the same, from the state, and compares."""
    expected = alone(graph)
    assert max(expected[0][1]) > LIMIT
    params = start(graph)
    traced = Traced(graph, params, {}, {n: n for n in params}, evaluation=Evaluation(Slot(0)))

    def train(folder, backend):
        optimizer = functools.partial(Momentum, lr=RATE, momentum=MOMENTUM)
        options = {"debug": True, "clip_grad_norm": LIMIT}
        trainer = Trainer(traced, plan, optimizer, backend, scaler=LossScaler(), **options)
        losses, norms = [], []
        for step in range(STEPS):
            assert trainer.steps == step
            losses.append(trainer.step(batch(graph, step)))
            norms.append(trainer.grad_norm)
            if step == 0:
                trainer.save(folder)
                other = functools.partial(Momentum, lr=9.0, momentum=MOMENTUM)
                scaler = LossScaler(1.0)
                trainer = Trainer(traced, then or plan, other, backend, scaler=scaler, **options)
                trainer.load(folder)
                assert (scaler.scale, scaler.good_steps) == (2.0**16, 1)
        trainer.load_state_dict(trainer.state_dict())
        x = batch(graph, 9)
        results = [trainer.eval_step(x), trainer.eval_step(x[:-3])]  # some do not divide that
        return (losses, norms), trainer.state_dict(), results

    with tempfile.TemporaryDirectory() as folder:
        found = World(plan.cluster.num_devices).run(functools.partial(train, folder))
    for losses, params, (result, short) in found:
        np.testing.assert_allclose(short, expected[2][:-3], rtol=1e-9)
        np.testing.assert_allclose(losses, expected[0], rtol=1e-10)
        np.testing.assert_allclose(result, expected[2], rtol=1e-9)
        assert params.keys() == expected[1].keys()
        for name, value in params.items():
            np.testing.assert_allclose(
                value, expected[1][name], rtol=1e-9, atol=1e-12, err_msg=name
            )


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.full) for n in (0, 2, 3))])
def test_random_placements(graph, seed):
    plan = random_plan(graph, cluster_of(2, 2), seed, micro_batches=1 + seed % 2)
    check(graph, Plan.loads(plan.dumps()))


def test_uses_of_a_weight_that_share_a_fork(tmp_path):
    tied = in_float64(graphs.tied(8, 16), tmp_path / "graph.json")
    check(tied, random_plan(tied, cluster_of(2, 2), 3, micro_batches=2))


@pytest.mark.parametrize("parts", [1, 2])
def test_gradients_whose_way_splits_them_twice_travel_as_one(graph, parts, monkeypatch):
    """First inside the hosts, then between them, other dims of each gradient."""
    options = PlanOptions(micro_batches=parts)
    _, plan = next(each_baseline(graph, cluster_of(2, 2), options))
    assert plan is not None
    way = (
        "reduce_scatter[1] P->S0; reduce_scatter[0] P->S1; all_gather[0] S1->B; all_gather[1] S0->B"
    )
    edges, every = dict(plan.stage.edges), plan.stage.exchanges
    matrices = [n for n, one in enumerate(every) if len(one.spec.shape) == 2]
    for n in matrices:
        steps = tuple(map(Step.parse, way.split("; ")))
        edges[every[n].key] = dataclasses.replace(edges[every[n].key], backward=steps)
    others = [(n,) for n in range(len(every)) if n not in matrices]
    buckets = (*others, tuple(matrices))
    stage = dataclasses.replace(plan.stage, edges=edges, buckets=buckets, waits=())
    travelling = []
    monkeypatch.setattr(Bucket, "packed", noted(Bucket.packed, travelling))
    check(graph, Plan.on_one_mesh(stage))
    assert (len(matrices), True) in travelling


def noted(packed, travelling):
    def run(bucket, gradients):
        travelling.append((len(gradients), bucket.travel is not None))
        return packed(bucket, gradients)

    return run


@SMALLEST
def test_training_goes_on_by_another_plan(graph):
    """From two axes to one, and on in stages."""
    four = random_plan(graph, cluster_of(2, 2), 0)
    staged = find_plan(graph, cluster_of(2, 2), PlanOptions(stages=2, micro_batches=4))
    check(graph, four, random_plan(graph, cluster_of(1, 4), 1))
    check(graph, four, staged)
    check(graph, staged, four)


@pytest.mark.parametrize("stage", [3, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 2))])
def test_parameters_stored_split_and_blocks_run_again(graph, stage):
    """Data parallelism, whose parameters ZeRO's stages divide."""
    forked = graph.with_batch(4).with_forks()

    def by_rows(op):
        labels = [[S(0) if forked.tensors[n].batch_dims else B for n in op.inputs]]
        labels += [] if op.inputs else [[S(0) if op.kind == "input" else B]]
        fits = [s for s in signatures_of(forked.spec(op)) if list(s.ins or s.outs) == labels[-1]]
        return [fits[0]] * 2

    plan = random_plan(graph, cluster_of(2, 2), 0, micro_batches=2, fixed=by_rows)
    plan = with_zero(plan, str(stage))
    assert {stage} <= {edge.zero_stage for edge in plan.stage.edges.values()}
    check(graph, plan.changed(recomputed=repeated_blocks(plan.graph)))


@pytest.mark.parametrize("schedule", ["zb-h1", pytest.param("1f1b", marks=pytest.mark.full)])
def test_two_stages(graph, schedule):
    options = PlanOptions(stages=2, schedule=schedule, micro_batches=4)
    plan = find_plan(graph, cluster_of(2, 2), options)
    check(graph, plan)


@pytest.mark.parametrize("schedule", ["1f1b", pytest.param("zb-h1", marks=pytest.mark.full)])
@SMALLEST
def test_stages_on_unlike_hosts_in_either_order(graph, schedule):
    """Two stages on hosts of two kinds; the first layers are on the last hosts in one of them."""
    where = cluster_of(2, 2)
    rates = {dtype: rate / 4 for dtype, rate in where.device.flops_per_s.items()}
    slow = dataclasses.replace(where.device, flops_per_s=rates, operators={})
    groups = HostGroup("fast", 1), HostGroup("slow", 1, slow)
    options = PlanOptions(stages=2, schedule=schedule, micro_batches=4)
    plan = find_plan(graph, dataclasses.replace(where, groups=groups), options)
    turned = tuple(
        dataclasses.replace(
            s, place=dataclasses.replace(s.place, first_node=1 - s.place.first_node)
        )
        for s in plan.stages
    )
    other = dataclasses.replace(where, groups=groups[::-1])
    for own in (plan, dataclasses.replace(plan, cluster=other, stages=turned)):
        own.verify()
        assert Plan.loads(own.dumps()).dumps() == own.dumps()
        check(graph, own)


@pytest.mark.parametrize("schedule", ["1f1b", pytest.param("zb-h1", marks=pytest.mark.full)])
def test_a_stage_on_hosts_of_two_kinds(schedule, tmp_path):
    """Two unlike layers on one fast host and two slow ones: alone, one or the other has to wait."""
    graph = in_float64(graphs.mlp(32, (16, 32, 4)), tmp_path / "graph.json")
    where = cluster_of(3, 1)
    rates = {dtype: 1e6 for dtype in where.device.flops_per_s}
    device = dataclasses.replace(where.device, flops_per_s=rates, efficiency={}, operators={})
    slow = dataclasses.replace(device, flops_per_s={d: r / 3 for d, r in rates.items()})
    groups = HostGroup("fast", 1), HostGroup("slow", 2, slow)
    unlike = dataclasses.replace(where, device=device, groups=groups)
    plan = find_plan(graph, unlike, PlanOptions(stages=2, schedule=schedule, baselines=False))
    assert [(str(s.place), s.shares) for s in plan.stages] == [
        ("host 0-1 devices 0", (3, 1)),
        ("host 2 devices 0", ()),
    ]
    plan.verify()
    assert Plan.loads(plan.dumps()).dumps() == plan.dumps()
    check(graph, plan)


@SMALLEST
def test_a_host_that_a_hint_leaves_as_little_as_possible(graph):
    """8 rows on three of four hosts."""
    plan = find_plan(graph, cluster_of(4, 1), PlanOptions(hints={"host 2": "least"}))
    assert plan.stage.shares[2] == 0 and sum(plan.stage.shares) in (3, 4, 8)
    check(graph, Plan.loads(plan.dumps()))


def test_what_a_stage_receives_lives_as_long_as_its_micro_batch(tmp_path, monkeypatch):
    """1F1B's last stage has one in work, and at most one that has come ahead; all had been kept."""
    graph, seen, most = in_float64(MODELS["mlp"](), tmp_path / "graph.json"), [], [0]
    plan = find_plan(graph, cluster_of(1, 2), PlanOptions(stages=2, micro_batches=4))
    transfer = Passing.transfer

    def noted(self, action, number):
        transfer(self, action, number)
        if action.kind == "RF":
            (value,) = self._parts[number].inputs[action.micro_batch].values()
            seen.append(weakref.ref(value))
            del value
            most[0] = max(most[0], sum(ref() is not None for ref in seen))

    monkeypatch.setattr(Passing, "transfer", noted)
    params = start(graph)
    traced = Traced(graph, params, {}, {n: n for n in params}, evaluation=Evaluation(Slot(0)))

    optimizer = functools.partial(Momentum, lr=RATE, momentum=MOMENTUM)

    def train(backend):
        Trainer(traced, plan, optimizer, backend).step(batch(graph, 0))

    World(2).run(train)
    assert len(seen) == 4 and 1 <= most[0] <= 2


def test_a_rank_that_fails_ends_the_job(graph):
    def fail(backend):
        if backend.rank == 1:
            raise ZeroDivisionError
        backend.broadcast(np.zeros(1), 0)

    with pytest.raises(ZeroDivisionError):
        World(4).run(fail)


def test_of_a_batch_elsewhere_only_a_ranks_rows_come_to_its_device(monkeypatch):
    graph, where = graphs.mlp(8, (4, 4)), cluster_of(2, 1)
    options = PlanOptions(overlap=False, micro_batches=2, shares="3:1")
    stage = find_plan(graph, where, options, space=data_parallel(graph)).stage
    batch = np.arange(32, dtype=np.float32).reshape(8, 4)

    def rows(backend):
        came = []
        monkeypatch.setattr(backend, "cast", lambda x, dtype: came.append(x.shape[0]) or x)
        groups = Groups(stage.mesh, backend.rank, backend)
        parts = Feed(stage.graph, stage.ops, 2, groups).take([batch])
        return came, [x[:, 0].tolist() for part in parts for x in part.values()]

    (first, _), (second, read) = World(2).run(rows)
    assert (first, second) == ([3, 3], [1, 1])
    assert read == [[12], [28]]


def test_a_whole_tensor_beside_a_ranks_own_rows_of_another_is_refused():
    """These would be rows of the first device's, trained with those of the whole batch."""
    builder = graphs.Builder(8)
    x, y = builder.input(0, (8, 4)), builder.input(1, (8, 4))
    y = builder.linear("layer", builder.op("sum of both", "add_n", (x, y), (8, 4)), 4)
    graph, where = builder.graph(y, "two"), cluster_of(2, 1)
    options = PlanOptions(overlap=False, micro_batches=1)
    stage = find_plan(graph, where, options, space=data_parallel(graph)).stage
    whole = np.ones((8, 4), np.float32)

    def rows(backend):
        feed = Feed(stage.graph, stage.ops, 1, Groups(stage.mesh, backend.rank, backend))
        feed.take([whole, whole])
        feed.take([whole[:4], whole[:4]])
        with pytest.raises(ValueError, match="tensors of 4 and of 8 rows: give the global batch"):
            feed.take([whole, whole[:4]])

    World(2).run(rows)
