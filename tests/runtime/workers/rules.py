"""Runs operators by their signatures on real processes and compares them with the whole.

Arguments: nodes, GPUs per node, and how many signatures per operator are drawn (0: all, on an
axis); "torch" for that back end, "products" for large products alone, "-v" to see them.
"""

import itertools
import math
import random
import sys

import numpy as np

from autoddl.graph.placed import PlannedOp
from autoddl.runtime.comm.groups import Groups
from autoddl.runtime.execution.vjp import product, run_kernel
from autoddl.runtime.jobs.guard import install_guard, rank
from autoddl.runtime.kernel import Context, RunState
from autoddl.sbp.layout import is_even, local_shape
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.placement import NdSbp
from autoddl.sbp.signature import find_rule, is_random, signatures_of
from tests.back_ends import back_end
from tests.runtime.shards import cut, joined
from tests.sbp.operators import CASES
from tests.sbp.operators.case import f, out
from tests.sbp.operators.conv import conv_case
from tests.sbp.operators.matmul import product_case

WITHOUT_KERNEL = ("loss", "opaque")
PRODUCTS = (
    product_case("large", "matmul", f(16, 24), f(24, 8), out(16, 8)),
    conv_case("large", f(8, 8, 6, 6), f(8, 8, 3, 3), out(8, 8, 4, 4)),
)


class Runner:
    """Runs operators on one mesh, and gathers what all ranks got."""

    def __init__(self, mesh, number, backend):
        self.mesh, self.rank = mesh, number
        self.groups = Groups(mesh, number, backend)
        self.backend = backend

    def run(self, case, nds, arrays, slopes):
        """Outputs, updates and gradients of this rank, from its parts of inputs and slopes."""
        ins, outs, grad_outs, grad_ins, inner = nds
        op = case.op
        planned = PlannedOp(ins, outs, grad_outs, grad_ins, inner)
        group = self.groups.along(inner) if inner else None
        state = RunState(seed=0)
        context = Context("op", op, planned, self.mesh, self.rank, state, group)
        rule = find_rule(op.kind)
        assert rule is not None
        attrs = rule.local_attrs(
            op,
            tuple(
                local_shape(t.shape, nd, self.mesh, self.rank)
                for t, nd in zip(op.inputs, ins, strict=True)
            ),
            tuple(
                local_shape(t.shape, nd, self.mesh, self.rank)
                for t, nd in zip(op.outputs, outs, strict=True)
            ),
        )
        mine = [self.part(a, nd) for a, nd in zip(arrays, ins, strict=True)]
        wanted = [nd is not None for nd in grad_ins]
        kernel = self.backend.kernels.operators[op.kind]
        record, results = run_kernel(self.backend, kernel, context, attrs, mine, wanted)
        updates = dict(context.updates)
        if record is None:
            return results, updates, [None] * len(mine)
        dy = [
            None if nd is None else self.part(s, nd, 1)
            for s, nd in zip(slopes, grad_outs, strict=True)
        ]
        return results, updates, product(record, dy)

    def part(self, array, nd, seed=0):
        """This rank's part of an array, as a tensor."""
        return self.backend.from_numpy(cut(array, nd, self.mesh, seed)[self.rank].copy())

    def array(self, x):
        return self.backend.to_numpy(self.backend.detached(x))

    def whole(self, x, shape, nd):
        """What the ranks' parts `x` of a tensor [shape] placed as `nd` stand for."""
        shapes = [local_shape(shape, nd, self.mesh, r) for r in range(self.mesh.size)]
        assert tuple(x.shape) == shapes[self.rank], (tuple(x.shape), shapes[self.rank])
        world = self.groups.along(range(self.mesh.num_axes))
        flat = self.backend.contiguous(self.backend.detached(x).reshape(-1))
        rows = self.backend.to_numpy(world.all_gather(flat))
        parts = np.split(rows, self.mesh.size)
        return joined(
            [p.reshape(s) for p, s in zip(parts, shapes, strict=True)], shape, nd, self.mesh
        )


def placements(signatures):
    """NdSbps of inputs, outputs and gradients, and the inner axes, of one signature per axis."""

    def columns(side):
        lists = zip(*(getattr(s, side) for s in signatures), strict=True)
        return tuple(None if None in labels else NdSbp(tuple(labels)) for labels in lists)

    inner = tuple(a for a, s in enumerate(signatures) if s.inner)
    return *map(columns, ("ins", "outs", "grad_outs", "grad_ins")), inner


def fits(case, nds, signatures, mesh):
    tensors = zip((*case.op.inputs, *case.op.outputs), (*nds[0], *nds[1]), strict=True)
    if not all(is_even(t.shape, nd, mesh) for t, nd in tensors):
        return False
    return all(
        s.limit is None or s.limit % mesh.extent(a for a, t in enumerate(signatures) if t == s) == 0
        for s in signatures
    )


def near(got, expected, what):
    scale = np.abs(expected).max(initial=0.0) if expected.dtype != bool else 0.0
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=2e-5 * max(scale, 1.0), err_msg=what)


def check(runner, alone, case, signatures):
    mesh = runner.mesh
    nds = placements(signatures)
    if not fits(case, nds, signatures, mesh):
        return 0
    rng = np.random.default_rng(0)
    arrays = case.inputs(rng)
    slopes = [rng.standard_normal(t.shape).astype(t.dtype) for t in case.op.outputs]
    one = NdSbp(())
    flows = [None if nd is None else one for nd in (*nds[2], *nds[3])]
    count = len(case.op.outputs)
    everything = (one,) * len(arrays), (one,) * count, flows[:count], flows[count:], ()
    got, expected = (
        runner.run(case, nds, arrays, slopes),
        alone.run(case, everything, arrays, slopes),
    )
    if runner.rank == 0 and "-v" in sys.argv:
        print(case.id, *signatures, sep=" | ", flush=True)
    what = f"{case.id} {[str(s) for s in signatures]} "
    for i, (x, y) in enumerate(zip(got[0], expected[0], strict=True)):
        near(
            runner.whole(x, case.op.outputs[i].shape, nds[1][i]),
            alone.array(y),
            f"{what} output {i}",
        )
    assert got[1].keys() == expected[1].keys(), what
    for i, x in got[1].items():
        value = alone.array(expected[1][i])
        near(runner.whole(x, value.shape, nds[0][i]), value, f"{what} update {i}")
    for i, (x, y) in enumerate(zip(got[2], expected[2], strict=True)):
        assert (x is None) == (nds[3][i] is None), f"{what} gradient {i}"
        if x is not None:
            shape = case.op.inputs[i].shape
            near(runner.whole(x, shape, nds[3][i]), alone.array(y), f"{what} gradient {i}")
    return 1


def main() -> None:
    install_guard()
    mesh, sample = Mesh(int(sys.argv[1]), int(sys.argv[2])), int(sys.argv[3])
    backend = back_end("torch" if "torch" in sys.argv else "oneflow")
    runner, alone = Runner(mesh, rank(), backend), Runner(Mesh(1, 1), 0, backend)
    rng = random.Random(0)
    checked = 0
    cases = PRODUCTS if "products" in sys.argv else CASES
    for case in cases:
        kind = case.op.kind
        if kind in WITHOUT_KERNEL or is_random(kind) or kind not in backend.kernels.operators:
            continue
        choices = signatures_of(case.op)
        total = math.prod([len(choices)] * mesh.num_axes)
        if sample and total > sample:
            combinations = [[rng.choice(choices) for _ in mesh.axes] for _ in range(sample)]
        else:
            combinations = itertools.product(choices, repeat=mesh.num_axes)
        for signatures in combinations:
            checked += check(runner, alone, case, signatures)
    if rank() == 0:
        print(f"checked {checked} signatures of {len(cases)} operators")


main()
