"""Makes the trainer of a rank, when all ranks of its job ask for the same."""

from __future__ import annotations

import atexit
import platform
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...plans.figures import figures
from ..backend import Backend, OptimizerFn
from ..traced import Traced
from ..trainer import Plan, Trainer
from .agreement import check_alike, lines_of, plain, say_unlike
from .guard import be_patient, expect_link, inside, patient

_TIMES_PREDICTED = 10.0  # a step takes more only where the machine file is of another machine
# bytes a second: of a model that is set up more slowly ranks count as lost. The framework may be at
# work in threads of its own meanwhile, which to a watcher looks like idleness
_SLOWEST = 1e7


@inside("parallelize")
def start_trainer(
    traced: Traced,
    plan: Plan,
    optimizer: OptimizerFn,
    backend: Backend,
    options: Mapping[str, Any],
    kind: type[Trainer] = Trainer,
) -> Trainer:
    """The trainer of this rank. All ranks of the job call it, behind the guard.

    options: of `Trainer`
    kind:    the class of the trainer

    Raises ValueError unless the ranks have the same plan, options, versions and optimizer. Of the
    model's values rank 0's are taken.
    """
    said = {
        "plan": plan.dumps(),
        "option": lines_of(plain(options)),
        "version": _versions(backend),
    }
    check_alike(said, backend)
    values = (op for op in plan.graph.ops if op.kind in ("param", "buffer"))
    size = sum(plan.graph.tensors[op.outputs[0]].spec.bytes for op in values)
    with patient(size / _SLOWEST):
        say_unlike("the model's initial values", {**traced.params, **traced.buffers}, backend)
        trainer = kind(traced, plan, optimizer, backend, **options)
        check_alike({"optimizer": trainer.alike.as_made()}, backend)
    be_patient(_TIMES_PREDICTED * figures(plan).iteration_s)
    expect_link(1.0 / plan.cluster.inter.beta_s_per_byte)
    atexit.register(trainer.roll_call.at_exit)
    return trainer


def _versions(backend: Backend) -> str:
    return lines_of(
        {
            "of": backend.facts.framework,
            "NumPy": np.__version__,
            "Python": platform.python_version(),
        }
    )
