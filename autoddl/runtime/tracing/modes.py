"""Joins the graph of a model in training with the one in evaluation where they differ.

What a model does with `self.training` (stochastic depth, noise, another head) only its own code can
tell. Operators that both graphs have stand once in the joined one. Where one reads another tensor
in evaluation than in training, it reads the result of an operator `by_mode` of the two. What
evaluation gives and training does not, as where auxiliary heads are left out or their results are
joined, is the result of a `by_mode` of one tensor. So the joined graph computes in each mode what
the model does, however well the two were aligned; that only decides its length.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from itertools import count
from typing import Any, TypeVar

from ...graph.builder import finished
from ...graph.graph import SOURCE_KINDS, Graph
from ...graph.operator import Op
from ...graph.operator import Tensor as Planned
from ..backend import Tensor
from ..nested import numbers
from ..traced import Evaluation, OpaqueCall
from .checks import reason
from .instead import instead

Made = TypeVar("Made")
_OF_MODE = {"normalization": ("training", "momentum")}  # attributes that differ, as kernels know


@dataclass(frozen=True)
class Mode:
    """A model as it is traced in one mode, or in both.

    structure: of its results, with a slot in the place of each tensor
    opaque:    operator name -> how to run it
    captured:  what the model read from elsewhere, by its names in the graph
    """

    graph: Graph
    structure: Any
    opaque: Mapping[str, OpaqueCall]
    captured: Mapping[str, Tensor]


@contextmanager
def reading_modes(kind: type, own: str) -> Iterator[list[Any]]:
    """Gives the modules whose `training` is read inside, but those of classes in the package `own`.

    kind: of modules; the layers of its framework are operators that know their mode
    """
    read: list[Any] = []

    def get(module: Any) -> bool:
        if not type(module).__module__.startswith(own):
            read.append(module)
        return vars(module)["training"]

    def put(module: Any, value: bool) -> None:
        vars(module)["training"] = value

    with instead(kind, "training", property(get, put)):
        yield read


def evaluated(trace: Callable[[bool], Made], has_loss: bool) -> tuple[Made, str]:
    """What a model does in evaluation, and why without its loss, if that takes other results.

    trace: True: with the loss; ValueError where it fails
    """
    try:
        return trace(has_loss), ""
    except ValueError as error:
        if not has_loss:
            raise
        why = reason(error.__cause__ or error)
    return trace(False), why


def in_both_modes(
    training: Mode, trace: Callable[[bool], Mode], has_loss: bool
) -> tuple[Mode, Evaluation]:
    """The model in both modes, or in training and why not in both; and what evaluation gives.

    trace: as of `evaluated`
    """
    try:
        evaluation, why = evaluated(trace, has_loss)
        return join(training, evaluation, why)
    except ValueError as error:
        return training, Evaluation(unlike=str(error))


def join(
    training: Mode,
    evaluation: Mode,
    no_loss: str = "",
    scaled: Callable[[], Mode] | None = None,
) -> tuple[Mode, Evaluation]:
    """The model in both modes: training's own graph if that does for both.

    Equal sources have one name.
    no_loss: why evaluation has none
    scaled:  gives `evaluation` with what of it follows the batch, if that is not known yet; asked
             for only where evaluation has operators or inputs of its own, or gives numbers
    ValueError, with what is in the way, if there is none.
    """
    joined, scales = _aligned(training, evaluation), bool(evaluation.graph.batch or scaled)
    if scaled and (joined.has_own or numbers(evaluation.structure)):
        evaluation = scaled()
        joined, scales = _aligned(training, evaluation), bool(evaluation.graph.batch)
    both = replace(training, captured={**evaluation.captured, **training.captured})
    if joined.chosen or joined.own or training.graph.batch and not scales:
        opaque = {**training.opaque, **joined.opaque}
        both = replace(both, graph=finished(joined.graph, scales), opaque=opaque)
    results = tuple(joined.results)
    return both, Evaluation(evaluation.structure, results, no_loss=no_loss)


def _aligned(training: Mode, evaluation: Mode) -> _Joined:
    joined = _Joined(training.graph, evaluation.graph, evaluation.opaque)
    modes = training, evaluation
    ours, theirs = ([op for op in mode.graph.ops if _computes(op)] for mode in modes)
    scales, calls = all(mode.graph.batch for mode in modes), list[OpaqueCall]()
    keys = [
        [_key(mode, op, scales, calls) for op in ops]
        for mode, ops in zip(modes, (ours, theirs), strict=True)
    ]
    i = j = 0
    for block in SequenceMatcher(None, *keys, autojunk=False).get_matching_blocks():
        for op in ours[i : block.a]:
            joined.add(op)
        for op in theirs[j : block.b]:
            joined.add_own(op)
        i, j = block.a + block.size, block.b + block.size
        for op, same in zip(ours[block.a : i], theirs[block.b : j], strict=True):
            joined.add_both(op, same)
    joined.end(training.structure == evaluation.structure)
    return joined


def _computes(op: Op) -> bool:
    return op.kind not in (*SOURCE_KINDS, "loss")


def _key(mode: Mode, op: Op, scales: bool, calls: list[OpaqueCall]) -> Hashable:
    """Equal for operators that may be one: what they do, and where they come from.

    scales: whether it is known of both graphs what follows the batch
    calls:  those of opaque operators so far, of which each stands for all that are the same
    """
    of_mode = _OF_MODE.get(op.kind, ())
    attrs = tuple((k, v) for k, v in op.attrs.items() if k not in of_mode)
    tensors = [mode.graph.tensors[name] for name in (*op.inputs, *op.outputs)]
    follows = tuple(op.batch_attrs.items()), *(x.batch_dims for x in tensors)
    specs = tuple(x.spec for x in tensors)
    call = _number(mode.opaque[op.name], calls) if op.kind == "opaque" else None
    return op.module, op.kind, attrs, specs, len(op.inputs), follows if scales else (), call


def _number(call: OpaqueCall, calls: list[OpaqueCall]) -> int:
    """The place among `calls` of one that is the same; a new one is the last."""
    for number, known in enumerate(calls):
        if known.does_as(call):
            return number
    calls.append(call)
    return len(calls) - 1


@dataclass
class _Joined:
    """The joined graph, with training's names where it has any.

    ops:     those that compute
    calls:   of evaluation's opaque operators
    taken:   names of tensors and operators
    names:   tensors of evaluation -> those of the joined graph
    chosen:  (in training, in evaluation) -> the result of `by_mode`
    passed:  results of operators that give what they read in evaluation -> what they read
    own:     what evaluation alone gives -> the result of `by_mode`
    opaque:  operators that evaluation alone has -> how to run them
    results: of evaluation, by their places in `outputs`
    has_own: whether there are operators, or inputs, that evaluation alone has
    """

    training: Graph
    evaluation: Graph
    calls: Mapping[str, OpaqueCall]
    ops: list[Op] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    loss: str = ""
    taken: set[str] = field(default_factory=set)
    names: dict[str, str] = field(default_factory=dict)
    chosen: dict[tuple[str, str], str] = field(default_factory=dict)
    passed: dict[str, str] = field(default_factory=dict)
    own: dict[str, str] = field(default_factory=dict)
    opaque: dict[str, OpaqueCall] = field(default_factory=dict)
    tensors: dict[str, Planned] = field(default_factory=dict)
    has_own: bool = False

    def __post_init__(self) -> None:
        self.tensors = {**self.evaluation.tensors, **self.training.tensors}
        sources = (op.name for op in self.evaluation.ops if op.kind in SOURCE_KINDS)
        self.taken = {*self.training.tensors, *(op.name for op in self.training.ops), *sources}
        inputs = [op.outputs[0] for op in self.evaluation.ops if op.kind == "input"]
        self.has_own = any(name not in self.training.tensors for name in inputs)

    @property
    def graph(self) -> Graph:
        """What was joined."""
        ends = [replace(op, inputs=(self.loss,)) for op in self.training.ops if op.kind == "loss"]
        ops = [*self.ops, *ends]
        read = {x for op in ops for x in op.inputs} | {*self.outputs}
        made = {
            op.outputs[0]: op
            for graph in (self.evaluation, self.training)
            for op in graph.ops
            if op.kind in SOURCE_KINDS and op.outputs[0] in read
        }
        return replace(
            self.training,
            ops=(*made.values(), *ops),
            tensors=self.tensors,
            outputs=tuple(self.outputs),
            loss=self.loss,
        )

    def add(self, op: Op) -> None:
        """An operator that training alone has."""
        self.ops.append(op)
        if op.kind == "dropout":
            self.passed[op.outputs[0]] = op.inputs[0]
        if op.kind == "by_mode":
            self.passed[op.outputs[0]] = op.inputs[1]

    def add_own(self, op: Op) -> None:
        """An operator that evaluation alone has."""
        self.has_own = True
        name = self._unique(op.module, op.kind)
        if op.kind == "opaque":
            self.opaque[name] = self.calls[op.name]
        inputs = tuple(self.names.get(x, x) for x in op.inputs)
        outputs = tuple(
            name if len(op.outputs) == 1 else f"{name}:{n}" for n in range(len(op.outputs))
        )
        for old, new in zip(op.outputs, outputs, strict=True):
            self.tensors[new] = replace(self.evaluation.tensors[old], name=new)
            self.names[old] = new
        self.ops.append(replace(op, name=name, inputs=inputs, outputs=outputs))

    def _unique(self, module: str, kind: str) -> str:
        """The name of a new operator."""
        name = f"{module}/{kind}" if module else kind
        names = (f"{name}_{n}" if n else name for n in count())
        found = next(x for x in names if x not in self.taken)
        self.taken.add(found)
        return found

    def add_both(self, op: Op, evaluation: Op) -> None:
        """An operator of both, the same but for what it reads."""
        reads = zip(op.inputs, evaluation.inputs, strict=True)
        self.ops.append(replace(op, inputs=tuple(self.by_mode(*pair) for pair in reads)))
        self.names.update(zip(evaluation.outputs, op.outputs, strict=True))

    def by_mode(self, training: str, evaluation: str) -> str:
        """The tensor that is the one in training and the other in evaluation."""
        evaluation = self.names.get(evaluation, evaluation)
        if self._is_same(training, evaluation):
            return training
        if (training, evaluation) not in self.chosen:
            ours, theirs = self.tensors[training], self.tensors[evaluation]
            if ours.spec != theirs.spec:
                raise ValueError(f"{training} is {ours.spec} and then {theirs.spec}")
            module = self.training.producers[training].module
            name = self._unique(module, "by_mode")
            self.tensors[name] = replace(ours, name=name)
            self.ops.append(Op(name, "by_mode", (training, evaluation), (name,), module=module))
            self.chosen[training, evaluation] = name
        return self.chosen[training, evaluation]

    def _is_same(self, training: str, evaluation: str) -> bool:
        """Whether the tensor of the joined graph has in evaluation the other one's values."""
        same = training
        while same in self.passed:
            same = self.passed[same]
        return evaluation in (training, same)

    def end(self, alike: bool) -> None:
        """The results, and the loss.

        alike: those of both modes stand for each other where they are of one shape; else evaluation
               has results of its own, behind those of training that it does not give
        """
        self.outputs = [*self.training.outputs]
        for place, name in enumerate(self.evaluation.outputs):
            found = self.tensors[self.names.get(name, name)]
            if alike and replace(self.tensors[self.outputs[place]], name=found.name) == found:
                self.outputs[place] = self.by_mode(self.outputs[place], name)
                self.results.append(place)
            else:
                self.results.append(self._own_result(found.name))
        if self.evaluation.loss or not self.training.loss:
            self.loss = self.by_mode(self.training.loss, self.evaluation.loss)
        else:
            self.loss = self.training.loss

    def _own_result(self, name: str) -> int:
        """The place among the outputs of a tensor that evaluation gives; a new one is the last."""
        for place, ours in enumerate(self.training.outputs):
            if ours == self.outputs[place] and self._is_same(ours, name):
                return place
        if name not in self.own:
            made = [n for n, op in enumerate(self.ops) if name in op.outputs]
            after = made[0] + 1 if made else 0
            module = self.ops[made[0]].module if made else ""
            self.own[name] = new = self._unique(module, "by_mode")
            self.tensors[new] = replace(self.tensors[name], name=new)
            self.ops.insert(after, Op(new, "by_mode", (name,), (new,), module=module))
            self.outputs.append(new)
        return self.outputs.index(self.own[name])
