"""Modules that the user has declared opaque: operators of the export, which run as they are.

Before the export the model runs once, on fake tensors, and each call of such a module is noted: its
arguments, its results, and which of its parameters autograd reaches. A module that looks at values
cannot run so; then the model runs once on the example. In the export, each call is one operator.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from ...kernel import OpaqueFn
from ...nested import map_leaves, put_tensors, take_tensors
from ...traced import OpaqueCall, places_of
from ...tracing.checks import check_changes, check_rows, opaque_modules
from .repeats import LIBRARY

LIBRARY.define("opaque(Tensor[] given, Tensor[] like, int number) -> Tensor[]")
OPAQUE = torch.ops.autoddl.opaque.default


@torch.library.register_fake("autoddl::opaque", lib=LIBRARY)
def _opaque(given: Any, like: Sequence[Tensor], number: int) -> list[Tensor]:
    return [x.new_empty(x.shape) for x in like]


@dataclass(frozen=True)
class Noted:
    """A call of an opaque module, as it ran.

    form:    the result, with slots; given, made: the tensors of arguments and result
    trained: names of the parameters that get a gradient
    """

    call: OpaqueCall
    form: Any
    given: Sequence[Tensor]
    made: Sequence[Tensor]
    trained: frozenset[str]


@dataclass
class Opaque:
    """The opaque modules of a model with its loss, and their calls in one run, in order.

    by_values: the run was on the example's values, so that another may reach other parameters
    """

    modules: dict[str, nn.Module]
    calls: list[Noted] = field(default_factory=list)
    by_values: bool = False
    _refused: str = ""

    @staticmethod
    def of(whole: nn.Module) -> Opaque:
        """The outermost ones of a model with its loss."""
        return Opaque(opaque_modules(whole))

    @contextmanager
    def noting(self, by_values: bool) -> Iterator[None]:
        """Inside, the modules run and their calls are noted."""
        self.calls, self.by_values = [], by_values
        with self._instead(self._noted):
            yield

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Inside, the modules' calls are calls of the operator."""
        with self._instead(functools.partial(self._once, iter(range(len(self.calls))))):
            yield

    @contextmanager
    def _instead(self, make: Callable[[str, nn.Module], Callable[..., Any]]) -> Iterator[None]:
        """Inside, calls of the modules, hooks and all, are calls of what is made for each."""
        made = {path: make(path, module) for path, module in self.modules.items()}
        for path, module in self.modules.items():
            module.__dict__["_call_impl"] = made[path]
        try:
            yield
        finally:
            for module in self.modules.values():
                del module.__dict__["_call_impl"]

    def _noted(self, path: str, module: nn.Module) -> Callable[..., Any]:
        own, shown = module._call_impl, path.removeprefix("model").removeprefix(".") or "the model"

        def call(*args: Any, **kwargs: Any) -> Any:
            structure, given = take_tensors((args, kwargs), Tensor)
            params, buffers = dict(module.named_parameters()), dict(module.named_buffers())
            places, modes = places_of(module.modules()), [(m, m.training) for m in module.modules()]
            held = {**params, **buffers}
            before = {**held, **{f"argument {n}": x for n, x in enumerate(given)}}
            versions = {name: x._version for name, x in before.items()}
            result = own(*args, **kwargs)
            form, made = take_tensors(result, Tensor)
            changed = {n for n, x in before.items() if x._version != versions[n]}
            check_changes(module, shown, buffers, dict(module.named_buffers()), changed)
            check_rows(module, shown, given, made)
            trained = _reached(made, given, params, shown)
            if self.by_values:  # with other values it may reach others
                trained = frozenset(n for n, x in params.items() if x.requires_grad)
            found = OpaqueCall(
                shown, module, structure, len(given), tuple(held),
                tuple(places[id(x)] for x in held.values()), tuple(modes),
            )  # fmt: skip
            self.calls.append(Noted(found, form, given, made, trained))
            return result

        return call

    def _once(self, numbers: Iterator[int], path: str, module: nn.Module) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            number = next(numbers)
            noted = self.calls[number]
            structure, given = take_tensors((args, kwargs), Tensor)
            map_leaves(structure, torch.SymInt, self._refuse)
            if self._refused or structure != noted.call.arguments:
                raise ValueError(
                    f"{noted.call.path} gets {self._refused or 'other arguments than before'}, and "
                    "a part of the batch would get the same; compute it inside"
                )
            held = [
                x if name in noted.trained or not x.requires_grad else x.detach()
                for name, x in (*module.named_parameters(), *module.named_buffers())
            ]
            like = [_like(noted, x, given) for x in noted.made]
            results = OPAQUE([*given, *held], like, number)
            ended = [x.is_floating_point() and not x.requires_grad for x in noted.made]
            pairs = zip(results, ended, strict=True)
            return put_tensors(noted.form, [y.detach() if ends else y for y, ends in pairs])

        return call

    def unsure(self, whole: nn.Module) -> set[str]:
        """The parameters of which nobody knows whether they always get a gradient."""
        held = {id(x) for m in self.modules.values() for x in m.parameters()}
        named = whole.named_parameters()
        return {n.removeprefix("model.") for n, x in named if self.by_values and id(x) in held}

    def _refuse(self, size: Any) -> Any:
        self._refused = "a number that follows the batch"
        return size


def _like(noted: Noted, made: Tensor, given: Sequence[Tensor]) -> Tensor:
    """A tensor of the result's shape, whose rows are those of an argument."""
    pairs = zip(given, noted.given, strict=True)
    rows = [x.shape[0] for x, old in pairs if old.shape[:1] == made.shape[:1] and old.ndim]
    shape = [*rows[:1], *made.shape[1:]] if rows else made.shape
    return torch.zeros((), dtype=made.dtype, device=made.device).expand(shape)


def _reached(
    made: Sequence[Tensor], given: Sequence[Tensor], params: dict[str, Tensor], path: str
) -> frozenset[str]:
    """The parameters at which the backward pass of the results ends, before the arguments."""
    own = {id(x): name for name, x in params.items()}
    before = {get_gradient_edge(x).node for x in given if x.requires_grad}
    found = [own.get(id(x)) for x in leaves((x.grad_fn for x in made), before)]
    if None in found:
        raise ValueError(
            f"{path} reads tensors that it is not given, past its arguments; pass them as arguments"
        )
    return frozenset(map(str, found))


def leaves(nodes: Iterable[Any], before: Iterable[Any] = ()) -> Iterator[Tensor]:
    """The tensors at which a backward pass from these nodes of autograd ends, before others."""
    stack, seen = [*nodes], {None, *before}
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            yield leaf
        stack += [earlier for earlier, _ in node.next_functions]


def as_kernel(call: OpaqueCall) -> OpaqueFn:
    """Run `call` in training or evaluation mode; what is random in it comes from the seed."""

    def run(tensors: Sequence[Tensor], training: bool, seed: int) -> list[Tensor]:
        devices = {x.get_device() for x in tensors if x.is_cuda}
        with torch.random.fork_rng(devices, enabled=training):
            if training:
                torch.manual_seed(seed)
            return call.call(tensors, Tensor, training)

    return run
