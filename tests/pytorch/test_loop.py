"""The loop around the step, as OneFlow's tests have it: clipping, groups, a schedule, averages,
evaluation and going on by other plans equal one process to 1e-6 (`tests/runtime/workers/loop.py`).
"""

import json
from pathlib import Path

import pytest
import torch

from autoddl.runtime.torch.backend import Torch
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.placement import NdSbp
from tests.runtime.loop_cells import PLACES
from tests.runtime.loop_cells import cases as cells

WORKER = Path(__file__).parents[1] / "runtime" / "workers" / "loop.py"
STAGED = {"stages": 2, "micro_batches": 4}
WHOLE = {"optimizer": "groups", "steps": 2, "ema": 0.7}
ONE_AXIS = {"nodes": 1, "gpus": 4, "seed": 4}
FULL = pytest.mark.full


@pytest.mark.parametrize(
    "cases",
    [
        [
            {"model": "perceptron", "clip": 0.3, "zero": "mixed", "micro_batches": 2},
            {"model": "transformer", "clip": 0.3, "hook": True, **STAGED},
            {
                "model": "perceptron",
                "seed": 0,
                **WHOLE,
                "scored": [8, 3],
                "then": [ONE_AXIS, STAGED],
            },
        ],
        pytest.param(
            [
                {"model": "transformer", "clip": 0.3, "seed": 0, "hook": True},
                {"model": "transformer", "clip": 0.3, **STAGED, **WHOLE, "then": [ONE_AXIS]},
                {"model": "dense", "zero": "mixed", **WHOLE, "then": [{}], "uninterrupted": True},
            ],
            marks=FULL,
        ),
    ],
    ids=["quick", "more"],
)
def test_a_loop_in_parallel_is_that_of_one_process(launch, cases):
    out = launch(WORKER, 4, json.dumps(cases))
    assert out.count("equal: ") == len(cases), out


@FULL
@pytest.mark.parametrize("place", PLACES)
def test_each_part_of_a_loop_is_that_of_one_process(launch, place):
    every = cells(place)
    out = launch(WORKER, 4, json.dumps(every), timeout=900)
    assert out.count("equal: ") == len(every), out


class Lars(torch.optim.SGD):
    """By norms of parameters and gradients, as whoever wrote it had them whole."""

    def step(self, closure=None):
        for group in self.param_groups:
            for x in group["params"]:
                x.grad *= x.detach().norm() / x.grad.norm()
        super().step(closure)


own = torch.optim
BY_ELEMENT = (
    own.SGD, own.Adam, own.AdamW, own.NAdam, own.RAdam, own.Adamax, own.Adagrad, own.Adadelta,
    own.RMSprop, own.Rprop, own.ASGD,
)  # fmt: skip


@pytest.mark.parametrize(
    "kind", [*BY_ELEMENT, own.Adafactor, own.Muon, Lars], ids=lambda k: k.__name__
)
def test_who_reads_norms_of_parameters_is_given_no_parts(kind):
    """Parts of a parameter would each be changed by a norm of its own."""
    backend, mesh = Torch(), Mesh(1, 2)
    whole, part = (
        backend.parameter((4, 4), "float32", NdSbp.parse(nd), mesh, 0, True)[0]
        for nd in ("(B)", "(S0)")
    )
    assert backend.optimizer(lambda p: kind(p, lr=0.0), [whole])
    if kind in BY_ELEMENT:
        assert backend.optimizer(lambda p: kind(p, lr=0.0), [whole, part])
        assert part.grad is None
    else:
        with pytest.raises(ValueError, match=f"{kind.__name__} does not work element by element"):
            backend.optimizer(lambda p: kind(p, lr=0.0), [whole, part])
