"""Run a traced graph in one process, operator by operator, to compare it with its model."""

from collections.abc import Sequence

import numpy as np
import oneflow as flow

from autoddl.graph.placed import PlannedOp
from autoddl.runtime.kernel import ByInput, Context, Explicit, RunState
from autoddl.runtime.nested import put_tensors
from autoddl.runtime.oneflow.kernels import KERNELS
from autoddl.sbp.layout import TensorSpec
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.placement import NdSbp
from autoddl.sbp.signature import OpSpec, find_rule

WHOLE = NdSbp(())


def context(kind, attrs, *shapes, out=(), mesh=None, nd=WHOLE, rank=0, state=None) -> Context:
    """Of an operator of one output, by default whole on one device."""
    spec = OpSpec(kind, attrs, tuple(map(TensorSpec, shapes)), (TensorSpec(out),))
    planned = PlannedOp((nd,) * len(shapes), (nd,), (nd,), (nd,) * len(shapes))
    return Context("op", spec, planned, mesh or Mesh(1, 1), rank, state or RunState(seed=3))


def run_graph(traced, example, graph=None):
    """(the model's result, the loss or None) of the traced graph, differentiable."""
    graph = graph or traced.graph
    values, loss, state = {}, None, RunState(seed=0)
    for op in graph.ops:
        inputs = [values[name] for name in op.inputs]
        if op.kind == "input":
            outputs = [example[op.attrs["index"]]]
        elif op.kind == "param":
            outputs = [traced.params[op.attrs["name"]]]
        elif op.kind == "buffer":
            outputs = [traced.buffers[op.attrs["name"]]]
        elif op.kind == "loss":
            (loss,), outputs = inputs, []
        elif op.kind == "opaque":
            outputs = traced.opaque[op.name].call(inputs, flow.Tensor)
        else:
            outputs = _run(op, graph.spec(op), inputs, state)
        for name, value in zip(op.outputs, outputs, strict=True):
            spec = graph.tensors[name].spec
            assert tuple(value.shape) == spec.shape, f"{name}: {tuple(value.shape)} is not {spec}"
            assert value.dtype == getattr(flow, spec.dtype), f"{name}: {value.dtype} is not {spec}"
            values[name] = value
    own = traced.evaluation
    return put_tensors(own.structure, [values[name] for name in own.names(graph)]), loss


def _run(op, spec, inputs, state) -> Sequence[flow.Tensor]:
    shapes = [tuple(t.shape for t in tensors) for tensors in (spec.inputs, spec.outputs)]
    rule = find_rule(op.kind)
    assert rule is not None
    attrs = rule.local_attrs(spec, *shapes)
    ins, outs = ((WHOLE,) * len(tensors) for tensors in (op.inputs, op.outputs))
    planned = PlannedOp(ins, outs, outs, ins)
    result = KERNELS[op.kind](Context(op.name, spec, planned, Mesh(1, 1), 0, state), inputs, attrs)
    return result.outputs if isinstance(result, Explicit | ByInput) else result


def assert_same_training(traced, model, example, loss, *, rel=1e-5):
    """The graph's output, loss and gradients equal the model's own."""
    _, found = run_graph(traced, example)
    assert found is not None
    grads = _gradients(found, traced.params)
    expected = loss(model(*example[:-1]), example[-1])
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=rel)
    for name, grad in _gradients(expected, traced.params).items():
        scale = np.abs(grad).max() + 1e-6
        np.testing.assert_allclose(grads[name] / scale, grad / scale, atol=10 * rel, err_msg=name)


def _gradients(loss, params):
    for parameter in params.values():
        parameter.grad = None
    loss.backward()
    return {k: p.grad.numpy().copy() for k, p in params.items() if p.grad is not None}
