"""Trains flowvision's ResNet-50 with a large classifier by hints from outside, and alone.

Rank 0 prints how far the two are apart, as JSON. In double precision, as gradients through so many
norms of few rows are uncertain by some per cent in float32. Argument: where the plan goes to.
"""

import json
import sys

import numpy as np
import oneflow as flow
from flowvision.models import resnet50

import autoddl
from autoddl import Cluster
from autoddl.runtime.jobs.guard import rank

CLASSES, ROWS, PIXELS, STEPS = 16_384, 16, 32, 3
HINTS = {"default": "replicate()", "fc": "split()"}


def built():
    flow.manual_seed(0)
    return resnet50(num_classes=CLASSES).to(flow.float64)


def batch(step):
    rng = np.random.default_rng(step)
    images = rng.standard_normal((ROWS, 3, PIXELS, PIXELS))
    return flow.tensor(images), flow.tensor(rng.integers(0, CLASSES, ROWS))


def optimizer(parameters):
    return flow.optim.SGD(parameters, lr=1e-2, momentum=0.9)


def alone():
    """The losses and the last state of one process in eager OneFlow, without hints."""
    model, loss, losses = built(), flow.nn.CrossEntropyLoss(), []
    own = optimizer(model.parameters())
    for step in range(STEPS):
        images, labels = batch(step)
        value = loss(model(images), labels)
        value.backward()
        own.step()
        own.zero_grad()
        losses.append(float(value))
    return losses, {name: value.numpy() for name, value in model.state_dict().items()}


def apart(found, expected):
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def main():
    trainer = autoddl.parallelize(
        built(), Cluster.load("laptop"), example=batch(0), loss=flow.nn.CrossEntropyLoss(),
        optimizer=optimizer, baselines=False, hints=HINTS,
    )  # fmt: skip
    found = [float(trainer.step(*batch(step))) for step in range(STEPS)]
    state = trainer.state_dict()
    if rank() == 0:
        trainer.plan.save(sys.argv[1])
        losses, expected = alone()
        assert state.keys() == expected.keys()
        far = max(apart(state[name].numpy(), value) for name, value in expected.items())
        print(json.dumps({"losses": apart(np.array(found), np.array(losses)), "parameters": far}))


if __name__ == "__main__":
    main()
