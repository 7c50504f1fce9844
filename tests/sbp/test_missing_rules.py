"""No signature is missing: brute force over all placements finds those that the rules give.

Every combination of input and output placements that computes the right outputs, with the natural
gradients of the outputs (Partial becomes Broadcast), must be in the rule, and with it the gradients
of the inputs that the oracle accepts.
"""

import itertools

import pytest

from autoddl.sbp.mesh import Mesh
from autoddl.sbp.oracle import Disproved
from autoddl.sbp.placement import B, P, Placement, S
from autoddl.sbp.signature import Signature, signatures_of

from .proof import BY_ID, check

TWO = Mesh(2, 1)


def holds(case, signature: Signature) -> bool:
    try:
        check(case, TWO, [signature])
    except (Disproved, ValueError, IndexError, AssertionError):
        return False  # wrong, or the shards do not even fit together
    return True


def choices(tensors) -> itertools.product:
    """Placements of tensors: any even split, Broadcast, and Partial for floats."""
    return itertools.product(
        *(
            [*(S(d) for d, n in enumerate(t.shape) if n > 1 and n % 2 == 0), B,
             *((P,) if t.is_float else ())]
            for t in tensors
        )
    )  # fmt: skip


def natural(place: Placement) -> Placement:
    return B if place.is_partial else place


def accepted_gradients(case, ins, outs, grad_outs, i: int) -> list[Placement | None]:
    """The placements that hold for the gradient of input i."""
    tensor = case.op.inputs[i]
    if not tensor.is_float:
        return [None]
    found: list[Placement | None] = []
    for (place,) in choices([tensor]):
        grad_ins = tuple(place if j == i else None for j in range(len(ins)))
        if holds(case, Signature(ins, outs, grad_outs, grad_ins)):
            found.append(place)
    return found


def valid(case) -> set[str]:
    op, found = case.op, set()
    for ins, outs in itertools.product(choices(op.inputs), choices(op.outputs)):
        if holds(case, Signature(ins, outs, (None,) * len(outs), (None,) * len(ins))):
            grad_outs = tuple(
                natural(p) if t.is_float else None for p, t in zip(outs, op.outputs, strict=True)
            )
            accepted = [accepted_gradients(case, ins, outs, grad_outs, i) for i in range(len(ins))]
            for grad_ins in itertools.product(*accepted):
                found.add(str(Signature(ins, outs, grad_outs, grad_ins)))
    return found


@pytest.mark.parametrize(
    "name",
    ["matmul-nn", "matmul-nt", "matmul-tt", "conv2d-padded", "deconv2d-padded",
     "batch_matmul-3d", "add_n", "broadcast_add-bias",
     "broadcast_sub-statistics", "broadcast_mul", "broadcast_div", "relu", "scalar_mul",
     "scalar_add", "reduce_sum-last", "reduce_sum-kept", "reduce_max", "var-last", "softmax-2d",
     "log_softmax-2d", "gather-bag", "bias_add-last", "transpose", "concat",
     "reshape-rows", "reshape-heads", "expand-prepend", "slice-one", "where"],
)  # fmt: skip
def test_brute_force_finds_the_signatures_of_the_rule(name):
    case = BY_ID[name]
    given = {str(s) for s in signatures_of(case.op) if not s.inner}
    assert valid(case) == given
