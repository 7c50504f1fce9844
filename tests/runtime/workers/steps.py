"""Runs every legal step from every placement on real processes; the parts come back whole."""

import itertools
import math
import sys

import numpy as np

from autoddl.runtime.comm.groups import Groups
from autoddl.runtime.comm.redistribute import prepare
from autoddl.runtime.jobs.guard import rank as this_rank
from autoddl.sbp.collectives import COLLECTIVES, legal_steps
from autoddl.sbp.layout import local_shape
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.placement import B, NdSbp, P, S
from tests.framework import flow, new_backend
from tests.runtime.shards import cut, joined


def gathered(world, x, shapes):
    """The local tensors of all ranks, as NumPy arrays."""
    largest = max(math.prod(s) for s in shapes)
    flat = flow.zeros(largest, dtype=flow.float64)
    flat[: x.numel()] = x.reshape(-1).to(flow.float64)
    rows = world.all_gather(flat).numpy().reshape(-1, largest)
    return [row[: math.prod(s)].reshape(s) for row, s in zip(rows, shapes, strict=True)]


def check(groups, whole, nd, step, dtype):
    mesh, after = groups.mesh, step.apply(nd)
    parts = cut(whole, nd, mesh)
    mine = flow.tensor(parts[groups.rank]).to(dtype)
    groups.log = []
    got = prepare([step], whole.shape, nd, groups)(mine)
    log, groups.log = groups.log, None
    assert got.dtype == dtype, (got.dtype, dtype)
    shapes = [local_shape(whole.shape, after, mesh, rank) for rank in range(mesh.size)]
    assert tuple(got.shape) == shapes[groups.rank], (nd, step, got.shape, shapes)
    everyone = gathered(groups.along(range(mesh.num_axes)), got, shapes)
    np.testing.assert_array_equal(joined(everyone, whole.shape, after, mesh), whole, f"{nd} {step}")
    beside = {"all_gather[balanced]": "make_equal", "reduce_scatter[balanced]": "make_unequal"}
    kinds = {beside.get(step.way, step.kind), step.kind} if not step.is_free else set()
    assert sorted((t.kind, t.axes) for t in log) == sorted((kind, step.axes) for kind in kinds)


def main() -> None:
    nodes, gpus, shape = int(sys.argv[1]), int(sys.argv[2]), tuple(map(int, sys.argv[3].split(",")))
    every, rank = int(sys.argv[4]), this_rank()
    shares = tuple(map(int, sys.argv[5].split(","))) if len(sys.argv) > 5 else ()
    mesh = Mesh(nodes, gpus, shares)
    table = COLLECTIVES.balanced if shares else COLLECTIVES
    groups = Groups(mesh, rank, new_backend())
    rng = np.random.default_rng(1)
    whole = rng.integers(-50, 50, shape).astype(np.float32)
    labels = (P, B, *map(S, range(len(shape))))
    cases = [
        (nd, step)
        for nd in map(NdSbp, itertools.product(labels, repeat=mesh.num_axes))
        for step in legal_steps(nd, len(shape), table)
    ]
    for nd, step in cases[::every]:
        check(groups, whole, nd, step, flow.float32)
    others = [case for case in cases if not case[0].has_partial and not case[1].target.is_partial]
    for dtype, values in (
        (flow.int64, whole.astype(np.int64)),
        (flow.bool, (whole > 0).astype(np.int64)),
        (flow.uint8, (np.abs(whole)).astype(np.int64)),
    ):
        for nd, step in others[:: every * 5]:
            check(groups, values, nd, step, dtype)
    x = flow.tensor(np.roll(np.arange(5, dtype=np.float32) - 9, rank))
    biggest = groups.along(range(mesh.num_axes)).all_max(x).numpy()
    ranks = range(mesh.size)
    expected = np.max([np.roll(np.arange(5) - 9, r) for r in ranks], axis=0)
    np.testing.assert_array_equal(biggest, expected)
    whole = np.stack([np.roll(np.arange(5, dtype=np.float32), r) for r in ranks])
    for after, others in ((False, whole[:rank]), (True, whole[rank + 1 :])):
        found = groups.along(range(mesh.num_axes)).sum_before(flow.tensor(whole[rank]), after=after)
        np.testing.assert_array_equal(found.numpy(), others.sum(axis=0))
    if rank == 0:
        print(f"checked {len(cases[::every])} steps")


main()
