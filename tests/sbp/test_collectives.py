"""Steps: their text, and which are one collective under nested splits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoddl.sbp.collectives import COLLECTIVES, Step, is_legal, legal_steps, step_kind
from autoddl.sbp.placement import B, NdSbp, P, S

from .strategies import placed_tensors


@given(placed_tensors(), st.data())
def test_a_step_is_read_back_from_its_text(placed, data):
    _, shape, nd = placed
    step = data.draw(st.sampled_from(list(legal_steps(nd, len(shape)))))
    assert Step.parse(str(step)) == step


def test_the_text_is_short():
    assert str(Step("all_to_all", (0, 2), S(0), S(1))) == "all_to_all[0,2] S0->S1"


@pytest.mark.parametrize(
    "text",
    ["all_gather S0->B", "all_gather[] S0->B", "gather[0] S0->B", "all_gather[0] P->B"]
    + ["slice[1] B->B", "slice[0] B->", "slice[a] B->S0"],
)
def test_text_that_is_no_step_is_refused(text):
    with pytest.raises(ValueError, match="is not a"):
        Step.parse(text)


def test_the_kind_follows_from_the_labels():
    kinds = {
        (str(a), str(b)): step_kind(a, b) for a in (S(0), B, P) for b in (S(1), B, P) if a != b
    }
    assert kinds == {
        ("S0", "S1"): "all_to_all",
        ("S0", "B"): "all_gather",
        ("S0", "P"): "to_partial",
        ("B", "S1"): "slice",
        ("B", "P"): "to_partial",
        ("P", "S1"): "reduce_scatter",
        ("P", "B"): "all_reduce",
    }
    assert set(kinds.values()) == {entry.name for entry in COLLECTIVES.entries}


@pytest.mark.parametrize(
    ("nd", "step", "legal"),
    [
        # Only the minor axes of a nested split can be taken off, only minor ones added.
        ("(S0, S0)", "all_gather[1] S0->B", True),
        ("(S0, S0)", "all_gather[0] S0->B", False),
        ("(S0, S0)", "all_gather[0,1] S0->B", True),
        ("(S0, S0, S0)", "all_gather[0,2] S0->B", False),
        ("(S0, S1, S0)", "all_gather[0,2] S0->B", True),
        ("(S0, S0)", "to_partial[0] S0->P", False),
        ("(S0, S0)", "to_partial[1] S0->P", True),
        ("(P, S1)", "reduce_scatter[0] P->S1", False),
        ("(P, S1)", "reduce_scatter[0] P->S0", True),
        ("(S1, P)", "reduce_scatter[1] P->S1", True),
        ("(P, S0, P)", "reduce_scatter[0,2] P->S0", False),
        ("(S0, S1)", "all_to_all[0] S0->S1", False),
        ("(S0, S1)", "all_to_all[1] S1->S0", True),
        ("(B, S0)", "slice[0] B->S0", False),
        ("(S0, B)", "slice[1] B->S0", True),
        # The axes must carry the source, once each and in order, and the kind must fit.
        ("(S0, B)", "all_gather[0,1] S0->B", False),
        ("(S0, S0)", "all_gather[1,0] S0->B", False),
        ("(S0, S0)", "all_gather[2] S0->B", False),
        ("(P, P)", "all_reduce[0] P->B", True),
    ],
)
def test_legal_under_nested_splits(nd, step, legal):
    assert is_legal(Step.parse(step), NdSbp.parse(nd)) == legal


def test_a_step_of_the_wrong_kind_is_not_legal():
    assert not is_legal(Step("all_reduce", (0,), S(0), B), NdSbp.of(S(0)))
    assert not is_legal(Step("slice", (0,), B, B), NdSbp.of(B))
    assert not is_legal(Step("slice", (), B, S(0)), NdSbp.of(B))


@given(placed_tensors())
def test_a_step_changes_its_axes_only(placed):
    _, shape, nd = placed
    for step in legal_steps(nd, len(shape)):
        after = step.apply(nd)
        for axis, (old, new) in enumerate(zip(nd, after, strict=True)):
            assert new == (step.target if axis in step.axes else old)


def test_a_step_refuses_another_start():
    with pytest.raises(AssertionError, match="does not start at"):
        Step.parse("all_gather[0] S0->B").apply(NdSbp.of(B))
