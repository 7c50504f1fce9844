"""Traces a `torch.nn.Module` to a `Graph`.

    module --torch.export--> operators of ATen --handlers (`aten/`)--> Graph

The program is recorded once, with the batch's size as a symbol: how sizes and factors follow the
batch is read off it. Nothing is computed, and a model may be on the meta device. The parameters
that a gradient reaches are compared with those that eager autograd reaches.
"""

from __future__ import annotations

import operator
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind, OutputKind

from ....graph.aten import called, handled
from ....graph.aten.table import arguments
from ....graph.builder import Follows, Ref, Unknown
from ....graph.graph import Graph
from ....graph.hints import is_batchwise
from ....sbp.layout import TensorSpec
from ...calling import Calling
from ...nested import map_leaves
from ...traced import Evaluation, OpaqueCall, Traced, first_names, state_keys, with_hints
from ...tracing import checks
from ...tracing.modes import Mode, in_both_modes
from . import attention as attention
from .constants import computed, dtype_name, is_known
from .emit import Emitter
from .exported import LOSS, MODEL, LossFn, Whole, export
from .gradients import asks_the_same, reached
from .opaque import OPAQUE
from .repeats import AGAIN, Notes, live


def trace(
    model: nn.Module, *example: Any, loss: LossFn | None = None, name: str | None = None
) -> Graph:
    """The graph of `model` on `example`; see `trace_with_state`."""
    return trace_with_state(model, *example, loss=loss, name=name).graph


@with_hints
def trace_with_state(
    model: nn.Module, *example: Any, loss: LossFn | None = None, name: str | None = None
) -> Traced:
    """Trace `loss(model(*example[:-1]), example[-1])`, or `model(*example)` without a loss.

    The example's items may be nested, or it may be one dict; see `runtime.calling`.
    Only the example's shapes and dtypes matter. The model is traced in training mode and left as it
    was; in one that trains already, submodules in evaluation mode stay in it.
    Raises ValueError if the model cannot be traced, saying why.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"the model must be a torch.nn.Module, got {type(model).__name__}")
    calling, tensors = Calling.of(example, model.forward, Tensor, loss is not None)
    tensors = [_like_model(t, model) for t in tensors]
    whole = Whole(model, loss, calling)
    modes = {module: module.training for module in model.modules()}
    try:
        if not model.training:
            model.train()
        whole.training = True
        checks.check_ready(whole)
        noted = loss is not None or whole.opaque.modules
        eager, notes = _tried(whole, tensors) if noted else (None, None)
        checks.check_seen(notes.unseen.found if notes and loss is not None else "")
        whole.carried.check()
        whole.carried.restore()  # what a pass on fake tensors has left
        found, emitter = _read(whole, tensors, notes, name or type(model).__name__)
        if loss is not None:
            params, trained = found.graph.params, found.graph.needs_grad
            planned = {op.attrs["name"] for op in params if op.outputs[0] in trained}
            known = eager or _reached(whole, tensors)
            checks.check_reached(model, planned, known, whole.opaque.unsure(whole))
            whole.carried.check()
        found, evaluation = _in_both_modes(whole, tensors, found, emitter, notes)
    finally:
        whole.carried.restore()
        for module, training in modes.items():
            module.training = training
    return Traced(
        found.graph,
        dict(model.named_parameters()),
        {**dict(model.named_buffers()), **found.captured},
        state_keys(model, Tensor),
        found.opaque,
        evaluation,
        examples=tuple(TensorSpec(tuple(t.shape), dtype_name(t.dtype)) for t in tensors),
        calling=calling,
        constants=tuple(emitter.read),
        model=model,
        loss=loss,
    )


def _in_both_modes(
    whole: Whole, tensors: Sequence[Tensor], training: Mode, like: Emitter, notes: Notes | None
) -> tuple[Mode, Evaluation]:
    """The model in both modes, and what evaluation gives; like: has emitted it in training."""
    if whole.noted.asked:
        whole.model.eval()
    if not whole.noted.asked or notes and asks_the_same(whole, notes):
        return training, Evaluation(training.structure)

    def trace(has_loss: bool) -> Mode:
        if not has_loss and whole.loss is not None:
            whole.loss, whole.calling = None, whole.calling.without_target
        return _read(whole, tensors, _tried(whole, tensors)[1], training.graph.name, like)[0]

    return in_both_modes(training, trace, whole.loss is not None)


def _tried(whole: Whole, tensors: Sequence[Tensor]) -> tuple[set[str] | None, Notes | None]:
    """What one run on fake tensors tells: where gradients end, and which layers are alike.

    Nothing if it fails: the export then says why. With opaque modules, which may look at values,
    it then runs on the example.
    """
    notes = Notes(whole)
    try:
        return reached(whole, tensors, notes), notes
    except Exception as error:
        if not whole.opaque.modules:
            return None, None
        if isinstance(error, ValueError):
            raise
        if any(x.is_meta for x in tensors):
            raise ValueError(
                f"on the meta device, an opaque module looks at values: {error}"
            ) from None
    return reached(whole, tensors, by_values=True), None


def _reached(whole: Whole, tensors: Sequence[Tensor]) -> set[str]:
    """The parameters that eager autograd reaches; on the example where fake tensors do not do."""
    try:
        return reached(whole, tensors)
    except Exception as error:
        if any(x.is_meta for x in tensors):
            raise checks.no_values(error) from error
    return reached(whole, tensors, by_values=True)


def _like_model(x: Tensor, model: nn.Module) -> Tensor:
    """`x` as a tensor of its own, on the meta device if the model is there.

    What stands twice in an example (a target that is the input) is one input to `torch.export`.
    """
    on_meta = next((p.is_meta for p in model.parameters()), False)
    return (x.to("meta") if on_meta else x).detach()


def _read(
    whole: Whole,
    tensors: Sequence[Tensor],
    notes: Notes | None,
    name: str,
    like: Emitter | None = None,
) -> tuple[Mode, Emitter]:
    """The model as it is exported, and what has emitted its graph."""
    program, scales = export(whole, tensors, notes.groups() if notes else ())
    batch = int(tensors[0].shape[0]) if scales else 1
    reader = _Reader(whole, program, Emitter(batch, scales, like=like))
    try:
        outputs = reader.run()
    except Follows:  # the graph is for this batch alone
        reader = _Reader(whole, program, Emitter(batch, False, like=like))
        outputs = reader.run()
    loss = outputs.pop() if whole.loss is not None else None
    emitter, numbers = reader.emitter, (torch.SymInt, torch.SymFloat)
    structure = map_leaves(whole.noted.structure, numbers, emitter.number)
    graph = emitter.graph(name, outputs, loss, "torch")
    return Mode(graph, structure, reader.opaque, emitter.captured), emitter


class _Reader:
    """Walks through a program's nodes.

    known: what stands for a node: a Ref, a constant, a number, or a sequence of them
    lazy:  sources that nobody has read yet
    own:   in a layer that is recorded once, what stands for the first layer's nodes in this one
    paths: of the first layer and of this one
    opaque: operator name -> the call that it stands for
    """

    def __init__(self, whole: Whole, program: Any, emitter: Emitter) -> None:
        self.program, self.emitter = program, emitter
        self.known: ChainMap[fx.Node, Any] = ChainMap()
        self.lazy: dict[fx.Node, Callable[[], Ref]] = {}
        self.own: dict[fx.Node, fx.Node] = {}
        self.paths = "", ""
        self.calls, self.opaque = whole.opaque.calls, dict[str, OpaqueCall]()
        signature = program.graph_signature
        self.inputs = {s.arg.name: s for s in signature.input_specs if hasattr(s.arg, "name")}
        self.changed = [s for s in signature.output_specs if s.kind is not OutputKind.USER_OUTPUT]
        self.names = first_names(whole)
        self.parameters = dict(whole.named_parameters(remove_duplicate=False))
        own = ((n, x) for n, x in self.parameters.items() if n.startswith(f"{MODEL}."))
        places = {_place(x): self.names[name] for name, x in own}
        self.held = {place: name for place, name in places.items() if place}

    def run(self) -> list[Any]:
        """What the program gives."""
        graph = self.program.graph_module.graph
        (output,) = (n for n in graph.nodes if n.op == "output")
        self.placeholders = [n for n in graph.nodes if n.op == "placeholder"]
        results = list(output.args[0])
        wanted = results[len(self.changed) :]
        norms = (n for n in graph.nodes if n.target is torch.ops.aten.batch_norm.default)
        moving = [n for n in norms if n.args[3] is not None and n.args[5]]  # also what nobody reads
        kept = [*self._check_changes(results), *moving, *wanted]
        needed, self.copies = live(graph, [n for n in kept if isinstance(n, fx.Node)])
        count = 0
        for node in graph.nodes:
            if node.op == "placeholder":
                count += self._placeholder(node, count)
            elif node.op == "get_attr":
                self.known[node] = getattr(self.program.graph_module, str(node.target))
            elif node.op == "call_function" and node in needed:
                self._call(node)
        return [self._value(n) for n in wanted]

    def _check_changes(self, results: Sequence[Any]) -> list[fx.Node]:
        """The new moving statistics; ValueError if the model changes what the runtime would not."""
        moving = []
        for spec, node in zip(self.changed, results, strict=False):
            made_by = str(getattr(node.args[0], "target", "")) if node.args else ""
            counts = str(spec.target).endswith("num_batches_tracked")
            if spec.kind is OutputKind.TOKEN:  # of a check, which is refused by its name
                continue
            if spec.kind is OutputKind.BUFFER_MUTATION and ("batch_norm" in made_by or counts):
                moving += [] if counts else [node]
                continue
            if spec.kind is OutputKind.USER_INPUT_MUTATION:
                raise checks.changing("its own input", str(spec.target).removeprefix("tensors_"))
            what = spec.kind.name.partition("_")[0].lower()
            raise checks.changing(f"the {what}", str(spec.target))
        return moving

    def _placeholder(self, node: fx.Node, count: int) -> int:
        spec = self.inputs[node.name]
        if spec.kind is InputKind.USER_INPUT:
            self.lazy[node] = lambda: self._source(
                node, f"input.{count}", "input", {"index": count}
            )
            return 1
        if spec.kind is InputKind.CUSTOM_OBJ:
            raise checks.not_followed(type(self.program.constants[spec.target]).__name__)
        if spec.kind is InputKind.TOKEN:
            self.known[node] = None
            return 0
        held = self.program.constants.get(spec.target)  # buffers that are not saved, too
        if spec.kind is InputKind.CONSTANT_TENSOR or held is not None and held.is_complex():
            if _place(held) in self.held:
                raise checks.read_elsewhere(self.held[_place(held)])
            self.known[node] = held
            self.emitter.read.append(held)
            return 0
        path, own = self.names[str(spec.target)], self.parameters.get(str(spec.target))
        trains = own is not None and own.requires_grad
        if trains or (own is not None and not str(spec.target).startswith(f"{LOSS}.")):
            attrs = {"name": path, "trainable": trains}
            self.lazy[node] = lambda: self._source(node, path, "param", attrs)
        elif str(spec.target).startswith(f"{LOSS}."):
            self.known[node] = self.program.state_dict[spec.target]
        else:
            self.lazy[node] = lambda: self._source(node, path, "buffer", {"name": path})
        return 0

    def _source(self, node: fx.Node, name: str, kind: str, attrs: Mapping[str, Any]) -> Ref:
        """Of a placeholder, emitted before it is first read; tied ones once."""
        known = self.emitter.tensors.get(name)
        value = node.meta["val"]
        if known is not None:
            return Ref(name, self.emitter.shape(value), known.spec.dtype)
        ref = self.emitter.declare(
            self.emitter.unique(name), self.emitter.shape(value), dtype_name(value.dtype)
        )
        module = "" if kind == "input" else name.rpartition(".")[0]
        self.emitter.source(ref.name, kind, ref, attrs, module)
        return ref

    def _value(self, x: Any) -> Any:
        """What an argument stands for."""
        if isinstance(x, fx.Node):
            x = self.own.get(x, x)
            if x not in self.known:
                self.known.maps[-1][x] = self.lazy.pop(x)()
            return self.known[x]
        if isinstance(x, (list, tuple)):
            return [self._value(item) for item in x]
        return x

    def _again(self, node: fx.Node) -> None:
        """A layer that is recorded once: the first one's operators, of its own parameters."""
        given_first, made_first, given, paths = node.args
        assert isinstance(paths, Sequence)
        first, path = map(str, paths)
        places = {str(self.inputs[n.name].target): n for n in self.placeholders}
        own = {
            n: places[path + target.removeprefix(first)]
            for target, n in places.items()
            if target.startswith(f"{first}.")
        }
        self.own = {**own, **dict(zip(given_first, given, strict=True))}
        self.known, self.paths = self.known.new_child(), (first, path)
        for copy in self.copies[node]:
            self._call(copy)
        results = [self.known.get(n) for n in made_first]
        self.known, self.own, self.paths = self.known.parents, {}, ("", "")
        self.known[node] = results

    def _call(self, node: fx.Node) -> None:
        if node.target is AGAIN:
            self._again(node)
            return
        value = node.meta.get("val")
        if isinstance(value, int | float | torch.SymInt | torch.SymFloat):
            try:
                self.known[node] = self.emitter.number(value)
            except Unknown as error:
                raise self._refusal(node, str(error)) from None
            return
        if node.target is operator.getitem:
            self.known[node] = self._value(node.args[0])[node.args[1]]
            return
        self.emitter.module = self._module(node)
        if node.target is OPAQUE:
            self.known[node] = self._opaque(node)
            return
        if not isinstance(node.target, torch._ops.OpOverload):
            raise self._refusal(node, str(node.target))
        given = {
            k: self._value(v) for k, v in arguments(node.target, node.args, node.kwargs).items()
        }
        if self._is_constant(node, given):
            try:
                self.known[node] = computed(node, given, self.emitter.batch)
            except RuntimeError as error:  # a result that has no handler is None
                raise self._refusal(node, f"{node.target} here ({error})") from None
            return
        chosen = handled(node.target)
        if chosen is None:
            raise self._refusal(node, str(node.target))
        try:
            given |= {"name": chosen, "out": self._out(value)}
            self.known[node] = called(self.emitter, given)
        except Follows:
            raise
        except Unknown as error:
            raise self._refusal(node, str(error)) from None

    def _opaque(self, node: fx.Node) -> list[Ref]:
        """A call of an opaque module."""
        noted, values = self.calls[node.args[2]], node.meta["val"]
        call, module = noted.call, noted.call.function
        made = self.emitter.several(
            "opaque", self._value(node.args[0]), [self._out(v) for v in values],
            module=self.emitter.module, batchwise=is_batchwise(module),
            num_args=call.num_arguments, num_buffers=len(list(module.buffers())),
        )  # fmt: skip
        self.opaque[self.emitter.ops[-1].name] = call
        return made

    def _module(self, node: fx.Node) -> str:
        """The path of the submodule that has issued a node."""
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        path = stack[-1][0].partition("@")[0] if stack else ""
        first, own = self.paths
        if first and (path == first or path.startswith(f"{first}.")):
            path = own + path.removeprefix(first)
        path = "" if path.startswith("_") else path
        return "" if path == MODEL else path.removeprefix(f"{MODEL}.")

    def _out(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.emitter.shape(value), dtype_name(value.dtype)
        if isinstance(value, (tuple, list)):
            return [None if v is None else self._out(v) for v in value]
        return None

    def _is_constant(self, node: fx.Node, given: Mapping[str, Any]) -> bool:
        """Whether all that a node reads is known now, so that it can be computed now."""
        target: Any = node.target
        if torch.Tag.nondeterministic_seeded in target.tags or "empty" in target._schema.name:
            return False
        return all(map(is_known, given.values()))

    def _refusal(self, node: fx.Node, what: str) -> ValueError:
        return checks.no_rule(self.emitter.module, str(node.meta.get("stack_trace") or ""), what)


def _place(x: Tensor) -> int:
    """Where it lies in memory; 0 if it has none."""
    return x.untyped_storage().data_ptr()
