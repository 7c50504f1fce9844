"""Operators that share one decision: the variables of the search.

Moving a redistribution past an operator that keeps the size of its one activation (a bias, an
activation function, a reshape, a dropout) changes no byte, so such an operator is planned together
with its only consumer: the edge between them never redistributes. A `Group` is a chain or tree of
such operators that ends in its head. Its one-axis signatures, `CompositeSignature`s, are the joins
of its operators' signatures in which every inner edge agrees.

Sources are not groups. A tensor computed from buffers and constants alone, and a model input, can
be had in any placement without communication; a parameter with one use is stored as that use needs
it. Only a parameter with several uses (tied weights) is a group of its own.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ...cost.recompute import Recomputation
from ...graph.demands import Demand, Demands
from ...graph.graph import Graph, Op
from ...graph.regions import Blocks
from ...sbp.placement import Placement
from ...sbp.signature import Rule, Signature, find_rule, partial_gradient

# Of a group. 32 and 128 gave the same plans of VGG13, ResNet-50 and two GPTs, in the same time.
MAX_COMPOSITES = 64


@dataclass(frozen=True)
class Port:
    """An input of a group: input `index` of its operator number `op`."""

    op: int
    index: int
    tensor: str


@dataclass(frozen=True)
class Group:
    """Operators in graph order; the last one is the head.

    demands: of its operators, by number, what hints ask for
    """

    ops: tuple[Op, ...]
    inputs: tuple[Port, ...]  # fed by other groups
    sources: tuple[Port, ...]  # fed by inputs, constants and single-use parameters
    outputs: tuple[tuple[int, int, str], ...]  # (operator, output index, tensor) read elsewhere
    demands: tuple[tuple[int, Demand], ...] = ()

    @property
    def head(self) -> Op:
        return self.ops[-1]


@dataclass(frozen=True)
class CompositeSignature:
    """One signature per operator of a group, agreeing on every inner edge, on one mesh axis."""

    signatures: tuple[Signature, ...]

    @cached_property
    def divides_work(self) -> bool:
        return self.signatures[-1].divides_work

    @property
    def takes_partial(self) -> bool:
        return any(p.is_partial for p in self.signatures[-1].ins)

    @property
    def splits_batch(self) -> bool:
        """True if the head's outputs are split along dim 0 (the batch, in a traced model)."""
        outs = self.signatures[-1].outs
        return bool(outs) and all(p.is_split and p.dim == 0 for p in outs)

    def __str__(self) -> str:
        return str(self.signatures[-1])


@dataclass(frozen=True)
class Grouping:
    """The groups of a graph, and where each tensor comes from.

    free:     names of operators whose outputs any device can have in any placement (inputs,
              buffers, constants and what is computed from the latter)
    owner:    operator name -> group number, for grouped operators
    kinds:    of each group a number, equal for groups that have the same tables
    """

    graph: Graph
    groups: tuple[Group, ...]
    free: frozenset[str]
    owner: dict[str, int]
    kinds: tuple[int, ...]

    def at_batch(self, graph: Graph) -> Grouping:
        """The grouping of the model at another batch; groups and their kinds stay the same."""
        pairs = zip(self.graph.ops, graph.ops, strict=True)
        scaled = {op.name: op for known, op in pairs if op is not known}
        groups = list(self.groups)
        for number in {self.owner[name] for name in scaled if name in self.owner}:
            ops = tuple(scaled.get(op.name, op) for op in groups[number].ops)
            groups[number] = replace(groups[number], ops=ops)
        return replace(self, graph=graph, groups=tuple(groups))


def rule_of(op: Op) -> Rule:
    """The rule of an operator; the tracer made operators without one opaque."""
    rule = find_rule(op.kind)
    if rule is None:
        raise ValueError(
            f"operator {op.name!r} of kind {op.kind!r} has no rule; trace the model with this "
            "version of autoddl (which makes such submodules opaque) or register a rule with @rule"
        )
    return rule


def make_groups(graph: Graph, demands: Demands | None = None) -> Grouping:
    """Partition the graph's operators into groups. See the module docstring.

    An operator of which something is demanded is planned only with those of which the same is:
    demands reach no further than the hints that they come from.
    """
    demands = demands or {}
    free = graph.free_ops
    single_params = {op.name for op in graph.params if len(graph.consumers[op.outputs[0]]) == 1}
    ungrouped = free | single_params
    # The consumer with which an operator is planned; consumers come later in graph order.
    merged_into: dict[str, str] = {}
    same_size: dict[int, tuple[int, ...]] = {}  # of operators that are alike
    for op in graph.ops:
        if op.name in ungrouped:
            continue
        alike = graph.alike[op.name]
        if alike not in same_size:
            same_size[alike] = _of_one_size(graph, op)
        if _merges(graph, op, same_size[alike], ungrouped):
            consumer = graph.consumers[op.outputs[0]][0][0].name
            if op.name not in demands or demands[op.name] == demands.get(consumer):
                merged_into[op.name] = consumer
    head_of: dict[str, str] = {}
    for op in reversed(graph.ops):
        if op.name not in ungrouped:
            into = merged_into.get(op.name)
            head_of[op.name] = op.name if into is None else head_of[into]
    members: dict[str, list[Op]] = {}
    for op in graph.ops:
        if op.name not in ungrouped:
            members.setdefault(head_of[op.name], []).append(op)
    ordered = [members[op.name] for op in graph.ops if op.name in members]
    groups = tuple(_make_group(graph, ops, ungrouped, demands) for ops in ordered)
    owner = {op.name: number for number, group in enumerate(groups) for op in group.ops}
    return Grouping(graph, groups, free, owner, _kinds(graph, groups, owner))


def _merges(graph: Graph, op: Op, same_size: Sequence[int], ungrouped: Container[str]) -> bool:
    """True if `op` may be planned with its consumer. same_size: `_of_one_size`"""
    if not same_size:
        return False
    uses = graph.consumers[op.outputs[0]]
    if len(uses) != 1 or uses[0][0].kind in ("loss", "opaque"):
        return False
    inputs = [graph.producers[op.inputs[n]].name for n in same_size]
    return sum([producer not in ungrouped for producer in inputs]) == 1


def _of_one_size(graph: Graph, op: Op) -> tuple[int, ...]:
    """The inputs that are as large as the output at every batch, of an operator that may merge."""
    if op.kind in ("fork", "param", "loss", "opaque") or len(op.outputs) != 1 or rule_of(op).heavy:
        return ()

    def size(tensor: str) -> tuple[int, int]:
        found = graph.tensors[tensor]
        return found.spec.numel, len(found.batch_dims)

    made = size(op.outputs[0])
    return tuple([n for n, name in enumerate(op.inputs) if size(name) == made])


def _make_group(graph: Graph, ops: list[Op], ungrouped: Container[str], demands: Demands) -> Group:
    names = {op.name for op in ops}
    inputs: list[Port] = []
    sources: list[Port] = []
    for number, op in enumerate(ops):
        for index, name in enumerate(op.inputs):
            producer = graph.producers[name].name
            if producer not in names:
                ports = sources if producer in ungrouped else inputs
                ports.append(Port(number, index, name))
    outputs = [
        (number, index, out)
        for number, op in enumerate(ops)
        for index, out in enumerate(op.outputs)
        if out in graph.outputs
        or not names.issuperset([consumer.name for consumer, _ in graph.consumers[out]])
    ]
    demanded = tuple((n, own) for n, op in enumerate(ops) for own in demands.get(op.name, ()))
    return Group(tuple(ops), tuple(inputs), tuple(sources), tuple(outputs), demanded)


def _kinds(graph: Graph, groups: Sequence[Group], owner: Container[str]) -> tuple[int, ...]:
    numbers: dict[Hashable, int] = {}
    return tuple(numbers.setdefault(_key(graph, group, owner), len(numbers)) for group in groups)


def _key(graph: Graph, group: Group, owner: Container[str]) -> Hashable:
    """Equal for groups that have the same tables, at every batch."""
    position = {op.name: number for number, op in enumerate(group.ops)}
    needs_grad, gives_grad = graph.gradients
    parts: list[Hashable] = []
    for op in group.ops:
        parts.append(graph.alike[op.name])
        for index, name in enumerate(op.inputs):
            producer = graph.producers[name]
            made: Hashable = position.get(producer.name, "external")
            if producer.name not in owner:
                made = producer.kind if producer.kind in ("param", "input") else "free"
            readers = len(graph.consumers[name]) if producer.kind == "buffer" else 0
            parts += made, (op.name, index) in gives_grad, readers
        parts += [name in needs_grad for name in op.outputs]
    # Which outputs are read outside decides which composite signatures are distinct.
    return tuple(parts), tuple([(n, index) for n, index, _ in group.outputs]), group.demands


def composite_signatures(graph: Graph, group: Group) -> tuple[CompositeSignature, ...]:
    """All joins of the operators' one-axis signatures, distinct as seen from outside."""
    position = {op.name: number for number, op in enumerate(group.ops)}
    head = len(group.ops) - 1
    choices = [graph.signatures(op) for op in group.ops]
    for number in range(head):
        choices[number] += tuple(filter(None, map(partial_gradient, choices[number])))
    partial: list[dict[int, Signature]] = [{head: s} for s in choices[head]]
    for number in range(head - 1, -1, -1):
        out = group.ops[number].outputs[0]
        consumer, index = graph.consumers[out][0]
        at = position[consumer.name]
        has_grad = out in graph.needs_grad
        extended: list[dict[int, Signature]] = []
        for chosen in partial:
            wanted = chosen[at].ins[index]
            gradient = chosen[at].grad_ins[index]
            extended.extend(
                {**chosen, number: s}
                for s in choices[number]
                if s.outs[0] == wanted and (not has_grad or s.grad_outs[0] == gradient)
            )
        partial = extended
    unique: dict[tuple[object, ...], CompositeSignature] = {}
    for chosen in partial:
        signatures = tuple(chosen[number] for number in range(len(group.ops)))
        unique.setdefault(_outside(graph, group, signatures), CompositeSignature(signatures))
    composites = tuple(unique.values())[:MAX_COMPOSITES]
    assert composites, f"no joint signature for {[op.name for op in group.ops]}"
    return composites


def _outside(
    graph: Graph, group: Group, signatures: tuple[Signature, ...]
) -> tuple[Placement | None, ...]:
    """The placements that the rest of the graph sees."""
    seen: list[Placement | None] = []
    for port in (*group.inputs, *group.sources):
        has_grad = (group.ops[port.op].name, port.index) in graph.gives_grad
        seen.append(signatures[port.op].ins[port.index])
        seen.append(signatures[port.op].grad_ins[port.index] if has_grad else None)
    for number, index, tensor in group.outputs:
        has_grad = tensor in graph.needs_grad
        seen.append(signatures[number].outs[index])
        seen.append(signatures[number].grad_outs[index] if has_grad else None)
    return tuple(seen)


@dataclass(frozen=True)
class MicroBatches:
    """One micro-batch of a model, of any number of them: its graph and its groups.

    Only sizes differ. What merges with what, which groups are alike, and what leaves the blocks
    that are run again, is found once.

    whole: the graph of the whole batch, with forks; in_flight: of `Recomputation`
    demands: what hints ask for
    """

    whole: Graph
    in_flight: int = 1
    demands: Demands = field(default_factory=dict)

    @staticmethod
    def of(graph: Graph, in_flight: int = 1, demands: Demands | None = None) -> MicroBatches:
        """The micro-batches of a traced graph, to which forks are added."""
        return MicroBatches(graph.with_forks(), in_flight, demands or {})

    def in_turns(self, in_flight: int) -> MicroBatches:
        """These micro-batches with so many in flight."""
        other = MicroBatches(self.whole, in_flight, self.demands)
        other.__dict__.update(_known=self._known, _graphs=self._graphs)
        return other

    def graph(self, parts: int) -> Graph:
        """One of `parts` micro-batches. ValueError if the batch cannot be cut so."""
        if parts not in self._graphs:
            self._graphs[parts] = self.whole.with_batch(self.whole.batch // parts)
        return self._graphs[parts]

    def grouping(self, parts: int) -> Grouping:
        """The groups of operators of one of `parts` micro-batches."""
        if parts not in self._known:
            self._known[parts] = self._known[1].at_batch(self.graph(parts))
        return self._known[parts]

    def again(self, parts: int, blocks: Blocks) -> Recomputation:
        """Which blocks of a micro-batch are run again."""
        if blocks not in self._again:
            self._again[blocks] = Recomputation(self.whole, blocks, self.in_flight)
        return self._again[blocks].at_batch(self.graph(parts)) if parts > 1 else self._again[blocks]

    @cached_property
    def _again(self) -> dict[Blocks, Recomputation]:
        """Recomputation of the whole batch by the blocks that are run again."""
        return {}

    @cached_property
    def _graphs(self) -> dict[int, Graph]:
        return {1: self.whole}

    @cached_property
    def _known(self) -> dict[int, Grouping]:
        return {1: make_groups(self.whole, self.demands)}
