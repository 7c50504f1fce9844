"""Trains a model of `both.py` by a plan in a file, with either framework; prints its losses.

Arguments: FRAMEWORK MODEL FOLDER. The folder has the plan, and the first parameters as NumPy has
them, or gets both.
"""

import importlib
import json
import sys
from pathlib import Path

import numpy as np

import autoddl
from autoddl.plans import Plan
from autoddl.runtime.jobs.guard import rank
from tests.pytorch.both import MODELS, batch

STEPS = 10


def main() -> None:
    framework, name, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    flow = importlib.import_module(framework)
    plan = Plan.load(folder / "plan.json")
    model, loss = MODELS[name](flow)
    with np.load(folder / "values.npz") as values:
        model.load_state_dict({key: flow.tensor(values[key]) for key in values.files})
    batches = [[flow.tensor(x) for x in batch(name, step)] for step in range(STEPS)]
    trainer = autoddl.parallelize(
        model, plan.cluster, example=batches[0], loss=loss, plan=plan,
        optimizer=lambda p: flow.optim.SGD(p, lr=0.1, momentum=0.9),
    )  # fmt: skip
    losses = [float(trainer.step(*one)) for one in batches]
    if rank() == 0:
        print(json.dumps(losses), flush=True)


main()
