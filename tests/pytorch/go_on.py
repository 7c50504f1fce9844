"""Saves what training goes on from with one framework, or goes on from it with the other.

Arguments: FRAMEWORK MODEL OPTIMIZER save|load FOLDER. Prints the losses of the steps after it.
"""

import importlib
import json
import sys

import autoddl
from tests.pytorch.both import MODELS, batch


def main() -> None:
    framework, name, kind, call, folder = sys.argv[1:]
    flow = importlib.import_module(framework)
    model, loss = MODELS[name](flow)
    batches = [[flow.tensor(x) for x in batch(name, step)] for step in range(6)]
    made = {
        "momentum": lambda p: flow.optim.SGD(p, lr=0.1, momentum=0.9),
        "adam": lambda p: flow.optim.Adam(p, lr=1e-2),
    }
    trainer = autoddl.parallelize(
        model, autoddl.Cluster.load("laptop").with_shape(1, 1), example=batches[0], loss=loss,
        optimizer=made[kind],
    )  # fmt: skip
    if call == "save":
        for one in batches[:3]:
            trainer.step(*one)
        trainer.save(folder, {"read": 3})
    else:
        assert trainer.load(folder) == {"read": 3} and trainer.steps == 3
    print(json.dumps([float(trainer.step(*one)) for one in batches[3:]]), flush=True)


main()
