"""A three-layer perceptron under many random assignments of signatures to its layers.

Arguments: nodes, GPUs per node, how many assignments, the first one's seed.
"""

import sys

import numpy as np
import oneflow as flow

from autoddl.runtime.jobs.guard import rank
from autoddl.runtime.oneflow.trace.trace import trace_with_state
from autoddl.runtime.oneflow.trainer import build_trainer
from tests.runtime.random_plans import cluster_of, random_plan
from tests.runtime.small_models import Perceptron, floats, mean_square

ROWS = 16


def main() -> None:
    nodes, gpus, count, first = map(int, sys.argv[1:])
    flow.manual_seed(0)
    model = Perceptron(16)
    rng = np.random.default_rng(0)
    x, y = floats(rng, ROWS, 8), floats(rng, ROWS, 8)
    traced = trace_with_state(model, x, y, loss=mean_square)
    loss = mean_square(model(x), y)
    loss.backward()
    expected = {name: p.grad.numpy() for name, p in model.named_parameters()}
    layers = set()
    for seed in range(first, first + count):
        # every third one takes all signatures alike, also those that share no work
        plan = random_plan(traced.graph, cluster_of(nodes, gpus), seed, favour_splits=seed % 3 > 0)
        layers |= {str(plan.stage.ops[op.name].ins) for op in plan.graph.ops if "matmul" in op.kind}
        trainer = build_trainer(traced, plan, lambda p: flow.optim.SGD(p, lr=1.0))
        got = float(trainer.step(x, y))
        after = trainer.state_dict()
        if rank() == 0:
            np.testing.assert_allclose(got, float(loss), rtol=1e-5, err_msg=f"plan {seed}")
            for name, gradient in expected.items():
                before = dict(model.named_parameters())[name].numpy()
                np.testing.assert_allclose(
                    before - after[name].numpy(),
                    gradient,
                    rtol=1e-3,
                    atol=1e-5 * np.abs(gradient).max() + 1e-6,
                    err_msg=f"plan {seed}, {name}",
                )
    if rank() == 0:
        print(f"equal under {count} plans with {len(layers)} placements of a product's inputs")


main()
