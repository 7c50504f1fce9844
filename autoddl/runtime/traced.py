"""What tracing gives: a graph, and what the runtime needs beside it."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ..graph.builder import Factor, Size
from ..graph.graph import Graph
from ..graph.hints import recorded
from ..sbp.layout import TensorSpec
from .backend import Tensor
from .calling import Calling
from .nested import Slot, map_leaves, put_tensors, take_tensors

Trace = TypeVar("Trace", bound=Callable[..., Any])
Place = tuple[dict[str, Any], str]  # a module's table of tensors, and the name there


class OpaqueWarning(UserWarning):
    """A submodule runs as one operator because of something unknown inside it."""


def levels_to_caller() -> int:
    """The `stacklevel` with which a warning points at the code that called autoddl."""
    package = os.path.dirname(os.path.dirname(__file__))
    levels, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        levels, frame = levels + 1, frame.f_back
    return levels


def with_hints(trace: Trace) -> Trace:
    """`trace` of a model, whose graph then has the hints of the model's own code."""

    @functools.wraps(trace)
    def tracing(model: Any, *example: Any, **options: Any) -> Traced:
        if not hasattr(model, "named_modules"):
            return trace(model, *example, **options)
        with recorded(model.named_modules()) as found:
            traced = trace(model, *example, **options)
        graph = replace(traced.graph, hints=tuple(dict.fromkeys(found)))
        return replace(traced, graph=graph) if found else traced

    return tracing  # type: ignore[return-value]


def state_keys(model: Any, tensor: type) -> dict[str, str]:
    """Key of a model's `state_dict` -> the first name of that tensor; tied ones share it."""
    first: dict[int, str] = {}
    items = model.state_dict(keep_vars=True).items()
    return {key: first.setdefault(id(x), key) for key, x in items if isinstance(x, tensor)}


def first_names(whole: Any) -> dict[str, str]:
    """Name of a parameter or buffer -> the first name of it in the model; tied ones share it."""
    first: dict[int, str] = {}
    found = {}
    for named in (whole.named_parameters, whole.named_buffers):
        for name, x in named(remove_duplicate=False):
            found[name] = first.setdefault(id(x), name.removeprefix("model."))
    return found


@dataclass(frozen=True)
class OpaqueCall:
    """One call of a module (or of the loss) that the runtime repeats with other tensors.

    It runs unchanged, as one operator. Its inputs are the call's tensor arguments, then the tensors
    that hang in the module: its parameters and, on PyTorch, its buffers; its outputs are the
    tensors that the call returns.

    arguments: nested, by place and by name, with a Slot for each tensor
    params:    names of the tensors that hang in the module
    places:    of each of them, where it hangs: tied ones at several places
    modes:     modules in it, and whether each is in training mode; others are as they are found
    """

    path: str
    function: Callable[..., Any]
    arguments: Any
    num_arguments: int
    params: tuple[str, ...]
    places: tuple[tuple[Place, ...], ...]
    modes: tuple[tuple[Any, bool], ...] = ()

    def does_as(self, other: OpaqueCall) -> bool:
        """Whether the other one would do the same; False where that cannot be told."""
        ours, theirs = ((x.path, x.params, x.arguments) for x in (self, other))
        try:  # True, 1 and 1.0 are equal, but do not look alike
            return bool(ours == theirs) and repr(ours) == repr(theirs)
        except ValueError:  # arrays
            return False

    def call(self, tensors: Sequence[Tensor], kind: type, training: bool = True) -> list[Tensor]:
        """Run on `tensors`, the arguments and then the parameters; gives the returned tensors.

        kind: of tensors; training: False puts the module into evaluation mode meanwhile
        """
        if len(tensors) != self.num_arguments + len(self.params):
            raise ValueError(
                f"{self.path or 'the model'} takes {self.num_arguments} tensors and "
                f"{len(self.params)} parameters, got {len(tensors)} tensors"
            )
        args, kwargs = put_tensors(self.arguments, tensors)
        with self._mode(training), self._holding(tensors[self.num_arguments :]):
            _, results = take_tensors(self.function(*args, **kwargs), kind)
        return results

    @contextmanager
    def _mode(self, training: bool) -> Iterator[None]:
        """The module is in evaluation mode unless `training`."""
        own: Any = self.function
        modules = list(own.modules()) if hasattr(own, "modules") else []
        flags, wanted = [module.training for module in modules], dict(self.modes)
        try:
            for module in modules:
                module.training = wanted.get(module, module.training) and training
            yield
        finally:
            for module, flag in zip(modules, flags, strict=True):
                module.training = flag

    @contextmanager
    def _holding(self, tensors: Sequence[Tensor]) -> Iterator[None]:
        """The modules hold `tensors` in the places of their own."""
        saved = [(table, key, table[key]) for own in self.places for table, key in own]
        for own, tensor in zip(self.places, tensors, strict=True):
            for table, key in own:
                table[key] = tensor
        try:
            yield
        finally:
            for table, key, tensor in saved:
                table[key] = tensor


def places_of(modules: Iterable[Any]) -> dict[int, tuple[Place, ...]]:
    """Where each parameter and buffer hangs, by its id."""
    found: dict[int, tuple[Place, ...]] = {}
    for module in modules:
        for table in (module._parameters, module._buffers):
            for key, x in table.items():
                if x is not None:
                    found[id(x)] = (*found.get(id(x), ()), (table, key))
    return found


@dataclass(frozen=True)
class Evaluation:
    """What a model gives in evaluation, where its graph is that of training and evaluation.

    structure: its result with a `Slot` in the place of each tensor, and of the example's batch
               numbers that follow it
    results:   of each slot, which one of the graph's outputs it is; None: as many as these
    unlike:    why the graph does not say what the model does in evaluation, if it does not
    no_loss:   why there is no loss of what the model gives in evaluation, if there is none
    """

    structure: Any = None
    results: tuple[int, ...] | None = None
    unlike: str = ""
    no_loss: str = ""

    def names(self, graph: Graph) -> tuple[str, ...]:
        """The tensors of the slots, by their names in a planned graph."""
        outputs = graph.outputs
        return outputs if self.results is None else tuple(outputs[n] for n in self.results)

    def graph(self, graph: Graph) -> Graph:
        """A planned graph of both modes as it is in evaluation."""
        found = graph.in_mode(training=False)
        return replace(found, loss="") if self.no_loss else found

    def check(self) -> None:
        """ValueError if the graph does not say what the model does in evaluation."""
        if self.unlike:
            raise ValueError(
                "the model computes otherwise in evaluation (self.training), in a way that a plan "
                f"does not follow: {self.unlike}; evaluate the model itself on one process, with "
                "trainer.state_dict()"
            )


@dataclass(frozen=True)
class Traced:
    """A graph and what the runtime needs beside it.

    params:    dotted name -> parameter; tied parameters are there once, under their first name
    buffers:   dotted name -> buffer, and "#k" -> eager tensor that the model read from elsewhere;
               those that the graph does not read (BatchNorm's counter) are there too
    keys:      of the model's `state_dict` -> the name of that tensor; tied ones share it
    opaque:    operator name -> how to run it, for each operator of kind `opaque` (`Kernels.opaque`)
    evaluation: of the graph's outputs those that the model gives in evaluation
    examples:  the specs of all tensors of the example, in the order of `calling`
    calling:   how the model is called with a batch; None if only its tensors are known
    constants: tensors beside parameters and buffers whose values the graph has as numbers
    model:     the user's, if it is known; loss: that with which it trains
    """

    graph: Graph
    params: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    keys: Mapping[str, str]
    opaque: Mapping[str, OpaqueCall] = field(default_factory=dict)
    evaluation: Evaluation = Evaluation()
    examples: tuple[TensorSpec, ...] = ()
    calling: Calling | None = None
    constants: tuple[Tensor, ...] = ()
    model: Any = None
    loss: Any = None

    @property
    def batches(self) -> Calling:
        """How batches are given: as the example, or else as all tensors that the graph reads."""
        read = (op.attrs["index"] for op in self.graph.ops if op.kind == "input")
        return self.calling or Calling(tuple(map(Slot, range(max(read, default=-1) + 1))))

    def result(self, tensors: Sequence[Tensor | None], rows: int) -> Any:
        """What the model gives in evaluation, of its tensors for so many rows."""
        share = rows / self.graph.batch if self.graph.batch else 1.0

        def at(number: Any) -> Any:
            value = number * share**number.exponent
            return round(value) if isinstance(number, int) else value

        sized = map_leaves(self.evaluation.structure, (Size, Factor), at)
        return put_tensors(sized, tensors)
