"""What the rules say, as text, and what they say besides signatures.

`test_missing_rules` compares the signatures of many more operators with brute force.
"""

import math

import pytest

from autoddl.sbp.layout import TensorSpec
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.oracle import fits
from autoddl.sbp.signature import RULES, Inner, OpSpec, Signature, find_rule, rule, signatures_of

from .operators import CASES

BY_ID = {case.id: case.op for case in CASES}

SAID = {
    # AutoDDL section 4.2, and design section 4: summands pass through what is linear.
    "matmul-nn": """
        S0, B -> S0 ; S0 -> S0, P
        B, S1 -> S1 ; S1 -> P, S1
        S1, S0 -> P ; B -> S1, S0
        P, B -> P ; B -> B, P
        B, P -> P ; B -> P, B
        B, B -> B ; B -> B, B
    """,
    "bias_add-channels": """
        S0, B -> S0 ; S0 -> S0, P
        S1, S0 -> S1 ; S1 -> S1, S0
        S2, B -> S2 ; S2 -> S2, P
        S3, B -> S3 ; S3 -> S3, P
        P, P -> P ; B -> B, B
        B, B -> B ; B -> B, B
    """,
    "nll": """
        S0, S0 -> S0, S0 ; S0, - -> S0, -
        S1, B -> P, B ; B, - -> S1, -
        B, B -> B, B ; B, - -> B, -
    """,
    "normalization-rows": """
        S0, B, B, B, B -> S0 ; S0 -> S0, -, -, P, P
        S1, S0, S0, S0, S0 -> S1 ; S1 -> S1, -, -, S0, S0
        B, B, B, B, B -> B ; B -> B, -, -, B, B
    """,
    "fork": """
        S0 -> S0 ; S0 -> S0
        S1 -> S1 ; S1 -> S1
        P -> P ; B -> B
        B -> B ; P -> P
        B -> B ; B -> B
    """,
    "scalar_logical_equal": """
        S0 -> S0 ; - -> -
        S1 -> S1 ; - -> -
        S2 -> S2 ; - -> -
        B -> B ; - -> -
    """,
    "opaque": "B, B -> B ; B -> B, B",
    "opaque-batchwise": """
        S0, S0, B -> S0 ; S0 -> S0, -, P
        B, B, B -> B ; B -> B, -, B
    """,
    "loss": "B -> ; -> B",
}


def said(op: OpSpec) -> list[str]:
    return [str(s) for s in signatures_of(op)]


@pytest.mark.parametrize("name", SAID)
def test_signatures_as_text(name):
    expected = [str(Signature.parse(line)) for line in SAID[name].strip().splitlines()]
    assert said(BY_ID[name]) == expected


def test_sources_have_any_placement():
    table = TensorSpec((4, 6))
    assert said(OpSpec("param", {}, (), (table,))) == [
        " -> S0 ; S0 -> ",
        " -> S1 ; S1 -> ",
        " -> B ; B -> ",
    ]
    for kind in ("input", "buffer"):
        assert said(OpSpec(kind, {}, (), (table,))) == [
            " -> S0 ; - -> ",
            " -> S1 ; - -> ",
            " -> B ; - -> ",
        ]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_only_float_tensors_have_gradients_or_summands(case):
    for signature in signatures_of(case.op):
        places = zip((*signature.ins, *signature.outs), (*signature.grad_ins, *signature.grad_outs),
                     (*case.op.inputs, *case.op.outputs), strict=True)  # fmt: skip
        for place, gradient, tensor in places:
            assert tensor.is_float or (gradient is None and not place.is_partial)


def test_a_dim_of_size_one_is_never_split():
    one_row = OpSpec("relu", {}, (TensorSpec((1, 6)),), (TensorSpec((1, 6)),))
    assert said(one_row) == ["S1 -> S1 ; S1 -> S1", "B -> B ; B -> B"]


def test_an_unknown_kind_is_named():
    op = OpSpec("frobnicate", {}, (), ())
    assert find_rule("frobnicate") is None
    with pytest.raises(ValueError, match="'frobnicate' has no rule; write one with @"):
        signatures_of(op)


def test_a_kind_has_one_rule():
    with pytest.raises(ValueError, match="operator kind 'matmul' has a rule already"):
        rule("matmul")(lambda op: ())


def test_split_statistics_are_all_reduced():
    def inner(name: str) -> set[Inner]:
        return {s.inner for s in signatures_of(BY_ID[name]) if s.inner}

    assert inner("softmax-4d") == {Inner(0, (3,), 2, 1, (2.0, 1.0))}
    assert inner("log_softmax-4d") == {Inner(0, (3,), 2, 1, (1.0, 1.0))}
    assert inner("var-two") == {Inner(0, (1, 2), 2, 0)}
    assert inner("normalization-images") == {Inner(0, (0, 2, 3), 2, 2, (1.0, 3.0))}
    assert inner("normalization-eval") == set()
    assert inner("layer_norm") == {Inner(0, (2,), 2, 2, (1.0, 3.0))}
    assert inner("sparse_softmax_cross_entropy") == {Inner(0, (1,), 3, 0, (2.0, 0.0))}


@pytest.mark.parametrize(
    ("groups", "nodes", "expected"),
    [(4, 2, True), (4, 4, True), (2, 4, False), (4, 3, False), (12, 12, True)],
)
def test_channels_of_a_grouped_convolution_are_split_at_group_boundaries(groups, nodes, expected):
    attrs = {"groups": groups, "data_format": "channels_first", "filters": 24}
    x, w, y = (
        TensorSpec((2, 12, 5, 5)),
        TensorSpec((24, 12 // groups, 3, 3)),
        TensorSpec((2, 24, 3, 3)),
    )
    op, mesh = OpSpec("conv2d", attrs, (x, w), (y,)), Mesh(nodes, 1)
    (channels,) = (s for s in signatures_of(op) if s.limit)
    assert str(channels) == "S1, S0 -> S1 ; S1 -> S1, S0"
    assert fits(op, mesh, (channels,) * mesh.num_axes) is expected


FLOPS = {
    "matmul-nn": 2 * 4 * 12 * 6,
    "matmul-tn": 2 * 4 * 12 * 6,
    "batch_matmul-3d": 2 * 6 * 4 * 8 * 12,
    "conv2d-padded": 2 * (4 * 12 * 5 * 3) * (6 * 3 * 3),
    "deconv2d-strided": 2 * (4 * 6 * 3 * 3) * (2 * 3 * 3),
    "conv2d-groups": 2 * (2 * 24 * 3 * 3) * (3 * 3 * 3),
    "max_pool_2d": (4 * 6 * 3 * 4) * 4,
    "relu": 4 * 6 * 12,
    "reduce_sum-all": 4 * 6,
    "reshape-heads": 0,
    "opaque": 2 * 4 * 6 * 8,
}


@pytest.mark.parametrize("name", FLOPS)
def test_flops_of_the_forward_pass(name):
    op = BY_ID[name]
    assert RULES[op.kind].flops(op) == FLOPS[name]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_flops_are_finite(case):
    flops = RULES[case.op.kind].flops(case.op)
    assert math.isfinite(flops) and flops >= 0


def test_layers_and_views():
    heavy = {kind for kind, rule in RULES.items() if rule.heavy}
    assert heavy == {
        "matmul", "broadcast_matmul", "batch_matmul", "grouped_matmul", "matrix_vector_product",
        "vector_matrix_product", "conv1d", "conv2d", "conv3d",
        "deconv1d", "deconv2d", "deconv3d", "attention", "gather", "embedding", "opaque",
    }  # fmt: skip
    views = {kind for kind, rule in RULES.items() if rule.is_view}
    assert views == {
        "reshape", "transpose", "narrow", "expand", "expand_dims", "squeeze", "fork", "identity",
        "stop_gradient", "by_mode",
    }  # fmt: skip
