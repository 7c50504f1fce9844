"""A module, its loss and their export: operators of ATen that change nothing in place.

`torch.export` records the program before autograd, with `linear`, `layer_norm` and attention whole.
What autograd does not follow is marked here before anything is decomposed, as decomposing forgets
it: the results of a `no_grad` region become `detach`es. A `torch.autograd.Function` has a backward
pass of its own, of which an export knows nothing: it is refused.
"""

from __future__ import annotations

import builtins
import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.distributions import Distribution  # type: ignore[import-not-found]
from torch.export import Dim, ExportedProgram, _trace
from torch.nn.modules import transformer  # type: ignore[import-not-found]
from torch.utils.checkpoint import CheckpointFunction  # type: ignore[import-not-found]

from ....graph.aten import handled
from ....graph.aten.composed import COMPOSED
from ....graph.aten.table import may_change
from ...calling import Calling
from ...nested import take_tensors
from ...tracing import checks
from ...tracing.carried import Carried
from ...tracing.instead import as_finite, instead, made_instead
from .opaque import OPAQUE, Opaque
from .repeats import AGAIN, LIBRARY, Group, recorded_once

MODEL, LOSS = "model", "loss"
LossFn = Callable[[Any, Any], torch.Tensor]
_SET_GRAD = "wrap_with_set_grad_enabled"
# ATen's own cannot be recorded, as its second result has a shape that follows from values.
LIBRARY.define(
    "ctc_loss(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, "
    "int blank, int reduction, bool zero_infinity) -> Tensor"
)


@torch.library.register_fake("autoddl::ctc_loss", lib=LIBRARY)
def _ctc_loss(log_probs: torch.Tensor, *others: Any) -> torch.Tensor:
    return log_probs.new_empty(() if others[4] else log_probs.shape[1:2])


class Whole(nn.Module):
    """A model and its loss as one function of the batch's tensors.

    It gives the tensors of the model's result, then the loss if there is one.
    noted: of its last call, the result with slots in the place of tensors, and modules of other
           classes than torch's that have asked for their mode
    """

    def __init__(self, model: nn.Module, loss: LossFn | None, calling: Calling) -> None:
        super().__init__()
        self.model = model
        self.loss: Any = loss if loss is None or isinstance(loss, nn.Module) else _Loss(loss)
        self.calling = calling
        self.opaque = Opaque.of(self)
        self.carried = Carried([(p, m) for p, m in self.named_modules() if p], torch.Tensor)
        # attributes do not outlast an export
        self.noted = SimpleNamespace(structure=None, asked=[])

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args, kwargs, target = self.calling.called(tensors, self.loss is not None)
        buffers = dict(self.named_buffers())
        result = self.model(*args, **kwargs)
        for name in (n for n, x in self.named_buffers() if x is not buffers.get(n)):
            raise checks.changing("the buffer", name)
        self.noted.structure, outputs = take_tensors(result, torch.Tensor)
        if self.loss is None:
            return tuple(outputs)
        value = self.loss(result, target)
        checks.check_loss(value, torch.Tensor)
        return (*outputs, value)


class _Loss(nn.Module):
    """A function as a module, whose name its operators then have."""

    def __init__(self, function: LossFn) -> None:
        super().__init__()
        self.forward = function


def export(
    whole: Whole, example: Sequence[torch.Tensor], groups: Sequence[Group] = ()
) -> tuple[ExportedProgram, bool]:
    """The program, and whether dim 0 of the example's tensors is a size of its own there.

    groups: layers of which the first is recorded

    ValueError with torch's own reason if it cannot be exported.
    """
    if groups:
        with contextlib.suppress(Exception), recorded_once(groups):
            return export(whole, example)
    sizes = {t.shape[0] if t.ndim else 0 for t in example}
    if len(sizes) == 1 and min(sizes) > 1:
        batch = Dim("batch", min=2)
        shapes = {"tensors": tuple({0: batch} for _ in example)}
        with contextlib.suppress(Exception):  # the size is fixed by the model, or decides its way
            return _export(whole, example, shapes), True
    try:
        return _export(whole, example, None), False
    except Exception as error:
        if checks.is_own(error):
            raise
        raise checks.not_recorded(whole.model, error) from error


@contextlib.contextmanager
def _own_news_aside() -> Iterator[None]:
    """Without what torch tells of its own code, which would stand in front of the user's plan."""
    shapes = instead(logging.getLogger("torch.fx.experimental.symbolic_shapes"), "disabled", True)
    graphs = instead(_trace, "print", lambda *args, **options: None)  # of what was not recorded
    with warnings.catch_warnings(), shapes, graphs:
        warnings.filterwarnings("ignore", r".*LeafSpec", FutureWarning)
        warnings.filterwarnings("ignore", "The tensor attribute")  # `Carried` finds what matters
        yield


@contextlib.contextmanager
def _losses_reduced_as_asked() -> Iterator[None]:
    """Without torch's own decompositions of losses, which take a sum and no reduction for a mean.

    They read names of reductions, and the operators have numbers.
    """
    known = torch._decomp.decomposition_table
    table = {k: f for k, f in known.items() if "_refs" not in f.__module__ or "_loss" not in str(k)}
    with instead(torch._decomp, "decomposition_table", table):
        yield


@_own_news_aside()
@_losses_reduced_as_asked()
def _export(whole: Whole, example: Sequence[torch.Tensor], shapes: Any) -> ExportedProgram:
    ours, hooks = instead(torch, "ctc_loss", _ctc), instead(Tensor, "register_hook", _hook)
    sizes = instead(builtins, "len", _length)  # Python's own gives a plain number
    scales = instead(torch.amp.GradScaler, "scale", _scaled)
    with _no_own_backward(), hooks, scales, plain_calls(), ours, sizes, whole.opaque.recorded():
        program = torch.export.export(whole, tuple(example), dynamic_shapes=shapes, strict=False)
    _inline_regions(program.graph_module)
    may = (n.op == "call_function" and may_change(n) for n in program.graph.nodes)
    for changes in (any(may), False):  # at once what may be, as each takes as long as the export
        unknown = _unknown(program)
        if changes or unknown:
            program = program.run_decompositions(unknown)
    return program


def _unknown(program: ExportedProgram) -> dict[Any, Any]:
    """The operators without a handler, and what torch itself writes them in."""
    reads = {n.target for n in program.graph.nodes if _reads(n)} - {AGAIN, OPAQUE}
    unknown = {t for t in reads if not t._schema.is_mutable and not handled(t)}
    known = torch.export.default_decompositions() if unknown else {}
    return {t: known[t] for t in unknown if t in known}


def _reads(node: fx.Node) -> bool:
    """Whether an operator makes tensors of tensors."""
    kinds = torch.Tensor | tuple | list
    made, *given = (isinstance(n.meta.get("val"), kinds) for n in (node, *node.all_input_nodes))
    return isinstance(node.target, torch._ops.OpOverload) and made and any(given)


@contextlib.contextmanager
def plain_calls() -> Iterator[None]:
    """Inside, what a plan does its own way is not recorded: checks of values of distributions and
    masks, and whether they are finite; `checkpoint` with `use_reentrant` is a plain call."""

    def apply(function: Callable[..., Any], keeps_state: bool, *args: Any) -> Any:
        trains = any(isinstance(x, torch.Tensor) and x.requires_grad for x in args)
        with contextlib.nullcontext() if trains else torch.no_grad():  # as it does without them
            return function(*args)

    def diagonal(x: Tensor, value: float, wrap: bool = False) -> Tensor:
        whole = x.ndim == 2 and not wrap
        return (x.diagonal().fill_(value), x)[1] if whole else fill(x, value, wrap)

    fill = Tensor.fill_diagonal_
    laws = instead(Distribution, "_validate_args", False)
    causal = instead(transformer, "_detect_is_causal_mask", lambda mask, hint, size: hint is True)
    places = instead(Tensor, "fill_diagonal_", diagonal)  # torch's own asks how it lies in memory
    others = made_instead((torch, Tensor, nn.functional), COMPOSED)
    again = instead(CheckpointFunction, "apply", apply)
    with again, laws, causal, places, others, as_finite(torch):
        yield


def _ctc(logs: Any, targets: Any, steps: Any, lengths: Any, *rest: Any) -> torch.Tensor:
    """As `torch.nn.functional.ctc_loss` calls torch's."""
    counts = [torch.as_tensor(n, device=targets.device) for n in (steps, lengths)]
    if targets.ndim != 2 or any(n.shape != logs.shape[1:2] for n in (*counts, targets[:, 0])):
        raise ValueError("ctc_loss is planned for targets [rows, longest] and lengths of all rows")
    return torch.ops.autoddl.ctc_loss(logs, targets, *counts, *rest)


def _length(x: Any, own: Callable[[Any], int] = len) -> Any:
    return x.shape[0] if isinstance(x, Tensor) and x.ndim else own(x)


def _hook(x: Tensor, hook: Any) -> None:
    raise checks.not_called("Tensor.register_hook")


def _scaled(scaler: Any, outputs: Any) -> Any:
    if scaler.is_enabled():
        raise checks.scaled_twice()
    return outputs


@contextlib.contextmanager
def _no_own_backward() -> Iterator[None]:
    """ValueError where the traced program calls a `torch.autograd.Function`."""
    known = vars(torch.autograd.Function)["apply"]

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        if cls.__module__.startswith("torch."):
            return known.__get__(None, cls)(*args, **kwargs)
        raise checks.own_backward(f"{cls.__module__}.{cls.__qualname__}", "torch.autograd.Function")

    with instead(torch.autograd.Function, "apply", classmethod(apply)):
        yield


# ---- regions without a gradient


def _inline_regions(module: fx.GraphModule) -> None:
    """Replace calls of regions with another gradient mode by their operators."""
    for node in list(module.graph.nodes):
        if node.op == "call_function" and _SET_GRAD in str(node.target):
            _inline(module, node, module)
    module.recompile()


def _inline(whole: fx.GraphModule, call: fx.Node, owner: fx.GraphModule) -> None:
    enabled, region, *given = call.args
    assert isinstance(region, fx.Node)
    with whole.graph.inserting_before(call):
        results = _copied(whole, getattr(owner, str(region.target)), list(given), bool(enabled))
    for user in list(call.users):
        assert "getitem" in str(user.target), user.target
        user.replace_all_uses_with(results[user.args[1]])
        whole.graph.erase_node(user)
    whole.graph.erase_node(call)


def _copied(whole: fx.GraphModule, region: fx.GraphModule, given: list[Any], enabled: bool) -> Any:
    """The results of a region whose operators are copied to the insertion point.

    Without gradients each operator's result is detached: a region inside that has gradients must
    not see further back than its own.
    """
    known: dict[fx.Node, Any] = {}
    arguments = iter(given)
    for node in region.graph.nodes:
        if node.op == "placeholder":
            known[node] = next(arguments)
        elif node.op == "output":
            return fx.map_arg(node.args[0], known.__getitem__)
        elif node.op == "get_attr":
            continue  # of a region inside
        elif _SET_GRAD in str(node.target):
            inner = fx.map_arg(node.args[2:], known.__getitem__)
            found = getattr(region, str(node.args[1].target))
            known[node] = _copied(whole, found, list(inner), bool(node.args[0]))
        elif "getitem" in str(node.target) and isinstance(known[node.args[0]], (tuple, list)):
            known[node] = known[node.args[0]][node.args[1]]
        else:
            copy = whole.graph.node_copy(node, known.__getitem__)
            known[node] = copy if enabled else _detached(whole, copy)
    raise AssertionError("a region ends with its results")


def _detached(whole: fx.GraphModule, node: fx.Node) -> fx.Node:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return node
    if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
        return node  # what it changes is a buffer, which has no gradient
    found = whole.graph.call_function(torch.ops.aten.detach.default, (node,))
    found.meta = dict(node.meta)
    return found
