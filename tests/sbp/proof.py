"""How the tests prove a case: float64 inputs, the reference, communicating kernels as needed."""

from collections.abc import Sequence

import numpy as np

from autoddl.sbp.mesh import Mesh
from autoddl.sbp.oracle import Kernel, prove
from autoddl.sbp.signature import Signature, find_rule

from . import lockstep_ops, operators
from .operators import CASES
from .operators.case import Case

BY_ID = {case.id: case for case in CASES}


def _loss(inputs, attrs, shard):
    """The sink: no output; the gradient of the loss with respect to itself is one."""
    return (), lambda grads: (np.ones(()),)


def check(
    case: Case, mesh: Mesh, signatures: Sequence[Signature], kernel: Kernel | None = None
) -> None:
    """Prove one signature per axis; `kernel` stands in for the operator's own on the shards."""
    kind = case.op.kind
    whole = _loss if kind == "loss" else operators.kernel(kind)
    if kernel is None:
        communicates = any(s.inner for s in signatures)
        kernel = lockstep_ops.KERNELS[kind] if communicates else whole
    rule = find_rule(kind)
    assert rule is not None
    inputs = [
        x.astype(np.float64) if x.dtype.kind == "f" else x
        for x in case.inputs(np.random.default_rng(0))
    ]
    prove(case.op, mesh, signatures, kernel, inputs, local_attrs=rule.local_attrs, whole=whole)
