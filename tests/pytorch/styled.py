"""Trains a model as an exported file says, with torch alone, and compares with one process.

Arguments: MODEL FILE... Rank 0 prints for each file the worst relative difference of a loss.
"""

import runpy
import sys

import torch
import torch.distributed as dist

from tests.pytorch.models import ROWS, build, relative

STEPS = 4


def alone(name):
    model, loss, batch = build(name)
    own = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(STEPS):
        x, y = batch(step)
        own.zero_grad()
        value = loss(model(x), y)
        value.backward()
        own.step()
        losses.append(float(value.detach()))
    return losses


def together(name, file):
    model, loss, batch = build(name)
    model, mesh = runpy.run_path(file)["parallelize"](model)
    own = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    replicas = mesh["data"].size()
    rows = ROWS // replicas
    losses = []
    for step in range(STEPS):
        mine = slice(
            mesh["data"].get_local_rank() * rows, (mesh["data"].get_local_rank() + 1) * rows
        )
        x, y = (t[mine] for t in batch(step))
        own.zero_grad()
        value = loss(model(x), y)
        value.backward()
        own.step()
        mean = value.detach().clone()
        dist.all_reduce(mean, group=mesh["data"].get_group())
        losses.append(float(mean) / replicas)
    return losses


def main(name, *files):
    dist.init_process_group("gloo")
    expected = alone(name)
    for file in files:
        pairs = zip(together(name, file), expected, strict=True)
        worst = max(relative(found, wanted) for found, wanted in pairs)
        if dist.get_rank() == 0:
            print(f"WORST {worst:.2e}")
    dist.destroy_process_group()


main(*sys.argv[1:])
