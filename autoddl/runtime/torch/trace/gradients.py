"""Whether a graph's gradients reach the parameters that eager autograd reaches."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch._export.utils import _compiling_state_context  # type: ignore[import-not-found]
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call

from ....graph.graph import Graph
from .exported import MODEL, Whole, plain_calls
from .opaque import leaves
from .repeats import Notes


def check_gradients(whole: Whole, eager: set[str], graph: Graph) -> None:
    """ValueError unless both reach the same parameters, or if they reach none."""
    planned = {op.attrs["name"] for op in graph.params if op.outputs[0] in graph.needs_grad}
    if not planned:
        raise ValueError(
            "no parameter that needs a gradient takes part in the loss; give the model parameters "
            "with requires_grad=True, or trace it without a loss"
        )
    unsure = whole.opaque.unsure(whole)
    planned, eager = planned - unsure, eager - unsure
    if planned != eager:
        lost, new = sorted(eager - planned), sorted(planned - eager)
        what = f"{lost[0]} no gradient" if lost else f"{new[0]} a gradient that it has not in torch"
        raise ValueError(
            f"the trace of {type(whole.model).__name__} would give {what} (one of "
            f"{len(lost) + len(new)} such parameters): autoddl does not follow what autograd does "
            "in this model, and does not train it wrongly"
        )


def reached(
    whole: Whole,
    example: Sequence[torch.Tensor],
    notes: Notes | None = None,
    by_values: bool = False,
) -> set[str]:
    """The parameters at which the loss's backward pass would end, without any memory for it.

    notes: of what the layers do on the way
    by_values: run on the example as it is, and not on fake tensors
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fake = torch.clone if by_values else mode.from_tensor
    with nullcontext() if by_values else mode, torch.random.fork_rng(enabled=by_values):
        first: dict[int, str] = {}
        tensors: dict[str, Any] = {}
        for name, x in (*whole.named_parameters(), *whole.named_buffers()):
            own = fake(x.detach()).requires_grad_(x.requires_grad)
            tensors[name], first[id(own)] = own, name.removeprefix(f"{MODEL}.")
        given = tuple(fake(t) for t in example)
        log = logging.getLogger(FakeTensorMode.__module__)
        log.disabled = True
        try:
            loss = _loss(whole, tensors, given, notes, by_values)
        except Exception:  # what has only a real kernel: as an export has it
            if by_values:
                raise
            with _compiling_state_context():
                loss = _loss(whole, tensors, given, notes, by_values)
        finally:
            log.disabled = False
    return {first[id(x)] for x in leaves([loss.grad_fn]) if id(x) in first}


def _loss(
    whole: Whole, tensors: Any, given: Any, notes: Notes | None, by_values: bool
) -> torch.Tensor:
    eager = torch.compiler.set_stance("force_eager")  # compiled code would read fakes' memory
    with notes or nullcontext(), plain_calls(), eager, whole.opaque.noting(by_values):
        results = functional_call(whole, tensors, given)
        if notes is not None:
            notes.read(results)
    return results[-1]
