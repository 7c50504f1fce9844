"""An operator that autoddl does not know: its rule with facets, and its kernel for OneFlow.

Run as a program on every rank of a job, it trains a model with that operator, and compares with one
device.
"""

from collections.abc import Iterator

from autoddl.sbp.rules.build import labelled
from autoddl.sbp.signature import OpSpec, Signature, rule

KIND = "cumprod"


@rule(KIND, saves="x0 y0", nonlinear=True)
def running_product(op: OpSpec) -> Iterator[Signature]:
    """x -> y, running products along dim `dim`, which therefore stays whole."""
    whole = op.attrs["dim"] % len(op.inputs[0].shape)
    dims = tuple(None if d == whole else d for d in range(len(op.inputs[0].shape)))
    yield from labelled(op, (dims,), (dims,))


def main() -> None:
    """Train on all ranks of the job and on this one alone; print how the operator was placed."""
    import oneflow as flow

    import autoddl
    from autoddl.runtime.oneflow.kernels.registry import kernel
    from tests.clusters import cluster

    @kernel(KIND)
    def running_product_kernel(ctx, inputs, attrs):
        return [flow.cumprod(inputs[0], attrs["dim"])]

    class Model(flow.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = flow.nn.Linear(256, 256), flow.nn.Linear(256, 256)

        def forward(self, x: flow.Tensor) -> flow.Tensor:
            return self.last(flow.cumprod(1 + self.first(x) / 256, 1))

    def sgd(parameters):
        return flow.optim.SGD(parameters, lr=1e-3)

    flow.manual_seed(0)
    alone, model, loss = Model(), Model(), flow.nn.MSELoss()
    model.load_state_dict(alone.state_dict())
    batches = [(flow.randn(1024, 256), flow.randn(1024, 256)) for _ in range(3)]
    trainer = autoddl.parallelize(
        model,
        cluster("laptop", 2, 2),
        example=batches[0],
        loss=loss,
        optimizer=sgd,
        debug=True,
    )
    optimizer = sgd(alone.parameters())
    for x, y in batches:
        expected = loss(alone(x), y)
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
        found = float(trainer.step(x, y))
        assert abs(found - float(expected)) < 1e-5 * float(expected), (found, float(expected))
    (op,) = [op for op in trainer.plan.graph.ops if op.kind == KIND]
    print("placed", trainer.plan.stage.ops[op.name].outs[0])


if __name__ == "__main__":
    main()
