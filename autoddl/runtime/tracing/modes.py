"""Joins the graph of a model in training with the one in evaluation where they differ.

What a model does with `self.training` (stochastic depth, noise, another head) only its own code can
tell. Operators that both graphs have stand once in the joined one. Where one reads another tensor
in evaluation than in training, it reads the result of an operator `by_mode` of the two. So the
joined graph computes in each mode what the model does, however well the two were aligned; that only
decides its length.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from typing import Any

from ...graph.graph import Graph
from ...graph.operator import Op, Tensor
from .instead import instead

_SOURCES = ("input", "param", "buffer")
_OF_MODE = {"normalization": ("training", "momentum")}  # attributes that differ, as kernels know
_PREFIX = "evaluation/"


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


def join(training: Graph, evaluation: Graph) -> Graph:
    """The graph of both modes: training's own if that does for both. Equal sources have one name.

    ValueError, with what is in the way, if there is none.
    """
    joined = _Joined(training)
    ours, theirs = ([op for op in g.ops if _computes(op)] for g in (training, evaluation))
    keys = [[_key(g, op) for op in ops] for g, ops in ((training, ours), (evaluation, theirs))]
    held = {op.outputs[0] for op in training.ops if op.kind in _SOURCES}
    joined.sources = [op for op in training.ops if op.kind in _SOURCES]
    for op in evaluation.ops:
        if op.kind in _SOURCES and op.outputs[0] not in held:
            joined.add_source(op, evaluation)
    i = j = 0
    for block in SequenceMatcher(None, *keys, autojunk=False).get_matching_blocks():
        for op in ours[i : block.a]:
            joined.add(op)
        for op in theirs[j : block.b]:
            joined.add_alone(op, evaluation)
        i, j = block.a + block.size, block.b + block.size
        for op, same in zip(ours[block.a : i], theirs[block.b : j], strict=True):
            joined.add_both(op, same)
    if len(training.outputs) != len(evaluation.outputs):
        raise ValueError("its results are others")
    pairs = zip(training.outputs, evaluation.outputs, strict=True)
    outputs = tuple(joined.by_mode(*pair) for pair in pairs)
    loss = joined.by_mode(training.loss, evaluation.loss)
    if not joined.chosen:
        return training
    ends = [replace(op, inputs=(loss,)) for op in training.ops if op.kind == "loss"]
    ops = (*joined.sources, *joined.ops, *ends)
    batch = training.batch if evaluation.batch else 0
    tensors = {name: joined.tensors[name] for op in ops for name in op.outputs}
    found = replace(
        training, ops=ops, tensors=tensors, outputs=outputs, loss=loss, batch=batch
    )  # fmt: skip
    found.verify()
    return found


def _computes(op: Op) -> bool:
    return op.kind not in (*_SOURCES, "loss")


def _key(graph: Graph, op: Op) -> Hashable:
    """Equal for operators that may be one: what they do, and where they come from."""
    of_mode = _OF_MODE.get(op.kind, ())
    attrs = tuple((k, v) for k, v in op.attrs.items() if k not in of_mode)
    made = tuple((t.spec, t.batch_dims) for t in map(graph.tensors.__getitem__, op.outputs))
    return op.module, op.kind, attrs, tuple(op.batch_attrs.items()), made, len(op.inputs)


@dataclass
class _Joined:
    """The joined graph, with training's names where it has any.

    taken:  names of tensors and operators
    names:  tensors of evaluation -> those of the joined graph
    chosen: (in training, in evaluation) -> the result of `by_mode`
    passed: results of operators that give what they read in evaluation -> what they read
    """

    training: Graph
    taken: set[str] = field(default_factory=set)
    names: dict[str, str] = field(default_factory=dict)
    sources: list[Op] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    chosen: dict[tuple[str, str], str] = field(default_factory=dict)
    passed: dict[str, str] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tensors = dict(self.training.tensors)
        self.taken = {*self.tensors, *(op.name for op in self.training.ops)}

    def add(self, op: Op) -> None:
        """An operator that training alone has."""
        self.ops.append(op)
        if op.kind == "dropout":
            self.passed[op.outputs[0]] = op.inputs[0]
        if op.kind == "by_mode":
            self.passed[op.outputs[0]] = op.inputs[1]

    def add_source(self, op: Op, graph: Graph) -> None:
        self.sources.append(self._renamed(op, graph))

    def add_alone(self, op: Op, graph: Graph) -> None:
        """An operator that evaluation alone has."""
        if op.kind == "opaque":
            raise ValueError(f"{op.module} runs as it is in evaluation alone")
        self.ops.append(self._renamed(op, graph))

    def _renamed(self, op: Op, graph: Graph) -> Op:
        inputs = tuple(self.names.get(x, x) for x in op.inputs)
        new = {x: self._unique(x) for x in op.outputs}
        self.names |= new
        for old, name in new.items():
            self.tensors[name] = replace(graph.tensors[old], name=name)
        name = new.get(op.name) or self._unique(op.name)
        return replace(op, name=name, inputs=inputs, outputs=tuple(new.values()))

    def _unique(self, name: str) -> str:
        found = name if name not in self.taken else f"{_PREFIX}{name}"
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
        same = training
        while same in self.passed:
            same = self.passed[same]
        if evaluation in (training, same):
            return training
        if (training, evaluation) not in self.chosen:
            ours, theirs = self.tensors[training], self.tensors[evaluation]
            if ours.spec != theirs.spec:
                raise ValueError(f"{training} is {ours.spec} and then {theirs.spec}")
            name = self._unique(f"{training}/by_mode")
            self.tensors[name] = replace(ours, name=name)
            by = self.training.producers[training]
            self.ops.append(Op(name, "by_mode", (training, evaluation), (name,), module=by.module))
            self.chosen[training, evaluation] = name
        return self.chosen[training, evaluation]
