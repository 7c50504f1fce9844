"""What rules say of their operators beside signatures: every kind says what it keeps, truly."""

import re
from typing import Any

import numpy as np
import pytest

from autoddl.sbp.oracle import Shard
from autoddl.sbp.signature import RULES, signatures_of

from . import operators
from .proof import BY_ID

NAMES = re.compile(r"x\d|y0|beside|other")


def test_every_kind_says_what_its_backward_pass_reads():
    """A new kind without `saves` is priced as if it kept everything: say so, or what it keeps."""
    assert [kind for kind, rule in RULES.items() if rule.saves is None] == []


def test_what_is_said_is_understood():
    for kind, rule in RULES.items():
        assert rule.saves is not None
        names = rule.saves.split()
        assert names == ["all"] or all(NAMES.fullmatch(name) for name in names), kind
        keeps_beside = rule.beside is not RULES["relu"].beside
        assert keeps_beside == ("beside" in names), kind
        assert not rule.is_view or (rule.saves == "" and not rule.nonlinear), kind
        assert not (rule.nonlinear and rule.mixes), kind


def _gradients(case, inputs, given):
    """On the one device that holds everything; None for inputs that take none by the rule."""
    op, tensors = case.op, (case.op.inputs, case.op.outputs)
    starts = [tuple((0,) * len(t.shape) for t in side) for side in tensors]
    shapes = [tuple(t.shape for t in side) for side in tensors]
    attrs = RULES[op.kind].local_attrs(op, *shapes)
    ran: Any = operators.kernel(op.kind)(inputs, attrs, Shard(op, *starts))
    outputs, pullback = ran
    if given is None:
        rng = np.random.default_rng(1)
        given = [rng.standard_normal(np.shape(y)) for y in outputs]
    takes = signatures_of(op)[-1].grad_ins
    found = zip(pullback(given), takes, strict=True)
    return [np.asarray(dx) if t else None for dx, t in found], given


def _is_silent(case, index: int) -> bool:
    """Whether the backward pass may not look at an input; of `other`, only the other's gradient."""
    saves = RULES[case.op.kind].saves or ""
    is_kept = {"all", "y0", "beside", f"x{index}"} & set(saves.split())
    return case.op.inputs[index].is_float and not is_kept


KEPT = [
    (name, index)
    for name, case in BY_ID.items()
    for index in range(len(case.op.inputs))
    if _is_silent(case, index) and case.op.outputs and case.op.outputs[0].is_float
]


@pytest.mark.parametrize(("name", "index"), KEPT)
def test_what_is_not_kept_does_not_matter(name, index):
    """Gradients are the same whatever values an input had that the backward pass does not read."""
    case = BY_ID[name]
    kind = case.op.kind
    if kind == "loss" or kind not in operators.FORWARD:
        pytest.skip("the graph's own: nothing is computed")
    first, other = (case.inputs(np.random.default_rng(seed)) for seed in (0, 5))
    inputs = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in first]
    changed = list(inputs)
    changed[index] = other[index].astype(np.float64)
    before, given = _gradients(case, inputs, None)
    after, _ = _gradients(case, changed, given)
    reads_other = RULES[kind].saves == "other"
    for number, (one, two) in enumerate(zip(before, after, strict=True)):
        if reads_other and number != index:
            continue
        if one is not None and two is not None:
            np.testing.assert_allclose(one, two, rtol=1e-12, atol=1e-12)
