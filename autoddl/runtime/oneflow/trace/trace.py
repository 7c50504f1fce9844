"""Traces a OneFlow module to a `Graph`.

    module --lazy mode--> job --read--> raw operators --opaque calls collapsed, no-ops dropped,
    dead operators dropped--> Graph with canonical names

The job is built at the example's batch and at twice that batch; comparing the two tells which sizes
and factors depend on the batch (`batch.py`). Nothing is computed: OneFlow infers shapes only. Of
layers that are alike a few run (`job/repeats.py`), in the second job only the first of those that
issued the same in the first one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import oneflow as flow
import oneflow.nn as nn

from ....graph.graph import Graph
from ....graph.hints import is_opaque
from ....sbp.signature import find_rule, is_random
from ...calling import Calling
from ...jobs.guard import rank
from ...nested import numbers
from ...traced import (
    Evaluation,
    OpaqueCall,
    OpaqueWarning,
    Traced,
    levels_to_caller,
    state_keys,
    with_hints,
)
from ...tracing.carried import Carried
from ...tracing.modes import Mode, evaluated, join
from .batch import Scaling, compare, same_values, sized
from .emit import emit
from .errors import check_local, check_loss, check_model, check_trainable, explain_failure
from .job.job import LazyJob, build_job, check_passes
from .job.meta import shape_only
from .job.raw import RawJob, read_job
from .job.recorder import CallError
from .job.repeats import expanded
from .one_operator import with_operators
from .opaque import Collapsed, collapse
from .simplify import Simplified, simplify, stop_gradients
from .unknown import path_of, rewriting_modules, unknown_operators

Known = Callable[[str], bool]
LossFn = Callable[[Any, Any], flow.Tensor]


def trace(
    model: nn.Module,
    *example: Any,
    loss: LossFn | None = None,
    name: str | None = None,
    known: Known | None = None,
) -> Graph:
    """The graph of `model` on `example`; see `trace_with_state`."""
    return trace_with_state(model, *example, loss=loss, name=name, known=known).graph


@with_hints
def trace_with_state(
    model: nn.Module,
    *example: Any,
    loss: LossFn | None = None,
    name: str | None = None,
    known: Known | None = None,
) -> Traced:
    """Trace `loss(model(*example[:-1]), example[-1])`, or `model(*example)` without a loss.

    The example's items may be nested, or it may be one dict; see `runtime.calling`.
    Only the example's shapes and dtypes matter. The model is left as it was. It is traced in
    training mode: a model in evaluation mode is put into training mode for the trace, in one that
    trains already, submodules in evaluation mode (a frozen BatchNorm) stay in it. As in every lazy
    OneFlow program, a write to a view (`x.view(-1).add_(1)`) does not reach the viewed tensor.
    known: tells of an operator kind whether it can be planned and run; a submodule that holds one
           which cannot becomes an opaque operator, with an `OpaqueWarning`
    Raises ValueError if the model cannot be traced, saying which submodule failed and why.
    """
    check_model(model)
    calling, tensors = Calling.of(example, model.forward, flow.Tensor, loss is not None)
    check_local(tensors)
    source = _Source(model, tuple(tensors), loss, calling)
    known = known or is_known
    name = name or type(model).__name__
    carried = Carried(model.named_modules(), flow.Tensor)
    try:
        attempt, found, reasons, evaluation = _in_training_and_evaluation(source, known, name)
        if attempt.lazy.leaves:
            opaque = [call.function for call in found.opaque.values()]
            check_passes(model, source.example, calling, loss is not None, opaque)
        carried.check()
    finally:
        carried.restore()
    check_trainable(found.graph)
    _warn(found.graph, reasons)
    return Traced(
        found.graph,
        dict(model.named_parameters()),
        {**dict(model.named_buffers()), **found.captured},
        state_keys(model, flow.Tensor),
        found.opaque,
        evaluation,
        tuple(attempt.raw.specs[name] for name in attempt.lazy.inputs),
        calling,
        model=model,
        loss=loss,
    )


def is_known(kind: str) -> bool:
    """True if an operator kind has a rule, to be planned by, and a kernel, to be run by."""
    from ..kernels import KERNELS

    return find_rule(kind) is not None and kind in KERNELS


@dataclass(frozen=True)
class _Source:
    """What is traced.

    apart:  paths of layers that looked alike to a job and are not
    proven: in training and in evaluation, path of a layer -> those that issued the same in a job
    """

    model: nn.Module
    example: tuple[flow.Tensor, ...]
    loss: LossFn | None
    calling: Calling
    apart: set[str] = field(default_factory=set)
    proven: dict[bool, dict[str, frozenset[str]]] = field(default_factory=dict)

    @property
    def batch(self) -> int:
        """The examples' common dim 0; 0 if they have none in common."""
        sizes = {t.shape[0] if t.ndim else 0 for t in self.example}
        return sizes.pop() if len(sizes) == 1 else 0

    def job(
        self, boundaries: frozenset[str], example: tuple[flow.Tensor, ...], training: bool
    ) -> tuple[LazyJob, RawJob]:
        """The job, and what it says."""
        while True:
            lazy = build_job(
                self.model, example, self.calling, self.loss, boundaries, training,
                self.apart, self.proven.get(training, {}),
            )  # fmt: skip
            results = (*lazy.outputs, lazy.loss, *lazy.rewritten.values())
            found = expanded(read_job(lazy.proto), lazy.kinds, lazy.copies, results)
            if not found.unlike:
                self.proven.setdefault(training, found.proven)
                lazy, raw = _numbered(lazy, found.raw)
                return lazy, with_operators(raw, lazy.calls)
            self.apart.update(found.unlike)


def _numbered(lazy: LazyJob, raw: RawJob) -> tuple[LazyJob, RawJob]:
    """A job with names of captured tensors by their places, which two jobs of a model share.

    OneFlow's count the operators before them, of which layers that did not run have none.
    """
    places = {name: n for n, op in enumerate(raw.ops) for name in op.makes}
    names = {name: f"captured{places[name]}" for name in lazy.captured}
    captured = {names[name]: tensor for name, tensor in lazy.captured.items()}
    return replace(lazy, captured=captured), raw.renamed(names)


@dataclass(frozen=True)
class _Attempt:
    """A trace in which the calls at `boundaries` are opaque.

    like: tensors that the job got afterwards -> those whose batch dims they have
    """

    boundaries: frozenset[str]
    training: bool
    lazy: LazyJob
    raw: RawJob
    collapsed: Collapsed
    like: Mapping[str, str]

    @staticmethod
    def of(source: _Source, boundaries: frozenset[str], training: bool = True) -> _Attempt:
        try:
            lazy, raw = source.job(boundaries, source.example, training)
        except CallError as error:
            raise explain_failure(error, source.model) from error.__cause__
        check_loss(raw, lazy)
        collapsed = collapse(raw, lazy, source.model, source.loss)
        parameters = dict(source.model.named_parameters())
        trainable = [v for v, path in lazy.params.items() if parameters[path].requires_grad]
        job, stopped = stop_gradients(collapsed.job, trainable)
        return _Attempt(boundaries, training, lazy, raw, replace(collapsed, job=job), stopped)

    @property
    def roots(self) -> tuple[str, ...]:
        """The outputs, then the loss if there is one."""
        return (*self.lazy.outputs, *((self.lazy.loss,) if self.lazy.loss else ()))

    def simplify(self, scaling: Scaling) -> Simplified:
        """The operators that are needed."""
        return simplify(self.collapsed.job, self.roots, scaling)

    def emit(
        self,
        source: _Source,
        scaling: Scaling,
        name: str,
        known: Mapping[str, flow.Tensor] = MappingProxyType({}),
    ) -> Mode:
        """With its graph. known: captured tensors that have names in the graph of another mode."""
        parameters = source.model.named_parameters()
        made = emit(
            self.simplify(scaling),
            self.collapsed.job,
            self.lazy,
            scaling,
            {path: tensor.requires_grad for path, tensor in parameters},
            name,
            source.batch if scaling.holds else 0,
            known,
        )
        opaque = {made.opaque[k]: v for k, v in self.collapsed.calls.items() if k in made.opaque}
        structure = scaling.structure if scaling.holds else self.lazy.structure
        return Mode(made.graph, structure, opaque, made.captured)


def _settle(
    source: _Source, known: Known, declared: frozenset[str], training: bool = True
) -> tuple[_Attempt, dict[str, str]]:
    """Trace until every unknown operator is inside an opaque call.

    Gives the last attempt, and why each submodule that was not `declared` is opaque.
    """
    reasons: dict[str, str] = {}
    while True:
        attempt = _Attempt.of(source, declared | reasons.keys(), training)
        calls = attempt.lazy.calls
        simplified = attempt.simplify(Scaling())
        found = unknown_operators(simplified.ops, calls, simplified.roots, known)
        ops = attempt.collapsed.job.ops
        found |= rewriting_modules(ops, calls, attempt.lazy.rewritten)
        for call in attempt.collapsed.leaking:
            around = calls[call].parent
            inside = path_of(calls, call)
            if around < 0:
                raise ValueError(
                    f"{inside or 'the model'} has to run as one operator, but it shares tensors "
                    "with the rest of the program past its arguments and results; pass them as "
                    "arguments and return them"
                )
            found.setdefault(
                path_of(calls, around), f"tensors that {inside} shares past its arguments"
            )
        found = {path: why for path, why in found.items() if path not in attempt.boundaries}
        if not found:
            return attempt, reasons
        reasons.update(found)


def _scaling(source: _Source, attempt: _Attempt) -> Scaling:
    """How the trace depends on the batch, from a second trace at twice the batch."""
    if not source.batch:
        return Scaling()
    doubled = tuple(shape_only((2 * t.shape[0], *t.shape[1:]), t.dtype) for t in source.example)
    try:
        twice, raw = source.job(attempt.boundaries, doubled, attempt.training)
    except CallError:
        return Scaling()
    if not same_values(attempt.lazy.captured, twice.captured):
        return Scaling()
    _check_arguments(attempt.lazy, twice)
    found = compare(attempt.raw, raw)
    if not found.holds:
        return found
    try:
        structure = sized(attempt.lazy.structure, twice.structure)
    except ValueError:
        return Scaling()
    dims = dict(found.dims)
    dims |= {new: dims.get(name, ()) for new, name in attempt.like.items()}
    return replace(found, dims=dims, structure=structure)


def _check_arguments(once: LazyJob, twice: LazyJob) -> None:
    """ValueError if what runs as it is gets a number that follows the batch."""
    ours, theirs = (_given(job) for job in (once, twice))
    for path in ours.keys() & theirs.keys():
        if ours[path] != theirs[path]:
            raise ValueError(
                f"{path or 'the model'} gets a number that follows the batch, and a part of the "
                "batch would get the same; compute it inside"
            )


def _given(job: LazyJob) -> dict[str, list[list[Any]]]:
    """Path of a module that runs as it is -> the numbers that each call of it gets."""
    found: dict[str, list[list[Any]]] = {}
    for call in job.calls:
        if call.is_boundary and call.operator is None:
            found.setdefault(call.path, []).append(numbers(call.arguments))
    return found


def _in_training_and_evaluation(
    source: _Source, known: Known, name: str
) -> tuple[_Attempt, Mode, dict[str, str], Evaluation]:
    """The settled trace, its graph, why parts are opaque, and what evaluation gives.

    The graph is of both modes if numbers are drawn in it, or a model's own code reads
    `self.training`. Drawing is unknown, and so opaque, where the two cannot be joined.
    """
    evaluation = Evaluation()
    declared = frozenset(p for p, m in source.model.named_modules() if is_opaque(m))
    for planned in (known, lambda kind: known(kind) and not is_random(kind)):
        attempt, reasons = _settle(source, planned, declared)
        found = attempt.emit(source, _scaling(source, attempt), name)
        ops = attempt.collapsed.job.ops
        draws = any(is_random(op.kind) and op.kind != "dropout" for op in ops)
        if not draws and not attempt.lazy.asked:
            return attempt, found, reasons, Evaluation(found.structure)
        try:
            joined, others, evaluation = _joined(source, attempt, found, planned)
            return attempt, joined, {**others, **reasons}, evaluation
        except ValueError as error:
            evaluation = Evaluation(unlike=str(error))
        if not draws:
            break
    return attempt, found, reasons, evaluation


def _joined(
    source: _Source, attempt: _Attempt, training: Mode, known: Known
) -> tuple[Mode, dict[str, str], Evaluation]:
    """The model in both modes, why parts of evaluation are opaque, and what that gives.

    ValueError if the model in evaluation cannot be planned.
    """
    graph, captured = training.graph, training.captured
    alone = replace(source, loss=None, calling=source.calling.without_target)

    def trace(has_loss: bool) -> tuple[_Source, _Attempt, dict[str, str]]:
        one = source if has_loss or source.loss is None else alone
        return one, *_settle(one, known, attempt.boundaries, training=False)

    (source, other, reasons), why = evaluated(trace, source.loss is not None)
    plain = other.emit(source, Scaling(), graph.name, captured)

    def scaled() -> Mode:
        return other.emit(source, _scaling(source, other), graph.name, captured)

    both, found = join(training, plain, why, scaled if graph.batch else None)
    _check_buffers(source.model, training, both)
    held = {k: x for k, x in both.captured.items() if k in both.graph.tensors}
    return replace(both, captured=held), reasons, found


def _check_buffers(model: nn.Module, training: Mode, both: Mode) -> None:
    """ValueError if what runs as it is in evaluation alone has buffers that training has, too.

    It reads those that hang in its modules, on this rank.
    """
    own = dict(model.named_buffers())
    read = {op.attrs["name"] for op in training.graph.ops if op.kind == "buffer"}
    held = {id(own[name]) for name in read & own.keys()}
    held.update(id(x) for call in training.opaque.values() for x in _buffers(call).values())
    for name in both.opaque.keys() - training.opaque.keys():
        call = both.opaque[name]
        for buffer in (key for key, x in _buffers(call).items() if id(x) in held):
            raise ValueError(
                f"{call.path} runs as it is in evaluation alone, and has {buffer}, which training "
                "reads or moves: give it as an argument"
            )


def _buffers(call: OpaqueCall) -> dict[str, flow.Tensor]:
    own: Any = call.function
    return dict(own.named_buffers()) if isinstance(own, nn.Module) else {}


def _warn(graph: Graph, reasons: Mapping[str, str]) -> None:
    """Of opaque parts that nobody declared, once in a job, by its first rank."""
    if rank() != 0:
        return
    for op in graph.ops:
        if op.kind != "opaque" or op.module not in reasons:
            continue
        what, why = op.module or "the model", reasons[op.module]
        moved = sum(graph.tensors[name].spec.numel for name in (*op.inputs, *op.outputs))
        warnings.warn(
            f"{what} runs as one replicated operator, because of {why}: each device computes "
            f"it whole, on {moved:,} elements of arguments, parameters and results; "
            "autoddl.batchwise(module) declares that it may be split along the batch",
            OpaqueWarning,
            stacklevel=levels_to_caller(),
        )
