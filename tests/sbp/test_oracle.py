"""The oracle: it puts together what it cuts, and rejects what does not hold."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoddl.sbp.layout import TensorSpec
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.oracle import AllReduce, Disproved, assemble, prove, scatter
from autoddl.sbp.placement import B, NdSbp, P, S
from autoddl.sbp.signature import Inner, OpSpec, Signature, signatures_of

from .lockstep_ops import KERNELS
from .proof import BY_ID, check

TWO = Mesh(2, 1)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(
    shape=st.tuples(*[st.integers(1, 7)] * 3),
    mesh=st.builds(Mesh, st.integers(1, 4), st.integers(1, 3)),
    data=st.data(),
)
def test_assemble_inverts_scatter(shape, mesh, data):
    """On uneven and nested splits as well."""
    placements = st.sampled_from((S(0), S(1), S(2), B, P))
    nd = NdSbp(tuple(data.draw(placements) for _ in mesh.axes))
    whole = np.random.default_rng(0).standard_normal(shape)
    parts = scatter(whole, nd, mesh, np.random.default_rng(1))
    np.testing.assert_allclose(assemble(parts, nd, mesh, shape), whole, atol=1e-12)


def test_different_copies_are_found():
    with pytest.raises(Disproved, match="ranks 0 and 1 have different copies"):
        assemble([np.zeros(2), np.ones(2)], NdSbp((B,)), TWO, (2,))


def test_a_shard_of_another_shape_is_found():
    with pytest.raises(Disproved, match=r"rank 1 has the shape \(2,\) instead of \(1,\)"):
        assemble([np.zeros(1), np.zeros(2)], NdSbp((S(0),)), TWO, (2,))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("relu", "P -> P ; B -> B", "output 0 of relu under .* differs from one device"),
        ("scalar_add", "P -> P ; B -> B", "output 0"),
        ("broadcast_add-bias", "P, B -> P ; B -> B, P", "output 0"),
        ("broadcast_div", "B, P -> P ; B -> P, B", "output 0"),
        ("masked_fill", "P, B -> P ; B -> B, -", "output 0"),
        ("reduce_max", "S1 -> P ; B -> S1", "output 0"),
        ("reduce_mean-last", "S2 -> B ; B -> S2", "output 0 .* have different copies"),
        ("softmax-2d", "S1 -> S1 ; S1 -> S1", "output 0"),
        ("normalization-rows", "S0, B, B, B, B -> S0 ; S0 -> S0, -, -, P, P", "output 0"),
        ("reshape-heads", "S2 -> S3 ; S3 -> S3", "output 0"),
        ("transpose", "S1 -> S1 ; S1 -> S1", "output 0 .* has the shape"),
        ("gather-bag", "S0, B -> B ; B -> S0, -", "output 0"),
        ("nll", "S1, B -> P, P ; B, - -> S1, -", "output 1"),
        ("matmul-nn", "S1, S0 -> B ; B -> S1, S0", "output 0"),
        ("matmul-nn", "S0, B -> S0 ; S0 -> S0, B", "the gradient of input 1"),
        ("matmul-nn", "B, S1 -> S1 ; S1 -> B, S1", "the gradient of input 0"),
        ("matmul-nn", "S1, S0 -> P ; P -> S1, S0", "the gradient of input 0"),
        ("gather-bag", "B, S0 -> S0 ; S0 -> P, S0", "input 1 .* is stated, but"),
    ],
)
def test_a_wrong_signature_is_rejected(name, text, message):
    with pytest.raises(Disproved, match=message):
        check(BY_ID[name], TWO, [Signature.parse(text)])


def mutants(signature: Signature, ranks: dict[str, list[int]]):
    """The signature with one placement changed."""
    for side, dims in ranks.items():
        places = getattr(signature, side)
        for i, old in enumerate(places):
            for new in (*map(S, range(dims[i])), B, P):
                if old is not None and new != old:
                    changed = (*places[:i], new, *places[i + 1 :])
                    yield dataclasses.replace(signature, **{side: changed})


@pytest.mark.parametrize(
    "name",
    ["matmul-nt", "bias_add-channels", "gelu", "broadcast_mul", "reduce_mean-last",
     "log_softmax-2d", "layer_norm", "gather-bag", "nll", "concat", "reshape-rows", "transpose",
     "where", "max_pool_2d",
     *(pytest.param(name, marks=pytest.mark.full) for name in (
         "broadcast_matmul-linear", "conv2d-padded", "broadcast_sub-statistics", "reduce_sum-kept",
         "softmax-2d", "var-two", "normalization-untracked", "normalization-eval",
         "sparse_softmax_cross_entropy", "expand-stretch", "add_n", "dropout", "avg_pool_2d"))],
)  # fmt: skip
def test_changing_any_placement_of_a_signature_disproves_it(name):
    case = BY_ID[name]
    ins, outs = ([len(t.shape) for t in side] for side in (case.op.inputs, case.op.outputs))
    ranks = {"ins": ins, "outs": outs, "grad_outs": outs, "grad_ins": ins}
    for signature in signatures_of(case.op):
        for mutant in mutants(signature, ranks):
            if mutant not in signatures_of(case.op):
                # A shard that the kernel cannot even compute with is no proof of a signature.
                errors = (Disproved, ValueError, IndexError, AssertionError)
                with np.errstate(all="ignore"), pytest.raises(errors):
                    check(case, TWO, [mutant])


SPLIT_SOFTMAX = Signature((S(1),), (S(1),), (S(1),), (S(1),), Inner(0, (1,), 2, 1))


@pytest.mark.parametrize(
    ("inner", "message"),
    [
        (Inner(0, (1,), 1, 1), "2 all-reduces forward, 1 are stated"),
        (Inner(0, (1,), 2, 0), "1 all-reduces backward, 0 are stated"),
        (Inner(0, (0,), 2, 1), "rank 0 all-reduces 4 elements forward, 6 are stated"),
    ],
)
def test_collectives_must_be_as_stated(inner, message):
    with pytest.raises(Disproved, match=message):
        check(BY_ID["softmax-2d"], TWO, [dataclasses.replace(SPLIT_SOFTMAX, inner=inner)])


def test_unstated_collectives_are_rejected():
    case = BY_ID["softmax-2d"]
    silent = dataclasses.replace(SPLIT_SOFTMAX, inner=None)
    with pytest.raises(Disproved, match="2 all-reduces forward, 0 are stated"):
        check(case, TWO, [silent], kernel=KERNELS["softmax"])


def test_ranks_that_get_out_of_step_are_found():
    def late(inputs, attrs, shard):
        if shard.in_starts[0][1]:
            yield AllReduce(np.zeros(1))
        return (inputs[0],), lambda grads: grads

    with pytest.raises(Disproved, match="some ranks wait for an all-reduce"):
        check(BY_ID["softmax-2d"], TWO, [SPLIT_SOFTMAX], kernel=late)


def test_ranks_that_reduce_different_things_are_found():
    def mixed(inputs, attrs, shard):
        yield AllReduce(np.zeros(1), "max" if shard.in_starts[0][1] else "sum")
        return (inputs[0],), lambda grads: grads

    with pytest.raises(Disproved, match="all-reduce different things"):
        check(BY_ID["softmax-2d"], TWO, [SPLIT_SOFTMAX], kernel=mixed)


def test_a_gradient_that_the_kernel_does_not_give_is_rejected():
    def no_gradient(inputs, attrs, shard):
        return (inputs[0],), lambda grads: (None,)

    case = BY_ID["identity"]
    with pytest.raises(Disproved, match="is stated, but the kernel gives none"):
        prove(
            case.op, TWO, [Signature.parse("S0 -> S0 ; S0 -> S0")], no_gradient, [np.ones((4, 6))]
        )


def test_one_signature_per_axis_is_required():
    case = BY_ID["relu"]
    with pytest.raises(ValueError, match="has 2 axes, but 1 signatures are given"):
        check(case, Mesh(4, 1), signatures_of(case.op)[:1])


def test_a_mesh_of_one_device_has_nothing_to_prove():
    check(BY_ID["relu"], Mesh(1, 1), [])


def test_a_user_proves_a_rule_of_her_own():
    """y = a x + b, its vector-Jacobian product written by hand; b is added once per summand."""

    def kernel(inputs, attrs, shard):
        a, x, b = inputs
        return (a * x + b,), lambda grads: ((grads[0] * x).sum(), grads[0] * a, grads[0])

    specs = (TensorSpec(()), TensorSpec((4, 6)), TensorSpec((4, 6)))
    op = OpSpec("axpy", {}, specs, specs[1:2])
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(t.shape) for t in specs]
    for text in ("B, S0, S0 -> S0 ; S0 -> P, S0, S0", "B, P, P -> P ; B -> P, B, B"):
        prove(op, TWO, [Signature.parse(text)], kernel, inputs)
    with pytest.raises(Disproved, match="output 0 of axpy"):
        prove(op, TWO, [Signature.parse("B, P, B -> P ; B -> P, B, P")], kernel, inputs)
