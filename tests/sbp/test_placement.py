"""Placements and NdSbp: text and its parser, codes, labels by axis."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoddl.sbp.placement import B, NdSbp, P, Placement, S

ANY = st.integers(-2, 12).map(Placement)


@given(ANY)
def test_a_placement_is_read_back_from_its_text(placement):
    assert Placement.parse(str(placement)) == placement


@given(st.lists(ANY, max_size=6))
def test_an_ndsbp_is_read_back_from_its_text_and_its_codes(placements):
    nd = NdSbp(tuple(placements))
    assert NdSbp.parse(str(nd)) == nd
    assert NdSbp.from_codes(nd.codes) == nd


def test_the_text_is_short():
    assert str(NdSbp.of(S(0), B, P, S(10))) == "(S0, B, P, S10)"
    assert str(NdSbp(())) == "()"
    assert NdSbp.parse(" ( S0,B ) ") == NdSbp.of(S(0), B)


@pytest.mark.parametrize("text", ["", "S", "S-1", "s0", "BB", "S0 S1", "Q"])
def test_text_that_is_no_placement_is_named(text):
    with pytest.raises(ValueError, match="is not a placement; expected"):
        Placement.parse(text)


@pytest.mark.parametrize("text", ["S0, B", "(S0, B", "[S0]"])
def test_an_ndsbp_needs_its_brackets(text):
    with pytest.raises(ValueError, match="is not an NdSbp"):
        NdSbp.parse(text)


def test_the_bad_part_of_an_ndsbp_is_named():
    with pytest.raises(ValueError, match="'X' is not a placement"):
        NdSbp.parse("(S0, X, B)")


def test_a_negative_dim_is_refused():
    with pytest.raises(ValueError, match="0 or more, got -1"):
        S(-1)
    with pytest.raises(ValueError, match="0 or more, got -3"):
        Placement(-3)


@given(ANY)
def test_each_placement_is_of_one_kind(placement):
    assert placement.is_split + placement.is_broadcast + placement.is_partial == 1
    if placement.is_split:
        assert S(placement.dim) == placement


def test_labels_by_axis():
    nd = NdSbp.of(S(1), P, S(0), S(1))
    assert nd.axes_of(S(1)) == (0, 3)
    assert nd.axes_of(B) == ()
    assert nd.split_dims() == (0, 1)
    assert nd.has_partial and not nd.gradient().has_partial
    assert nd.gradient() == NdSbp.parse("(S1, B, S0, S1)")
    assert nd.replace((0, 1), B) == NdSbp.parse("(B, B, S0, S1)")
    assert NdSbp.broadcast(3) == NdSbp.parse("(B, B, B)")
