"""What the tables show, and how they shorten it."""

import pytest

from autoddl.tools.doctor import Check
from autoddl.tools.report.tables import print_checks, short_signature, short_topology


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("(S0:(1,1), B:(2,2), S1:(1,1))", "(B:(2,2))"),
        ("(S0:(2,1), B:(1,1), S1:(1,2), R:(1,4))", "(S0:(2,1), S1:(1,2), R:(1,4))"),
        ("(S0:(11,1), B:(1,16))", "(S0:(11,1), B:(1,16))"),
        ("(S0:(1,1), B:(1,1), S1:(1,1))", "()"),
    ],
)
def test_groups_of_one_device_are_left_out(text, short):
    assert short_topology(text) == short


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("(S0, S0, B), (B, B, S1) -> (S0, S0, S1)", "(S0*2, B), (B*2, S1) -> (S0*2, S1)"),
        ("(S0, B, S0) -> (P, P, P)", "(S0, B, S0) -> (P*3)"),
        ("(S1, S10) -> (S1, S1)", "(S1, S10) -> (S1*2)"),
        ("(B), (B) -> (B)", "(B), (B) -> (B)"),
    ],
)
def test_runs_of_equal_labels_are_counted(text, short):
    assert short_signature(text) == short


def test_what_mends_a_finding_stands_below_it(capsys):
    print_checks([Check("numpy", "ok", "1.26.4"), Check("oneflow", "fail", "0.7.0", "pip it")])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [["ok", "numpy", "1.26.4"], ["FAIL", "oneflow", "0.7.0"], ["->", "pip", "it"]]
