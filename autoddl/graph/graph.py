"""The traced model: frozen operators and tensors in topological order.

A `Graph` is what a back end's tracer produces and all planning consumes. Operators keep the back
end's kind names (`broadcast_matmul`, `conv2d`, ...) and its attributes. Four kinds have no inputs
and stand for data: `input` (attrs: `index`), `param` (attrs: `name`), `buffer` (attrs: `name`),
`constant` kinds of the back end. Five are the graph's own: `fork` (identity: one tensor, several
consumers), `loss` (the sink that takes the scalar loss), `by_mode` (of two tensors the first in
training and the second in evaluation; of one, which only evaluation gives), and in the graph of a
pipeline stage
`stage_input` (a source: what an earlier stage sends) and `stage_output` (a sink: what it sends on),
with attrs `tensor` (its name in the whole graph) and `gradient` (whether one comes or goes back).

Operators and tensors (`operator`) know what of them is proportional to the batch, so
`Graph.with_batch` gives the graph of any micro-batch without tracing again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import compress, count
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator

from .._files import FIELDS, OMIT, FileKind, Size, Versioned, printable
from ..sbp.layout import TensorSpec
from ..sbp.signature import OpSpec, Signature, find_rule, is_random, signatures_of
from .hint_file import StoredHints
from .operator import Op, Tensor, Tensors

SOURCE_KINDS = ("input", "param", "buffer")


Result = TypeVar("Result")


class Once:
    """A base of frozen values, of which functions outside of their class keep what follows.

    What they keep here is no part of them and is not compared.
    """

    def once(self, compute: Callable[..., Result], *by: Any) -> Result:
        """`compute(self, *by)`, computed when it is first asked for."""
        key = compute, *by
        if key not in self._known:
            self._known[key] = compute(self, *by)
        return self._known[key]

    @cached_property
    def _known(self) -> dict[tuple[Any, ...], Any]:
        return {}


@dataclass(frozen=True, kw_only=True)
class Graph(Once):
    """Operators in topological order, and the tensors by name.

    batch:    size of the batch that the shapes are for (dim 0 of the inputs); 0 if the model cannot
              be re-batched (its trace changes with the batch), then `with_batch` refuses
    outputs:  names of the tensors that the model (not the loss) returned
    loss:     name of the scalar loss tensor, which the `loss` op takes; "" if traced without a loss
    framework: that the model is of; by its memory rules it is planned, unless others are asked for
    hints:    of the model's own code (`graph.hints`), until it is planned
    """

    VERSION: ClassVar[int] = 1
    SEALED: ClassVar[bool] = True

    name: str = "model"
    batch: Size
    loss: str
    outputs: tuple[str, ...]
    tensors: Tensors
    ops: tuple[Op, ...]
    framework: Annotated[str, OMIT] = "oneflow"
    hints: Annotated[StoredHints, OMIT] = ()

    __pydantic_config__ = FIELDS

    @cached_property
    def producers(self) -> dict[str, Op]:
        """Tensor name -> the operator that produces it."""
        return {out: op for op in self.ops for out in op.outputs}

    def origin(self, tensor: str) -> Op:
        """The operator that produces it, before it was forked."""
        op = self.producers[tensor]
        return self.producers[op.inputs[0]] if op.kind == "fork" else op

    @cached_property
    def consumers(self) -> dict[str, tuple[tuple[Op, int], ...]]:
        """Tensor name -> (operator, input index) pairs that read it, in graph order."""
        found: dict[str, list[tuple[Op, int]]] = {name: [] for name in self.tensors}
        for op in self.ops:
            for index, name in enumerate(op.inputs):
                found[name].append((op, index))
        return {name: tuple(uses) for name, uses in found.items()}

    @property
    def needs_grad(self) -> frozenset[str]:
        """Names of the tensors through which a gradient flows from the loss to a parameter."""
        return self.gradients[0]

    @property
    def gives_grad(self) -> frozenset[tuple[str, int]]:
        """The (operator, input index) pairs that contribute to the gradient of their input.

        An operator may read a tensor that needs a gradient and contribute nothing, e.g. a
        comparison.
        """
        return self.gradients[1]

    @cached_property
    def gradients(self) -> tuple[frozenset[str], frozenset[tuple[str, int]]]:
        """`needs_grad` and `gives_grad`."""
        known: dict[int, tuple[list[int], list[int]]] = {}
        towards: set[str] = set()
        flows: list[tuple[Op, list[int], list[str], list[str]]] = []  # of what is towards the loss
        for op in self.ops:
            number = self.alike[op.name]
            if number not in known:
                known[number] = self._differentiable(op)
            given, taken = known[number]
            read, made = [op.inputs[n] for n in given], [op.outputs[n] for n in taken]
            is_source = op.kind in ("param", "stage_input")
            if is_source or not towards.isdisjoint(read):
                towards.update(made)
                flows.append((op, given, read, made))
        useful: set[str] = {self.loss} if self.loss else set(self.outputs)
        if self.is_stage and not self.loss:
            useful = set()
        giving: list[tuple[str, int]] = []
        for op, given, read, made in reversed(flows):
            is_sink = op.kind in ("loss", "stage_output")
            if is_sink or not useful.isdisjoint(made):
                useful.update(read)
                giving += [(op.name, n) for n, t in zip(given, read, strict=True) if t in towards]
        return frozenset(towards & useful), frozenset(giving)

    def _differentiable(self, op: Op) -> tuple[list[int], list[int]]:
        """The inputs that get a gradient from `op`, and the outputs whose gradient it takes."""
        spec = self.spec(op)
        if op.kind == "param":
            given, taken = [], [t.is_float and op.is_trainable for t in spec.outputs]
        elif find_rule(op.kind) and (signatures := self.signatures(op)):
            given = [p is not None for p in signatures[0].grad_ins]
            taken = [p is not None for p in signatures[0].grad_outs]
        else:
            given = [t.is_float for t in spec.inputs]
            taken = [t.is_float for t in spec.outputs]
        return list(compress(count(), given)), list(compress(count(), taken))

    @cached_property
    def alike(self) -> Mapping[str, int]:
        """Operator name -> a number, equal for operators of the same rule, attributes and tensors.

        The operators are then alike at every batch size. Which part of a tensor they take does not
        count, so that the steps of an unrolled LSTM are alike.
        """
        sizes: dict[Hashable, int] = {}
        size_of = {
            name: sizes.setdefault((t.spec.shape, t.spec.dtype, t.batch_dims), len(sizes))
            for name, t in self.tensors.items()
        }
        numbers: dict[Hashable, int] = {}
        found: dict[str, int] = {}
        for op in self.ops:
            tensors = [size_of[name] for name in (*op.inputs, *op.outputs)]
            key = op.kind, op.seen_attrs, len(op.inputs), *tensors
            found[op.name] = numbers.setdefault(key, len(numbers))
        return found

    @cached_property
    def free_ops(self) -> frozenset[str]:
        """Names of operators whose outputs are available on any device in any placement at no cost.

        These are model inputs, buffers, constants, and what is computed from buffers and constants
        alone.
        """
        constant: set[str] = set()
        free: set[str] = set()
        for op in self.ops:
            if op.kind == "input":
                free.add(op.name)
            elif (
                op.kind not in ("param", "stage_input")
                and not is_random(op.kind)
                and set(op.inputs) <= constant
            ):
                free.add(op.name)
                constant.update(op.outputs)
        return frozenset(free)

    @cached_property
    def numbers_of_dims(self) -> frozenset[int]:
        """That its tensors have."""
        return frozenset(len(tensor.spec.shape) for tensor in self.tensors.values())

    @property
    def params(self) -> tuple[Op, ...]:
        return tuple(op for op in self.ops if op.kind == "param")

    @cached_property
    def is_stage(self) -> bool:
        """True for a pipeline stage: a part of a model that exchanges tensors with other parts."""
        return any(op.kind in ("stage_input", "stage_output") for op in self.ops)

    @cached_property
    def gives_back(self) -> bool:
        """True for a pipeline stage that gives stages before it gradients of what they sent."""
        return any(op.kind == "stage_input" and op.attrs["gradient"] for op in self.ops)

    def spec(self, op: Op) -> OpSpec:
        """The operator as the rules see it."""
        known = self._specs.get(op.name)
        if known is None or known[0] is not op:
            known = self._specs[op.name] = (
                op,
                OpSpec(
                    op.kind,
                    op.attrs,
                    tuple(self.tensors[name].spec for name in op.inputs),
                    tuple(self.tensors[name].spec for name in op.outputs),
                ),
            )
        return known[1]

    @cached_property
    def _specs(self) -> dict[str, tuple[Op, OpSpec]]:
        """The `OpSpec`s computed so far, by operator name."""
        return {}

    def signatures(self, op: Op) -> tuple[Signature, ...]:
        """The `signatures_of` the operator, computed once for all operators that are alike."""
        number = self.alike[op.name]
        if number not in self._signatures:
            self._signatures[number] = signatures_of(self.spec(op))
        return self._signatures[number]

    @cached_property
    def _signatures(self) -> dict[int, tuple[Signature, ...]]:
        """The signatures computed so far, by the operator's number in `alike`."""
        return {}

    def verify(self) -> None:
        """Check the invariants; AssertionError names the op that breaks one.

        ValueError on a name that is no text.
        """
        for name in dict.fromkeys((self.name, *(op.module for op in self.ops), *self.tensors)):
            printable(name)
        seen: set[str] = set()
        names: set[str] = set()
        for name, tensor in self.tensors.items():
            for dim in tensor.batch_dims:
                rank = len(tensor.spec.shape)
                assert dim < rank, f"dim {dim} of {name} is the batch's: it has {rank} dims"
        for op in self.ops:
            assert op.name not in names, f"two operators are named {op.name}"
            names.add(op.name)
            for name in op.inputs:
                assert name in seen, f"{op.name} reads {name} before it is produced"
            for name in op.outputs:
                assert name not in seen, f"{op.name} produces {name} a second time"
                assert name in self.tensors, f"{op.name} produces an unknown tensor {name}"
                seen.add(name)
        assert seen == set(self.tensors), f"tensors without a producer: {set(self.tensors) - seen}"
        for name in (*self.outputs, *((self.loss,) if self.loss else ())):
            assert name in seen, f"the graph returns an unknown tensor {name}"

    def in_mode(self, training: bool) -> Graph:
        """The graph with an identity for each `by_mode` whose tensor is known, as the mode is."""
        if all(op.kind != "by_mode" for op in self.ops):
            return self
        return self.once(_in_training if training else _in_evaluation)

    def evaluated_alone(self, unsent: Collection[str] = ()) -> frozenset[str]:
        """Names of the operators that nothing needs in training, where `unsent` is not sent on."""
        found: set[str] = set()
        for op in reversed(self.ops):
            uses = [use for name in op.outputs for use in self.consumers[name]]
            if op.kind == "by_mode" and len(op.inputs) == 1:
                found.add(op.name)
            elif op.kind == "stage_output":
                found.update([op.name] if op.attrs["tensor"] in unsent else [])
            elif uses and not {*op.outputs} & {*self.outputs}:
                alone = (u.name in found or (u.kind, n) == ("by_mode", 1) for u, n in uses)
                found.update([op.name] if all(alone) else [])
        return frozenset(found)

    def with_batch(self, batch: int) -> Graph:
        """The same graph for another batch size. ValueError if the model cannot be re-batched."""
        if batch == self.batch:
            return self
        if self.batch == 0:
            raise ValueError(
                "this model's trace depends on the batch size in a way that is not proportional, "
                "so it cannot be split into micro-batches or run with another batch; "
                "trace it with the batch that you want to run"
            )
        if batch < 1:
            raise ValueError(f"a batch needs at least one row, got {batch}")

        known: dict[tuple[TensorSpec, tuple[int, ...]], TensorSpec] = {}

        def scale_tensor(tensor: Tensor) -> Tensor:
            if not tensor.batch_dims:
                return tensor
            key = tensor.spec, tensor.batch_dims
            if key not in known:
                known[key] = tensor.scaled(self.batch, batch).spec
            return Tensor(tensor.name, known[key], tensor.batch_dims)

        scaled = dataclasses.replace(
            self,
            ops=tuple(op.scaled(self.batch, batch) for op in self.ops),
            tensors={name: scale_tensor(t) for name, t in self.tensors.items()},
            batch=batch,
        )
        for same in ("alike", "gradients", "free_ops", "numbers_of_dims"):  # slow to find out
            scaled.__dict__[same] = getattr(self, same)
        return scaled

    def with_forks(self) -> Graph:
        """Insert a `fork` after every computed tensor that has several consumers.

        The search chooses the fork's placement: a tensor that several consumers need in another
        placement is then redistributed once, and their gradients are summed before they travel
        back. So it is with uses of a trained parameter that are alike, as those by the steps of an
        LSTM; others, as of an embedding that is the last layer's weight, too, have their own ways.
        """
        ops: list[Op] = []
        tensors = dict(self.tensors)
        renamed: dict[tuple[str, int], str] = {}
        needs_grad, gives_grad = map(set, self.gradients)
        for op in self.ops:
            ins = tuple(renamed.get((op.name, n), name) for n, name in enumerate(op.inputs))
            ops.append(op if ins == op.inputs else dataclasses.replace(op, inputs=ins))
            for place, out in enumerate(op.outputs):
                made_by = f"{op.name}:{place}" if place else op.name
                for number, uses in enumerate(self._forked_uses(op, out)):
                    suffix = f".{number}.fork" if number else ".fork"
                    name = f"{out}{suffix}"
                    tensors[name] = Tensor(name, tensors[out].spec, tensors[out].batch_dims)
                    fork = Op(f"{made_by}{suffix}", "fork", (out,), (name,), module=op.module)
                    ops.append(fork)
                    renamed.update(dict.fromkeys(uses, name))
                    if not self.gives_grad.isdisjoint(uses):
                        needs_grad.add(name)
                        gives_grad.add((fork.name, 0))
        forked = dataclasses.replace(self, ops=tuple(ops), tensors=tensors)
        # slow to find out
        forked.__dict__["gradients"] = frozenset(needs_grad), frozenset(gives_grad)
        return forked

    def _forked_uses(self, op: Op, out: str) -> list[list[tuple[str, int]]]:
        """The uses of an operator's output that share a fork, several of each."""
        uses = self.consumers[out]
        if len(uses) < 2 or op.kind == "fork" or any(user.kind == "fork" for user, _ in uses):
            return []
        if op.kind not in SOURCE_KINDS:
            return [[(user.name, index) for user, index in uses]]
        if op.kind != "param" or out not in self.needs_grad:
            return []
        alike: dict[tuple[int, int], list[tuple[str, int]]] = {}
        for user, index in uses:
            key = user.name, index
            if key in self.gives_grad:
                alike.setdefault((self.alike[user.name], index), []).append(key)
        return [keys for keys in alike.values() if len(keys) > 1]

    def to_json(self) -> dict[str, Any]:
        """A JSON object; `from_json` inverts it."""
        return GRAPH_FILE.to_json(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Graph:
        """Raises ValueError on another version or a field that is missing or wrong."""
        return GRAPH_FILE.from_json(data)

    def save(self, path: str | Path) -> None:
        """Write JSON; the file is replaced only when it is whole."""
        GRAPH_FILE.save(self, path)

    @staticmethod
    def load(path: str | Path) -> Graph:
        """Read what `save` wrote. ValueError names the file and what is wrong with it."""
        return GRAPH_FILE.load(path)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the operators, shapes and attributes: two traces of one model agree."""
        return self.to_json()["fingerprint"]


def _in_training(graph: Graph) -> Graph:
    return _chosen(graph, 0)


def _in_evaluation(graph: Graph) -> Graph:
    return _chosen(graph, 1)


def _chosen(graph: Graph, mode: int) -> Graph:
    def chosen(op: Op) -> Op:
        if op.kind != "by_mode" or len(op.inputs) + mode == 1:
            return op
        return dataclasses.replace(op, kind="identity", inputs=op.inputs[mode:][:1] or op.inputs)

    found = dataclasses.replace(graph, ops=tuple(map(chosen, graph.ops)))
    found.__dict__["gradients"] = graph.gradients  # slow to find out
    return found


StoredGraph = Annotated[Graph, AfterValidator(lambda g: g.verify() or g), Versioned()]
GRAPH_FILE: FileKind[Graph] = FileKind("graph", StoredGraph, "trace the model again")
