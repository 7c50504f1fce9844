"""Paths on simulated devices: the data arrives, and the bytes counted are those that moved."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoddl.sbp.collectives import (
    Step,
    device_intra_bytes,
    is_legal,
    legal_steps,
    nic_bytes,
    path_bytes,
)
from autoddl.sbp.layout import TensorSpec, is_even, local_slices
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.oracle import Disproved, assemble, scatter
from autoddl.sbp.oracle.paths import run_steps
from autoddl.sbp.placement import NdSbp

from .strategies import float_spec, path_table, placed_tensors


def whole_of(shape):
    """A tensor whose elements differ."""
    return np.arange(1.0, math.prod(shape) + 1).reshape(shape)


def check_arrived(shards, nd, mesh, whole):
    np.testing.assert_allclose(assemble(shards, nd, mesh, whole.shape), whole, atol=1e-7)
    if not nd.has_partial:
        for rank, shard in enumerate(shards):
            expected = whole[local_slices(whole.shape, nd, mesh, rank)]
            np.testing.assert_allclose(shard, expected, atol=1e-7)


def moved(step, before, after, size):
    """Bytes that a group of `size` sends, from its shards' bytes before and after the step."""
    if step.is_free:
        return 0
    if step.kind == "all_to_all":  # all but what stays where it is, counted by the caller
        return sum(before)
    gathered = after[0] if step.kind == "all_gather" else before[0]
    return (2 if step.kind == "all_reduce" else 1) * (size - 1) * gathered


@given(placed_tensors(count=2), st.integers(0, 9))
@settings(max_examples=80)
def test_a_path_brings_every_element_where_it_belongs(placed, seed):
    mesh, shape, source, target = placed
    steps = path_table(mesh, seed % 4).path(float_spec(shape), source, target)
    whole = whole_of(shape)
    shards = scatter(whole, source, mesh, np.random.default_rng(seed))
    after, _ = run_steps(shards, steps, source, mesh)
    check_arrived(after, target, mesh, whole)


@given(placed_tensors(), st.data())
@settings(max_examples=80)
def test_every_legal_step_does_what_it_says(placed, data):
    """Even and uneven shards: the layout after it is right, and the group moves what it must."""
    mesh, shape, nd = placed
    step = data.draw(st.sampled_from(list(legal_steps(nd, len(shape)))))
    whole = whole_of(shape)
    shards = scatter(whole, nd, mesh, np.random.default_rng(0))
    after, (network,) = run_steps(shards, [step], nd, mesh)
    check_arrived(after, step.apply(nd), mesh, whole)
    for group in {mesh.group(rank, step.axes) for rank in range(mesh.size)}:
        held = [shards[r].nbytes for r in group]
        expected = moved(step, held, [after[r].nbytes for r in group], len(group))
        if step.kind == "all_to_all":
            expected -= sum(kept(shape, nd, step.apply(nd), mesh, r) for r in group)
        assert network.sent[np.ix_(group, group)].sum() == expected
        outside = np.setdiff1d(np.arange(mesh.size), group)
        assert network.sent[np.ix_(group, outside)].sum() == 0


def kept(shape, before, after, mesh, rank):
    """Bytes that a rank holds before and after."""
    common = 8
    for a, b in zip(
        local_slices(shape, before, mesh, rank), local_slices(shape, after, mesh, rank), strict=True
    ):
        common *= max(0, min(a.stop, b.stop) - max(a.start, b.start))
    return common


@given(placed_tensors(count=2, even=True), st.integers(0, 3))
@settings(max_examples=80)
def test_counted_bytes_are_those_that_moved(placed, seed):
    mesh, shape, source, target = placed
    spec, nd = float_spec(shape), source
    steps = path_table(mesh, seed).path(spec, source, target)
    shards = scatter(whole_of(shape), source, mesh, np.random.default_rng(0))
    for step, before, after in path_bytes(spec, steps, source, mesh):
        assert is_even(shape, nd, mesh) and is_even(shape, step.apply(nd), mesh)
        assert {shard.nbytes for shard in shards} == {before}
        shards, (network,) = run_steps(shards, [step], nd, mesh)
        assert {shard.nbytes for shard in shards} == {after}
        assert set(network.nic_bytes) == {nic_bytes(spec, nd, [step], mesh)}
        if mesh.topology(step.axes)[0] == 1:
            assert set(network.device_bytes) == {device_intra_bytes(spec, nd, [step], mesh)}
        else:
            assert device_intra_bytes(spec, nd, [step], mesh) == 0
        nd = step.apply(nd)
    assert nd == target


@pytest.mark.parametrize(
    ("nd", "step"),
    [
        ("(S0, S0)", "all_gather[0] S0->B"),
        ("(P, S0)", "reduce_scatter[0] P->S0"),
        ("(S0, S1)", "all_to_all[0] S0->S1"),
        ("(B, S0)", "slice[0] B->S0"),
        ("(S0, S0)", "to_partial[0] S0->P"),
    ],
)
def test_what_is_not_legal_does_go_wrong(nd, step):
    """The rule of nested splits forbids nothing that works."""
    mesh, nd, step = Mesh(2, 2), NdSbp.parse(nd), Step.parse(step)
    assert not is_legal(step, nd)
    whole = whole_of((8, 8))
    after, _ = run_steps(scatter(whole, nd, mesh, np.random.default_rng(0)), [step], nd, mesh)
    with pytest.raises((AssertionError, Disproved)):
        check_arrived(after, step.apply(nd), mesh, whole)


# Measured with OneFlow on 4 hosts x 2 processes, a tensor of 4 MiB: megabytes out of all hosts.
@pytest.mark.parametrize(
    ("nd", "step", "megabytes"),
    [
        ("(S0, S0, B)", "all_gather[0,1] S0->B", 25.17),
        ("(P, P, B)", "all_reduce[0,1] P->B", 50.33),
        ("(P, P, B)", "reduce_scatter[0,1] P->S0", 25.17),
        ("(S0, S0, B)", "all_to_all[0,1] S0->S1", 6.29),
        ("(S0, S0, S0)", "all_gather[0,1,2] S0->B", 14.68),
        ("(P, P, P)", "all_reduce[0,1,2] P->B", 29.36),
        ("(B, B, P)", "all_reduce[2] P->B", 0.0),
    ],
)
def test_bytes_through_the_nics_as_measured(nd, step, megabytes):
    mesh, spec = Mesh(4, 2), TensorSpec((1024, 1024))
    nd, step = NdSbp.parse(nd), Step.parse(step)
    assert 4 * nic_bytes(spec, nd, [step], mesh) / 1e6 == pytest.approx(megabytes, abs=0.005)


def test_bytes_of_a_path_are_the_sum_over_its_steps():
    mesh, spec = Mesh(2, 2), TensorSpec((8, 8))
    steps = [Step.parse(s) for s in ("reduce_scatter[0] P->S0", "all_gather[1] S1->B")]
    nd = NdSbp.parse("(P, S1)")
    assert path_bytes(spec, steps, nd, mesh) == [(steps[0], 128, 64), (steps[1], 64, 128)]
    assert nic_bytes(spec, nd, steps, mesh) == 2 * 128 / 2
    assert device_intra_bytes(spec, nd, steps, mesh) == 128 / 2


def test_uneven_shards_count_as_the_largest():
    mesh, spec = Mesh(1, 2), TensorSpec((5, 2))
    step = Step.parse("all_gather[0] S0->B")
    assert path_bytes(spec, [step], NdSbp.parse("(S0)"), mesh) == [(step, 24, 40)]
