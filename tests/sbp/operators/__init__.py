"""Operators with which the rules are proven, one file per family of `autoddl.sbp.rules`.

A family's `CASES` has a few operators per kind, with specs as the tracer gives them and inputs:
shapes, transpose flags, broadcasting, kept dims. No two sizes of one operator are equal unless they
belong together, so that a rule that mixes up dims is found, and most have the factors 2 and 3.

Below them each kind is written in NumPy from its definition; HIPS autograd differentiates it.
`FORWARD[kind](inputs, attrs, shard)` returns the outputs. `shard` says where a device's tensors
begin: a lookup in a part of a table needs it. `kernel(kind)` is the form that the oracle takes.
"""

from . import (
    batched,
    conv,
    elementwise,
    experts,
    gather,
    loss,
    matmul,
    normalize,
    pooling,
    random,
    reduce,
    shape,
    softmax,
    source,
)
from .reference import FORWARD as FORWARD
from .reference import kernel as kernel

FAMILIES = (
    batched, matmul, conv, pooling, elementwise, reduce, softmax, loss, normalize, gather,
    shape, source, experts, random,
)  # fmt: skip
CASES = tuple(case for family in FAMILIES for case in family.CASES)
