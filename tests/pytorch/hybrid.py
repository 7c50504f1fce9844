"""Trains ResNet-50 with a large classifier by its hints, on all ranks and alone; prints JSON.

Whale's hybrid (Jia et al., ATC 2022): features in copies, the classifier in parts. The ResNet-50 is
transformers' own, on small images. In double precision: after three steps one process in float32
is some per cent from one in float64, as gradients through so many norms of few rows are uncertain.
Argument: where the plan goes to.
"""

import json
import sys

import torch
from torch import nn
from transformers import ResNetConfig, ResNetModel

import autoddl
from autoddl import Cluster
from autoddl.runtime.jobs.guard import rank
from tests.pytorch.models import relative

CLASSES, ROWS, PIXELS, STEPS = 16_384, 16, 32, 3


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = ResNetModel(ResNetConfig())  # bottlenecks, 3 + 4 + 6 + 3 of them
        self.classifier = nn.Linear(2048, CLASSES)

    def forward(self, images):
        x = self.features(images).pooler_output.flatten(1)
        return self.classifier(x)


class Hybrid(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = ResNetModel(ResNetConfig())  # bottlenecks, 3 + 4 + 6 + 3 of them
        self.classifier = nn.Linear(2048, CLASSES)

    def forward(self, images):
        with autoddl.replicate():
            x = self.features(images).pooler_output.flatten(1)
        with autoddl.split():
            return self.classifier(x)


def built(kind):
    torch.manual_seed(0)
    return kind().double()


def batch(step):
    generator = torch.Generator().manual_seed(step)
    images = torch.randn(ROWS, 3, PIXELS, PIXELS, generator=generator, dtype=torch.float64)
    return images, torch.randint(0, CLASSES, (ROWS,), generator=generator)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=1e-2, momentum=0.9)


def alone():
    """The losses and the last state of one process in eager torch, without hints."""
    model, loss, losses = built(Plain), nn.CrossEntropyLoss(), []
    own = optimizer(model.parameters())
    for step in range(STEPS):
        images, labels = batch(step)
        own.zero_grad()
        value = loss(model(images), labels)
        value.backward()
        own.step()
        losses.append(value.item())
    return losses, model.state_dict()


def main():
    torch.set_num_threads(1)
    trainer = autoddl.parallelize(
        built(Hybrid), Cluster.load("laptop"), example=batch(0), loss=nn.CrossEntropyLoss(),
        optimizer=optimizer, baselines=False,
    )  # fmt: skip
    found = [float(trainer.step(*batch(step))) for step in range(STEPS)]
    state = trainer.state_dict()
    if rank() == 0:
        trainer.plan.save(sys.argv[1])
        losses, expected = alone()
        assert state.keys() == expected.keys()
        apart = {k: (state[k] - v).double().norm() / v.double().norm() for k, v in expected.items()}
        far = max(float(x) for x in apart.values())
        print(json.dumps({"losses": max(map(relative, found, losses)), "parameters": far}))


if __name__ == "__main__":
    main()
