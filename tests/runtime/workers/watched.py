"""Checks that only planned collectives run, that debug mode watches, and options on several ranks.

Arguments: what to check.
"""

import sys
from collections import Counter

import numpy as np
import oneflow as flow
import oneflow.nn as nn
import pytest

import autoddl
from autoddl.graph.batch_norm import with_batch_norm
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.runtime.jobs.guard import rank, world_size
from autoddl.runtime.kernel import ByInput, Explicit
from autoddl.runtime.oneflow.kernels import KERNELS
from autoddl.runtime.oneflow.trace.trace import trace_with_state
from autoddl.runtime.oneflow.trainer import build_trainer
from autoddl.sbp.signature import signatures_of
from tests.runtime.random_plans import cluster_of, planned_op, random_plan, with_paths
from tests.runtime.small_models import floats, mean_square
from tests.runtime.training import build

CLUSTER = cluster_of(1, world_size())


def trainer_of(name, seed=0, parts=1, plan=None, **options):
    model, loss, batch = build(name)
    traced = trace_with_state(model, *batch(0, 8), loss=loss)
    plan = plan or random_plan(traced.graph, CLUSTER, seed, micro_batches=parts)
    return build_trainer(traced, plan, lambda p: flow.optim.SGD(p, lr=0.1), **options), batch


def only_planned_collectives():
    """The collectives of a step are the plan's, each as often as planned."""
    for name, seed in (("transformer", 0), ("convnet", 1)):
        parts = 2 if name == "transformer" else 1
        trainer, batch = trainer_of(name, seed, parts=parts)
        plan, graph = trainer.plan, trainer.graph
        planned = Counter()
        for op in graph.ops:
            for index, tensor in enumerate(op.inputs):
                edge, producer = plan.stage.edges[op.name, index], graph.producers[tensor]
                carries = tensor in graph.needs_grad and plan.stage.ops[op.name].grad_ins[index]
                times = 1 if producer.kind == "param" else parts
                steps = (*edge.forward, *(edge.backward if carries else ()))
                for step in steps:
                    planned[step.kind, step.axes] += 0 if step.is_free else times
        inner = [op for op in plan.stage.ops.values() if op.inner_axes]
        trainer._job.groups.log = []
        trainer.step(*batch(0, 8))
        ran = Counter((t.kind, t.axes) for t in trainer._job.groups.log)
        extra = ran - planned
        assert not planned - ran, planned - ran
        allowed = {op.inner_axes for op in inner}
        assert {axes for _, axes in extra} <= allowed, (extra, allowed)


def debug_mode_sees_a_broken_kernel():
    """A kernel that gives other values on one rank is named."""
    right = KERNELS["relu"]

    def wrong(ctx, inputs, attrs):
        result = right(ctx, inputs, attrs)
        assert not isinstance(result, Explicit | ByInput)
        return [y + float(rank()) for y in result]

    KERNELS["relu"] = wrong
    model, loss, batch = build("perceptron")
    traced = trace_with_state(model, *batch(0, 8), loss=loss)
    graph = traced.graph.with_forks()
    mesh = CLUSTER.mesh
    ops = {
        op.name: planned_op(graph, op, [signatures_of(graph.spec(op))[-1]] * mesh.num_axes)
        for op in graph.ops
    }
    plan = with_paths(graph, CLUSTER, ops, 1, 0)
    trainer = build_trainer(traced, plan, lambda p: flow.optim.SGD(p, lr=0.1), debug=True)
    try:
        trainer.step(*batch(0, 8))
    except AssertionError as error:
        assert "relu (relu), output 0: planned as" in str(error), error
    else:
        raise RuntimeError("debug mode has seen nothing")
    finally:
        KERNELS["relu"] = right


def dropout_agrees_on_replicas():
    """Debug mode compares replicas after every operator; two runs give the same losses."""
    runs, plan = [], None
    for debug in (True, False):
        trainer, batch = trainer_of("dropout", 0, plan=plan, debug=debug)
        plan = trainer.plan
        runs.append([float(trainer.step(*batch(step, 8))) for step in range(2)])
    assert runs[0] == runs[1], runs


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn, self.dense = nn.BatchNorm1d(6), nn.Linear(6, 4)

    def forward(self, x):
        return self.dense(self.bn(x))


def batchnorm_of_each_shard():
    """With batch_norm="shard" each device's rows have statistics of their own."""
    rng = np.random.default_rng(0)
    x, y = floats(rng, 8, 6), floats(rng, 8, 4)
    flow.manual_seed(0)
    model = Normed()
    traced = trace_with_state(model, x, y, loss=mean_square)
    graph = with_batch_norm(traced.graph, "shard").with_forks()
    mesh = CLUSTER.mesh
    assert all(s.inner is None for op in graph.ops for s in signatures_of(graph.spec(op)))

    def rows(op):
        choices = signatures_of(graph.spec(op))
        split = [s for s in choices if s.outs and s.outs[0].is_split and s.outs[0].dim == 0]
        wants = op.kind not in ("param", "buffer") and split
        return [split[0] if wants else choices[-1]] * mesh.num_axes

    ops = {op.name: planned_op(graph, op, rows(op)) for op in graph.ops}
    plan = with_paths(graph, CLUSTER, ops, 1, 0)
    sgd = lambda p: flow.optim.SGD(p, lr=0.1)  # noqa: E731
    trainer = build_trainer(traced, plan, sgd, debug=True)
    got = [float(trainer.step(x, y)) for _ in range(2)]
    state = trainer.state_dict()
    shards = [Normed() for _ in range(mesh.size)]
    for shard in shards:
        shard.load_state_dict(model.state_dict())
    for step in range(2):
        expected = 0.0
        for i, shard in enumerate(shards):
            part = slice(i * 8 // mesh.size, (i + 1) * 8 // mesh.size)
            loss = mean_square(shard(x[part].clone()), y[part].clone()) / mesh.size
            loss.backward()
            expected += float(loss)
        np.testing.assert_allclose(got[step], expected, rtol=1e-5)
        for same in zip(*(shard.parameters() for shard in shards), strict=True):
            gradient = sum(p.grad.numpy() for p in same)
            for p in same:
                p.data.copy_(flow.tensor(p.numpy() - 0.1 * gradient))
                p.grad = None
    for key in ("bn.running_mean", "bn.running_var"):
        mean = np.mean([shard.state_dict()[key].numpy() for shard in shards], axis=0)
        np.testing.assert_allclose(state[key].numpy(), mean, rtol=1e-5, atol=1e-6)
    assert int(state["bn.num_batches_tracked"]) == 2
    out = trainer.eval_step(x).numpy()
    model.load_state_dict(state)
    model.eval()
    np.testing.assert_allclose(out, model(x).numpy(), rtol=1e-4, atol=1e-6)


def spoil_gradients(update):
    """As a faulty device does."""
    right = update.run

    def wrong(*given):
        for state in update.states.values():
            for name, gradient in state.gradients.items():
                state.gradients[name] = gradient * float("nan")
        return right(*given)

    update.run = wrong


def one_rank_is_heard_by_all():
    """A number that is none on one rank, and a batch of its own, raise everywhere."""
    last = world_size() - 1
    model, loss, batch = build("perceptron")
    traced = trace_with_state(model, *batch(0, 8), loss=loss)
    for stages in (None, 2):
        plan = find_plan(traced.graph, CLUSTER, PlanOptions(stages=stages, optimizer="sgd"))
        trainer, _ = trainer_of("perceptron", plan=plan)
        trainer.step(*batch(0, 8))
        if rank() == last:
            spoil_gradients(trainer._update)
        trainer.step(*batch(1, 8))
        with pytest.raises(FloatingPointError, match=rf"step 2: a gradient .*on rank {last}\)"):
            trainer.step(*batch(2, 8))
        trainer, _ = trainer_of("perceptron", plan=plan)
        with pytest.raises(RuntimeError, match="call number 1: tensor 0 of the batch is not"):
            trainer.step(*batch(rank(), 8))


def other_set_ups_are_refused():
    """What differs on one rank is named on all, before anything is trained."""
    bad, batch = bool(rank()), (flow.ones(8, 4), flow.ones(8, 4))
    sgd = lambda p: flow.optim.SGD(p, lr=0.1)  # noqa: E731
    faster = lambda p: flow.optim.SGD(p, lr=0.2)  # noqa: E731
    adam = lambda p: flow.optim.Adam(p, lr=0.1)  # noqa: E731
    good = {
        "width": 4, "loss": nn.MSELoss(), "optimizer": sgd, "cluster": CLUSTER, "stages": None
    }  # fmt: skip
    for other, message in (
        ({"width": 8}, r"model: 0.weight .*\[4, 4\].* on rank 0 but .*\[8, 4\].* on rank 1"),
        ({"loss": nn.L1Loss()}, "model: .*square.* on rank 0 but .*abs.* on rank 1"),
        (
            {"micro_batches": 2},
            "option: micro_batches None on rank 0 but micro_batches 2",
        ),
        ({"batch_norm": "shard"}, "option: batch_norm batch on rank 0 but batch_norm shard"),
        ({"debug": True}, "option: debug False on rank 0 but debug True on rank 1"),
        ({"cluster": cluster_of(2, 1)}, "cluster: .* on rank 0 but .* on rank 1"),
        ({"optimizer": adam, "stages": 2}, "optimizer: class SGD on rank 0 but class Adam"),
        (
            {"optimizer": faster, "stages": 2},
            "SGD with lr 0.1 on rank 0 but SGD with lr 0.2",
        ),
    ):
        asked = {**good, "stages": other.get("stages"), **(other if bad else {})}
        width = asked.pop("width")
        model = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 4))
        with pytest.raises(ValueError, match=message):
            autoddl.parallelize(model, asked.pop("cluster"), example=batch, **asked)


CHECKS = (
    other_set_ups_are_refused,
    one_rank_is_heard_by_all,
    only_planned_collectives,
    debug_mode_sees_a_broken_kernel,
    dropout_agrees_on_replicas,
    batchnorm_of_each_shard,
)
{check.__name__: check for check in CHECKS}[sys.argv[1]]()
if rank() == 0:
    print(f"{sys.argv[1]} holds")
