"""Every signature of every rule holds: outputs and gradients equal one device.

The operators and their arithmetic are those of `operators` and, where a signature communicates
inside, of `lockstep_ops`.
"""

import dataclasses
import itertools
import random

import pytest

from autoddl.sbp.mesh import Mesh
from autoddl.sbp.oracle import fits
from autoddl.sbp.placement import B, P
from autoddl.sbp.signature import RULES, Signature, signatures_of

from .operators import CASES
from .proof import check

MESHES = (Mesh(4, 1), Mesh(2, 3), Mesh(8, 1))
SAMPLES = [  # products of signatures per operator and mesh
    pytest.param(MESHES[1], 2, id=f"mesh {MESHES[1].extents}"),  # unlike axes
    *(
        pytest.param(mesh, 8, id=f"mesh {mesh.extents}-more", marks=pytest.mark.full)
        for mesh in MESHES
    ),
]
UNPROVEN = {"input", "buffer", "param", "stage_input", "stage_output"}  # they compute nothing


def replicated(case) -> Signature:
    return next(
        s
        for s in signatures_of(case.op)
        if all(p in (B, None) for p in (*s.ins, *s.outs, *s.grad_outs, *s.grad_ins))
    )


@pytest.mark.parametrize("both", [False, pytest.param(True, marks=pytest.mark.full)])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_each_signature_on_one_axis(case, both):
    """On three devices, of which one has neighbours on both sides, and `both` or else on two."""
    proven = set()
    for mesh in (Mesh(3, 1), Mesh(2, 1)):
        for signature in signatures_of(case.op):
            if (both or signature not in proven) and fits(case.op, mesh, (signature,)):
                check(case, mesh, (signature,))
                proven.add(signature)
    assert proven == set(signatures_of(case.op)), "a signature was never tried"


@pytest.mark.parametrize(("mesh", "sample"), SAMPLES)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_products_of_signatures(case, mesh, sample):
    """On several axes; a dim that two axes split is split into nested parts."""
    products = list(itertools.product(signatures_of(case.op), repeat=mesh.num_axes))
    random.Random(0).shuffle(products)
    fitting = (p for p in products if fits(case.op, mesh, p))
    for signatures in itertools.islice(fitting, sample):
        check(case, mesh, signatures)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_signatures_agree_on_which_tensors_have_gradients(case):
    patterns = {
        tuple(g is None for g in (*s.grad_ins, *s.grad_outs)) for s in signatures_of(case.op)
    }
    assert len(patterns) == 1


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_a_replicated_computation_passes_partial_gradients_on(case):
    """A vector-Jacobian product is linear in its vector: the search relies on it everywhere.

    That a device may compute the whole is offered for every operator.
    """
    whole = replicated(case)
    if any(g is not None for g in whole.grad_outs):
        passes_on = dataclasses.replace(
            whole,
            grad_outs=tuple(g and P for g in whole.grad_outs),
            grad_ins=tuple(g and P for g in whole.grad_ins),
        )
        check(case, Mesh(2, 1), [passes_on])


def test_every_rule_has_cases():
    assert set(RULES) - UNPROVEN == {case.op.kind for case in CASES}
