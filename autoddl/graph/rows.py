"""How rows of the batch depend on each other in the loss, derived from the operators' rules.

Cutting the batch into M micro-batches is like one more mesh axis along which the batch dim is
split, except that the parts run one after the other. An operator with a signature for that axis
treats micro-batches as the signature says, and what the micro-batches give relates to the whole as

    S(d)   the rows of the micro-batches concatenated along dim d
    B      the same value in every micro-batch
    P      the sum over the micro-batches, divided by M^power

where power is 0 for a sum over the batch and 1 for a mean, whose factor 1/rows is M times as large
in a micro-batch. A loss that is P can be trained exactly: the loss and its gradients are
accumulated with the weight M^-power (`share`). If an operator adds summands of different powers, or
a summand that all micro-batches have in common, its inputs are scaled to agree (`factors`).

If an operator other than a sum needs a sum over the batch, such as the denominator of a weighted
mean, it needs the value of the whole batch. If that sum depends on the data alone, it is
accumulated over all micro-batches before training them (`known`). Otherwise rows interact, as they
do in an operator without such a signature (a product of the batch with itself, a softmax along it,
statistics over it). Then the batch is trained as a whole, and `meeting` names the operator.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..sbp.layout import TensorSpec
from ..sbp.placement import B, P, Placement, S
from ..sbp.signature import OpSpec, Signature, find_rule, is_random, signatures_of
from .batch_norm import is_training_norm, statistics_of
from .graph import Graph, Op

# Outputs that depend on some of the inputs only.
READS = {("nll", 1): (1, 2)}
# What these give does not follow from the data alone.
_NOT_DATA = ("param", "stage_input", "opaque", "normalization")
_RESHAPES = ("reshape", "squeeze", "expand_dims")
_FACTORS = {"scalar_mul": 1, "scalar_div": -1}  # attribute `operand` multiplies, divides


@dataclass(frozen=True)
class State:
    """How a tensor of a micro-batch relates to that of the whole batch; see the module's docstring.

    runs: how often all rows of the batch repeat in the dim of an S
    """

    place: Placement
    power: int = 0
    runs: int = 1


States = tuple[State | None, ...]  # None: rows have met on the way to that tensor
Key = tuple[str, int]  # an operator and the index of its input


@dataclass(frozen=True)
class Outcome:
    """What an operator makes of inputs in known states.

    states:  of its outputs
    factors: input index -> exponent e: it is multiplied by M^e
    sizes:   input index -> exponent of its factor in a batch with padding (`padding.py`)
    summed:  input index -> its state, if its rows are added up
    """

    states: list[State]
    factors: dict[int, int]
    sizes: dict[int, int]
    summed: dict[int, State] = field(default_factory=dict)


@dataclass(frozen=True)
class Rows:
    """How the rows of a graph depend on each other.

    meeting: the operator in which rows interact on the way to the loss, or whose state has all rows
    power:   of the loss
    known:   sums over the batch, of data alone, that are needed whole before training -> power
    factors: (operator, input index) -> exponent e: the input is multiplied by M^e
    """

    meeting: Op | None = None
    power: int = 1
    known: Mapping[str, int] = field(default_factory=dict)
    factors: Mapping[tuple[str, int], int] = field(default_factory=dict)

    def share(self, micro_batches: int) -> float:
        """The weight of each micro-batch's loss."""
        return float(micro_batches) ** -self.power

    def scales(self, micro_batches: int) -> dict[tuple[str, int], float]:
        """(Operator, input index) -> the factor by which that input is multiplied."""
        if micro_batches == 1:
            return {}
        return {key: float(micro_batches) ** e for key, e in self.factors.items()}

    def check(self, micro_batches: int) -> None:
        """Raise ValueError if the batch cannot be trained in `micro_batches` parts."""
        if micro_batches > 1 and self.meeting is not None:
            raise ValueError(why_whole(self.meeting, f"in {micro_batches} micro-batches"))


def why_whole(op: Op, otherwise: str) -> str:
    """The message that explains why the batch cannot be trained `otherwise`, and what to do."""
    what = f"{op.name} ({op.kind})"
    if is_training_norm(op):
        return (
            f"{what} takes the statistics of the whole batch, which then cannot be trained "
            f"{otherwise}; train it whole, or choose batch_norm='micro_batch' or 'shard' "
            "(--batch-norm), which take those of fewer rows"
        )
    hint = ""
    if op.kind == "opaque":
        hint = ", or declare with autoddl.batchwise(module) that it works on each row by itself"
    return (
        f"rows of the batch meet in {what}, so that the losses of its parts do not add up to that "
        f"of the whole, which then cannot be trained {otherwise}; train it whole{hint}"
    )


def find_rows(graph: Graph, evaluates: bool = False) -> Rows:
    """How rows interact in training; `graph` is a whole model, not a pipeline stage.

    evaluates: as in evaluation, where BatchNorm takes its moving statistics
    """
    return graph.once(_rows_evaluated if evaluates else _rows_trained)


def _rows_trained(graph: Graph) -> Rows:
    return _found(graph, False)


def _rows_evaluated(graph: Graph) -> Rows:
    return _found(graph, True)


def _found(graph: Graph, evaluates: bool) -> Rows:
    walk = walked(graph, evaluates)
    norms = (op for op in walk.met.values() if is_training_norm(op, evaluates))
    meeting = next(norms, None) or walk.met.get(graph.loss)
    state = walk.states.get(graph.loss, State(B))
    return Rows(
        meeting,
        state.power + (state.place == B),
        walk.sums,
        walk.factors,
    )


def walked(graph: Graph, evaluates: bool = False) -> Walk:
    """The pass over a graph in which all sums are known that have to be."""
    graph = graph.in_mode(not evaluates)
    if graph.batch == 1:
        graph = graph.with_batch(2)  # one row cannot be told from a dim of size 1
    norms = [op for op in graph.ops if is_training_norm(op, evaluates)]
    ops = _computing(graph, [graph.loss, *(out for op in norms for out in op.outputs)])
    walk = Walk(graph, ops, frozenset(), evaluates)
    while needed := walk.run():
        walk.know(needed)
    return walk


def in_several(graph: Graph, rows: Rows, layer_of: Mapping[str, int]) -> str | None:
    """A sum needed whole that is computed by operators of several layers; None if there is none."""
    for name in rows.known:
        layers = {layer_of[op] for op in known_from(graph, name) or () if op in layer_of}
        if len(layers) > 1:
            return name
    return None


def rows_apart(graph: Graph) -> frozenset[str]:
    """The tensors that are concatenated rows when the model is evaluated in parts."""
    graph = graph.in_mode(training=False)
    walk = Walk(graph, _computing(graph, graph.outputs), frozenset(), True, plain=True)
    walk.run()
    return frozenset(
        n for n, s in walk.states.items() if s.place.is_split and not s.power and s.runs == 1
    )


def known_from(graph: Graph, tensor: str) -> tuple[str, ...] | None:
    """The operators that compute a sum of data alone, in graph order; None for other sums."""
    wanted, found = {tensor}, []
    for op in reversed(graph.ops):
        made = [n for n, name in enumerate(op.outputs) if name in wanted]
        if not made:
            continue
        if op.kind in _NOT_DATA or is_random(op.kind):
            return None
        found.append(op.name)
        for n in made:
            wanted.update(op.inputs[i] for i in reads(op, n))
    return tuple(reversed(found))


def divisor(graph: Graph, rows: Rows) -> str | None:
    """The tensor by which a loss divides a sum over rows, such as the sum of their weights.

    None if it divides by none that depends on the data.
    """
    op = graph.producers[graph.loss]
    while op.kind in ("fork", "identity", "cast", "squeeze", "reshape"):
        op = graph.producers[op.inputs[0]]
    if op.kind != "broadcast_div" or not rows.known:
        return None
    below = {out for made in _computing(graph, op.inputs[1:]) for out in made.outputs}
    above = {out for made in _computing(graph, op.inputs[:1]) for out in made.outputs}
    return op.inputs[1] if below >= rows.known.keys() and not above & rows.known.keys() else None


def _computing(graph: Graph, tensors: Iterable[str]) -> Sequence[Op]:
    """The operators that compute the tensors, in graph order."""
    wanted, found = set(tensors), []
    for op in reversed(graph.ops):
        if not wanted.isdisjoint(op.outputs):
            found.append(op)
            wanted.update(op.inputs)
    return found[::-1]


def reads(op: Op, output: int) -> tuple[int, ...]:
    """The inputs that an output depends on."""
    every = tuple(range(len(op.inputs)))
    return tuple(i for i in READS.get((op.kind, output), every) if i in every)


@dataclass
class Walk:
    """A pass over `ops` of a graph; plain: without factors and sums that are known.

    left: operators to come, and those to be taken once more
    """

    graph: Graph
    ops: Sequence[Op]
    known: frozenset[str]
    evaluates: bool
    plain: bool = False
    states: dict[str, State] = field(default_factory=dict)
    met: dict[str, Op] = field(default_factory=dict)
    sums: dict[str, int] = field(default_factory=dict)
    factors: dict[Key, int] = field(default_factory=dict)
    sizes: dict[Key, int] = field(default_factory=dict)
    summed: dict[Key, State] = field(default_factory=dict)
    outcomes: dict[tuple[int, States], Outcome | None] = field(default_factory=dict)
    left: Sequence[Op] | None = None

    def run(self) -> frozenset[str]:
        """Sums of data that turn out to be needed whole; empty when there are no more of them."""
        left = self.ops if self.left is None else self.left
        for number, op in enumerate(left):
            needed = self._take(op)
            if needed:
                self.left = left[number:]
                return needed
        self.left = ()
        return frozenset()

    def know(self, sums: frozenset[str]) -> None:
        """After `run` has told of these: what depends on them is to be taken once more."""
        self.known |= sums
        again, changed = set(map(id, self.left or ())), set(sums)
        for op in self.ops:
            if id(op) in again or not changed.isdisjoint((*op.inputs, *op.outputs)):
                again.add(id(op))
                changed.update(op.outputs)
                for name in op.outputs:
                    self.met.pop(name, None)
                for kept in (self.factors, self.sizes, self.summed):
                    for index in range(len(op.inputs)):
                        kept.pop((op.name, index), None)
        self.left = [op for op in self.ops if id(op) in again]

    def _take(self, op: Op) -> frozenset[str]:
        met = [self.met[name] for name in op.inputs if name in self.met]
        if met:
            for n, name in enumerate(op.outputs):
                if any(op.inputs[i] in self.met for i in reads(op, n)):
                    self.met[name] = met[0]
            if all(name in self.met for name in op.outputs):
                return frozenset()
        ins = tuple(None if name in self.met else self.states[name] for name in op.inputs)
        asked = self.graph.alike[op.name], ins  # of repeated blocks mostly the same
        if asked not in self.outcomes:
            self.outcomes[asked] = self._outcome(op, ins)
        found = self.outcomes[asked]
        if found is None:
            needed = frozenset() if self.plain else self._needed(op)
            if not needed:
                self._meet(op)
            return needed
        if found.factors and self.plain:
            self._meet(op)
            return frozenset()
        self.factors.update({(op.name, i): e for i, e in found.factors.items()})
        self.sizes.update({(op.name, i): e for i, e in found.sizes.items()})
        self.summed.update({(op.name, i): state for i, state in found.summed.items()})
        for name, state in zip(op.outputs, found.states, strict=True):
            if name in self.met:
                continue
            if name in self.known:
                self.sums[name], state = state.power, State(B)
            self.states[name] = state
        return frozenset()

    def _meet(self, op: Op) -> None:
        for name in op.outputs:
            self.met.setdefault(name, op)

    def _needed(self, op: Op) -> frozenset[str]:
        """The summed inputs of the operator if they can be computed beforehand."""
        summed = {n for n in op.inputs if n in self.states and self.states[n].place == P}
        return frozenset(name for name in summed if self._is_data(name))

    def _is_data(self, name: str) -> bool:
        """True for a tensor of data alone that contains no other sum that is needed whole."""
        by = known_from(self.graph, name)
        if by is None:
            return False
        return not any(
            out in self.known for op in self.graph.ops if op.name in by for out in op.outputs
        )

    def _outcome(self, op: Op, ins: States) -> Outcome | None:
        """What an operator makes of inputs in these states; None if rows interact."""
        outs = [self.graph.tensors[name].batch_dims for name in op.outputs]
        if any(len(dims) > 1 for dims in outs):
            return None
        if not any(outs) and all(s is not None and s.place == B for s in ins):
            power = 0
            if op.batch_attrs:
                scaled = _attribute_power(op, op.attrs)
                if scaled is None:
                    return None
                power = scaled
            factors = {i: -s.power for i, s in enumerate(ins) if s and s.power}
            return Outcome([State(B, power) for _ in outs], factors, factors)
        if op.kind in _RESHAPES and ins[0] is not None and ins[0].place.is_split:
            return self._reshaped(op, ins[0])
        signature = self._signature(op, ins, outs)
        runs = {s.runs for s in ins if s is not None and s.place.is_split} or {1}
        if signature is None or len(runs) > 1:
            return None
        local = self._local_attrs(op)
        power = _attribute_power(op, local)
        if power is None:
            return None
        summands = [i for i, place in enumerate(signature.ins) if place == P]
        powers = [s.power for i, s in enumerate(ins) if s and i in summands and s.place == P]
        base = max(powers, default=0)
        exponents = {
            i: base - (s.place == B) - s.power if i in summands else -s.power
            for i, s in enumerate(ins)
            if s is not None
        }
        factors = {i: e for i, e in exponents.items() if e}
        # a summand that all micro-batches have in common is there as often; with padding, once
        often = {i: i in summands and s is not None and s.place == B for i, s in enumerate(ins)}
        sizes = {i: e + often[i] for i, e in exponents.items() if e + often[i]}
        is_mean = not summands and "count" in local and "count" not in op.attrs
        states = [
            State(p, power + base + (p == P and is_mean), max(runs) if p.is_split else 1)
            for p in signature.outs
        ]
        rows = {i: s for i, s in enumerate(ins) if s is not None and s.place.is_split}
        return Outcome(states, factors, sizes, rows if P in signature.outs else {})

    def _reshaped(self, op: Op, rows: State) -> Outcome | None:
        """Rows remain rows after a reshape as long as they stay within one dim."""
        source, target = (self.graph.tensors[name] for name in (op.inputs[0], op.outputs[0]))
        if len(target.batch_dims) != 1:
            return None
        (dim,) = target.batch_dims
        before = math.prod(source.spec.shape[: rows.place.dim]) * rows.runs
        runs, rest = divmod(before, math.prod(target.spec.shape[:dim]))
        if rest or not runs or target.spec.shape[dim] % (runs * self.graph.batch):
            return None
        return Outcome([State(S(dim), rows.power, runs)], {}, {})

    def _signature(self, op: Op, ins: States, outs: Sequence[tuple[int, ...]]) -> Signature | None:
        """The signature with these input and output states, and of several the fewest summands."""
        if find_rule(op.kind) is None:
            return None
        normalises = is_training_norm(op) and not (
            is_training_norm(op, self.evaluates) and statistics_of(op) == "batch"
        )

        def takes(state: State | None, place: Placement) -> bool:
            return state is None or place == state.place or (state.place == B and place == P)

        fitting = [
            s
            for s in signatures_of(_as_floats(self.graph.spec(op)))
            if (s.inner is None or normalises)
            and all(map(takes, ins, s.ins))
            and all(
                place == S(dims[0]) if dims else not place.is_split
                for place, dims in zip(s.outs, outs, strict=True)
            )
            and (P not in s.ins or P in (state.place for state in ins if state))
        ]
        return min(fitting, key=lambda s: s.ins.count(P), default=None)

    def _local_attrs(self, op: Op) -> Mapping[str, object]:
        """The attributes with which the operator would run on half of the rows."""
        rule, spec = find_rule(op.kind), self.graph.spec(op)
        assert rule is not None

        def halved(names: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
            return tuple(
                tuple(
                    max(n // 2, 1) if d in tensor.batch_dims else n
                    for d, n in enumerate(tensor.spec.shape)
                )
                for tensor in map(self.graph.tensors.__getitem__, names)
            )

        return rule.local_attrs(spec, halved(op.inputs), halved(op.outputs))


def _attribute_power(op: Op, local: Mapping[str, object]) -> int | None:
    """The power that batch-dependent attributes give to an operator's outputs.

    None if such an attribute is neither a size that the rule makes local nor a factor.
    """
    power = 0
    for key, exponents in op.batch_attrs.items():
        if op.kind in _FACTORS and key == "operand":
            power -= _FACTORS[op.kind] * exponents[0]
        elif local[key] == op.attrs[key]:
            return None
    return power


def _as_floats(spec: OpSpec) -> OpSpec:
    """The operator as if all its tensors were floats: sums of integers accumulate as well."""
    if spec.kind == "cast" and not spec.outputs[0].is_float:
        return spec

    def floats(tensors: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(t.shape, "float32") for t in tensors)

    return OpSpec(spec.kind, spec.attrs, floats(spec.inputs), floats(spec.outputs))
