"""One-axis signatures of operators, and the registry of the rules that give them.

A signature says, for one mesh axis, how each input and output of an operator is placed, and how
the gradients are: what the backward pass takes for each output and gives for each input. For
`Y = X W` (AutoDDL section 4.2):

    S0, B -> S0 ; S0 -> S0, P      data parallel: the rows of X are split
    B, S1 -> S1 ; S1 -> P, S1      the columns of W are split
    S1, S0 -> P ; B -> S1, S0      the summed dim is split

`str` writes that form and `Signature.parse` reads it; `-` stands for "no gradient". The n-axis
signatures of an operator are the product of its one-axis signatures over the axes, less those whose
splits do not divide the tensors (`autoddl.planner.tables.strategies`).

A rule is a function from an `OpSpec` to signatures, registered with `@rule(kind, ...)`. Beside them
stand the operator's facets: what its backward pass keeps, whether it is a view, and so on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .layout import Shape, TensorSpec
from .placement import B, P, Placement

Attrs = Mapping[str, Any]


@dataclass(frozen=True)
class OpSpec:
    """What a rule sees of an operator: its kind, attributes and the tensors' global specs."""

    kind: str
    attrs: Attrs
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


@dataclass(frozen=True, slots=True)
class Inner:
    """Collectives that the operator itself runs along the axes that carry its signature.

    Each is an all-reduce of input `tensor`'s local shard with `dims` reduced to size one; there are
    `forward` of them in the forward pass and `backward` in the backward pass.

    room: of that shard's bytes, what its formulas need while they run, forward and backward, beside
          what is read, kept and made
    """

    tensor: int
    dims: tuple[int, ...]
    forward: int
    backward: int
    room: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Signature:
    """Placements of an operator's inputs, outputs and gradients on one mesh axis.

    `limit`, if given: the product of the extents of the axes that carry this signature must divide
    it (e.g. the groups of a grouped convolution).
    """

    ins: tuple[Placement, ...]
    outs: tuple[Placement, ...]
    grad_outs: tuple[Placement | None, ...]
    grad_ins: tuple[Placement | None, ...]
    inner: Inner | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if len(self.grad_ins) != len(self.ins) or len(self.grad_outs) != len(self.outs):
            raise ValueError(f"a signature needs one gradient placement per tensor: {self}")

    @property
    def divides_work(self) -> bool:
        """True if the devices of an axis with this signature share the computation."""
        return any(p.is_split for p in (*self.ins, *self.outs))

    @staticmethod
    def parse(text: str, *, inner: Inner | None = None, limit: int | None = None) -> Signature:
        """The inverse of `str` (`inner` and `limit` are not part of the text)."""
        try:
            forward, backward = text.split(";")
            ins, outs = forward.split("->")
            grad_outs, grad_ins = backward.split("->")
        except ValueError:
            raise ValueError(
                f"{text!r} is not a signature; expected 'ins -> outs ; grad_outs -> grad_ins', "
                "e.g. 'S0, B -> S0 ; S0 -> S0, P'"
            ) from None
        return Signature(
            tuple(Placement.parse(p) for p in _names(ins)),
            tuple(Placement.parse(p) for p in _names(outs)),
            tuple(None if p == "-" else Placement.parse(p) for p in _names(grad_outs)),
            tuple(None if p == "-" else Placement.parse(p) for p in _names(grad_ins)),
            inner,
            limit,
        )

    def __str__(self) -> str:
        def names(placements: tuple[Placement | None, ...]) -> str:
            return ", ".join("-" if p is None else str(p) for p in placements)

        return (
            f"{names(self.ins)} -> {names(self.outs)} ; "
            f"{names(self.grad_outs)} -> {names(self.grad_ins)}"
        )


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


SignatureFn = Callable[[OpSpec], Iterable[Signature]]
LocalAttrsFn = Callable[[OpSpec, tuple[Shape, ...], tuple[Shape, ...]], Attrs]
FlopsFn = Callable[[OpSpec], float]
SharesFn = Callable[[OpSpec], tuple[float, float]]
LimitFn = Callable[[OpSpec], int]
LoopsFn = Callable[[OpSpec], tuple[Sequence[str], str]]
# how an output shares its first input's memory: as it is, in another shape, in another order, as a
# part, or with dims stretched; "" if it does not
View = Literal["", "same", "reshape", "transpose", "narrow", "expand"]
Product = Literal["", "matmul", "convolution"]


def keep_attrs(op: OpSpec, ins: tuple[Shape, ...], outs: tuple[Shape, ...]) -> Attrs:
    """The default `local_attrs`: the attributes hold on every shard."""
    del ins, outs
    return op.attrs


def one_flop_per_output(op: OpSpec) -> float:
    """The default `flops` of the forward pass."""
    return float(sum(math.prod(t.shape) for t in op.outputs))


def nothing_beside(op: OpSpec) -> tuple[float, float]:
    """The default `beside`."""
    del op
    return 0.0, 0.0


@dataclass(frozen=True)
class Rule:
    """How an operator kind may be distributed, and its other properties (facets).

    signatures:  OpSpec -> its one-axis signatures, best known first
    local_attrs: (OpSpec, local input shapes, local output shapes) -> the attributes with which the
                 operator runs on the shards (a reshape's target becomes local)
    flops:       floating-point operations of the forward pass on the tensors of the OpSpec
    heavy:       True for operators that head a layer in the plan's table (matmul, convolution, ...)
    loops:       OpSpec -> what people call the dims of the first output, and the dim summed over

    Memory:

    view:        how the output shares the input's memory
    in_place:    the output may take the memory of an input that no later operator reads
    saves:       what the backward pass reads besides the incoming gradients: names out of x0, x1,
                 ... (inputs), y0 (output), beside, and other (the other one of two inputs); "all"
                 for all inputs and outputs, the safe choice; None if not declared
    beside:      OpSpec -> bytes saved for the backward pass that are neither input nor output, per
                 byte of the first input and per byte of the first output
    beside_lasts: whether these bytes are still allocated when the backward pass of the preceding
                 operator begins

    Numbers:

    float32:     computes in float32 in mixed precision
    index_limit: OpSpec -> exclusive upper bound of the integers in the second input
    part:        attributes that only say which part of a tensor is taken
    product:     which product of matrices it is, if lower bounds on communication are known for it
    nonlinear:   needs the complete value of its input elementwise: a summand is not enough
    mixes:       adds or multiplies all of its inputs elementwise
    random:      draws numbers: each shard its own, replicas of a shard the same
    """

    signatures: SignatureFn
    local_attrs: LocalAttrsFn = keep_attrs
    flops: FlopsFn = one_flop_per_output
    heavy: bool = False
    loops: LoopsFn | None = None
    view: View = ""
    in_place: bool = False
    saves: str | None = None
    beside: SharesFn = nothing_beside
    beside_lasts: bool = True
    float32: bool = False
    index_limit: LimitFn | None = None
    part: frozenset[str] = frozenset()
    product: Product = ""
    nonlinear: bool = False
    mixes: bool = False
    random: bool = False

    @property
    def is_view(self) -> bool:
        return bool(self.view)


RULES: dict[str, Rule] = {}


def rule(*kinds: str, **facets: Any) -> Callable[[SignatureFn], SignatureFn]:
    """Register the decorated function as the rule of the operator `kinds`; facets as in `Rule`."""

    def register(signatures: SignatureFn) -> SignatureFn:
        for kind in kinds:
            if kind in RULES:
                raise ValueError(f"operator kind {kind!r} has a rule already")
            RULES[kind] = Rule(signatures, **facets)
        return signatures

    return register


def find_rule(kind: str) -> Rule | None:
    """The rule of an operator kind, None if it has none."""
    return RULES.get(kind)


def is_random(kind: str) -> bool:
    """True for an operator that draws numbers."""
    rule = RULES.get(kind)
    return rule is not None and rule.random


def is_matmul(kind: str) -> bool:
    """True for a product of two matrices, or of many at once."""
    rule = RULES.get(kind)
    return rule is not None and rule.product == "matmul"


def signatures_of(op: OpSpec) -> tuple[Signature, ...]:
    """The operator's one-axis signatures, best known first, without splits of dims of size 1.

    Raises ValueError if the kind has no rule.
    """
    rule = find_rule(op.kind)
    if rule is None:
        raise ValueError(
            f"operator kind {op.kind!r} has no rule; write one with @autoddl.sbp.signature.rule, "
            "or let its submodule run as one opaque operator"
        )
    return tuple(dict.fromkeys(s for s in rule.signatures(op) if _splittable(op, s)))


def partial_gradient(signature: Signature) -> Signature | None:
    """A replicated computation whose gradient arrives Partial, and so leaves: it is linear in it.

    None if the signature does not replicate the computation.
    """
    given = (*signature.ins, *signature.outs)
    grads = [g for g in (*signature.grad_outs, *signature.grad_ins) if g is not None]
    if signature.inner or not grads or any(p != B for p in (*given, *grads)):
        return None
    return Signature(
        signature.ins,
        signature.outs,
        tuple(None if g is None else P for g in signature.grad_outs),
        tuple(None if g is None else P for g in signature.grad_ins),
    )


def _splittable(op: OpSpec, signature: Signature) -> bool:
    pairs = zip((*op.inputs, *op.outputs), (*signature.ins, *signature.outs), strict=True)
    return all(tensor.shape[p.dim] > 1 for tensor, p in pairs if p.is_split)
