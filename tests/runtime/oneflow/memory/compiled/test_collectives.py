"""Workspaces of collectives: OneFlow's formulas on small cases."""

import pytest

from autoddl.graph.placed import PlannedOp
from autoddl.runtime.oneflow.memory.compiled.collectives import (
    collective_workspace,
    goes_through_host,
    merged_axes,
)
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.placement import NdSbp

MESH = Mesh(2, 2)
WHOLE = 64.0


def parse(text: str) -> NdSbp:
    return NdSbp.parse(text)


def local(nd: NdSbp) -> float:
    return WHOLE / 2 ** sum(p.is_split for p in nd)


@pytest.mark.parametrize(
    ("source", "target", "times_whole"),
    [
        ("(P, P)", "(B, B)", 0),  # all-reduce over all devices
        ("(S0, S0)", "(B, B)", 0),  # all-gather of consecutive pieces
        ("(S1, S1)", "(B, B)", 1),  # unpacked behind the gathering
        ("(P, P)", "(S1, S1)", 1),  # packed before the scattering
        ("(S0, S0)", "(S1, S1)", 1 / 4),  # packed on one side
        ("(S0, P)", "(S0, B)", 0),  # along the last axis
        ("(P, S0)", "(B, S0)", 0),  # along the first, which knows the all-reduce alone
        ("(S1, S0)", "(B, S0)", 2 / 2),  # send and receive: twice the result
        ("(B, B)", "(S0, S0)", 2 / 4),
        ("(S1, P)", "(S0, S0)", (2 * 2 + 1) / 4),  # two summands, and room to add them
    ],
)
def test_workspaces(source, target, times_whole):
    a, b = parse(source), parse(target)
    found = collective_workspace(a, b, local(a), local(b), MESH)
    assert found == pytest.approx(times_whole * WHOLE)


def test_what_becomes_partial_goes_through_the_host():
    assert goes_through_host(parse("(B, S0)"), parse("(P, S0)"))
    assert not goes_through_host(parse("(P, S0)"), parse("(P, B)"))


@pytest.mark.parametrize(
    ("source", "target", "through"),
    [
        ("(P, P)", "(S0, P)", True),  # no reduce-scatter along one axis of two
        ("(P, P)", "(P, S0)", True),
        ("(S0, P)", "(B, P)", True),
        ("(P, P)", "(B, P)", False),
        ("(P, S0)", "(P, S1)", False),
        ("(P, P)", "(S0, S0)", False),  # sent and received
    ],
)
def test_what_stays_partial_needs_a_collective_along_the_other_axis(source, target, through):
    assert goes_through_host(parse(source), parse(target)) == through


def test_axes_that_all_tensors_label_alike_are_one():
    alike = PlannedOp((parse("(S0, S0, B)"),), (parse("(S0, S0, P)"),), (None,), (None,))
    assert merged_axes([alike], 3) == ((0, 1), (2,))
    other = PlannedOp((), (parse("(S0, B, B)"),), (), ())
    assert merged_axes([alike, other], 3) == ((0,), (1,), (2,))
    assert merged_axes([], 0) == ((),)
