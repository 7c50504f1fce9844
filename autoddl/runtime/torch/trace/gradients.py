"""The parameters that eager autograd reaches."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch._export.utils import _compiling_state_context  # type: ignore[import-not-found]
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.overrides import TorchFunctionMode  # type: ignore[import-not-found]
from torch.utils._pytree import tree_flatten  # type: ignore[import-not-found]

from ...tracing.instead import instead
from ...tracing.modes import reading_modes
from .exported import MODEL, Whole, plain_calls
from .opaque import leaves
from .repeats import Notes, Repeating


def reached(
    whole: Whole, example: Sequence[Tensor], notes: Notes | None = None, by_values: bool = False
) -> set[str]:
    """The parameters at which the loss's backward pass would end, without any memory for it.

    notes: of what the layers do on the way
    by_values: run on the example as it is, and not on fake tensors
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fake = torch.clone if by_values else mode.from_tensor
    quiet = instead(logging.getLogger(FakeTensorMode.__module__), "disabled", True)
    with nullcontext() if by_values else mode, torch.random.fork_rng(enabled=by_values), quiet:
        first: dict[int, str] = {}
        tensors: dict[str, Any] = {}
        for name, x in (*whole.named_parameters(), *whole.named_buffers()):
            own = fake(x.detach()).requires_grad_(x.requires_grad)
            tensors[name], first[id(own)] = own, name.removeprefix(f"{MODEL}.")
        given = tuple(fake(t) for t in example)
        try:
            loss = _results(whole, tensors, given, notes, by_values)[-1]
        except Exception:  # what has only a real kernel: as an export has it
            if by_values:
                raise
            with _compiling_state_context():
                loss = _results(whole, tensors, given, notes, by_values)[-1]
        else:
            if whole.carried.has_changed():
                with _Reading() as reading:
                    _results(whole, tensors, given, None, by_values)
                whole.carried.after_second(reading.read)
    return {first[id(x)] for x in leaves([loss.grad_fn]) if id(x) in first}


def asks_the_same(whole: Whole, notes: Notes) -> bool:
    """Whether the model, in another mode, asks torch for what it has asked in a run with notes."""
    watching, structure = Repeating(), whole.noted.structure
    watching.again = notes.asked.again()
    with suppress(Exception):
        tensors, given, compiles = notes.given
        with _compiling_state_context() if compiles else nullcontext():
            results = _results(whole, tensors, given, watching, False)
        return watching.again.ends(results) and whole.noted.structure == structure
    return False


class _Reading(TorchFunctionMode):
    """The ids of the tensors that are read meanwhile; that one has a shape does not count."""

    def __init__(self) -> None:
        super().__init__()
        self.read: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if result is None or any(isinstance(x, Tensor) for x in tree_flatten(result)[0]):
            self.read.update(map(id, tree_flatten((args, kwargs))[0]))
        return result


def _results(whole: Whole, tensors: Any, given: Any, watching: Any, by_values: bool) -> Any:
    eager = torch.compiler.set_stance("force_eager")  # compiled code would read fakes' memory
    modes, opaque = reading_modes(nn.Module, "torch.nn."), whole.opaque.noting(by_values)
    with watching or nullcontext(), plain_calls(), eager, opaque, modes as whole.noted.asked:
        results = functional_call(whole, tensors, given)
        if isinstance(watching, Notes):
            watching.read(results)
            watching.given = tensors, given, torch.compiler.is_compiling()
            watching.asked.results = results
    return results
