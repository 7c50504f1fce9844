"""NumPy's idea of a tensor on a mesh: the parts of all ranks, and the whole that they stand for."""

import numpy as np

from autoddl.sbp.layout import local_slices
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.placement import NdSbp


def cut(whole: np.ndarray, nd: NdSbp, mesh: Mesh, seed: int = 0) -> list[np.ndarray]:
    """Each rank's part of `whole`. Summands of a Partial axis are random whole numbers."""
    parts = [whole] * mesh.size
    rng = np.random.default_rng(seed)
    for axis, placement in enumerate(nd):
        if not placement.is_partial:
            continue
        summed = list(parts)
        for rank in range(mesh.size):
            line = mesh.group(rank, [axis])
            if line[0] != rank:
                continue
            # the ranks of a line held the same summand so far, or it would not be one
            noise = [rng.integers(-4, 5, whole.shape).astype(whole.dtype) for _ in line[1:]]
            summed[line[0]] = np.asarray(parts[rank] - sum(noise), whole.dtype)
            for other, summand in zip(line[1:], noise, strict=True):
                summed[other] = summand
        parts = summed
    # replicas along B and S axes of a Partial tensor must hold the same summand
    canonical = [_partial_root(nd, mesh, rank) for rank in range(mesh.size)]
    return [
        np.array(parts[canonical[rank]][local_slices(whole.shape, nd, mesh, rank)], order="C")
        for rank in range(mesh.size)
    ]


def _partial_root(nd: NdSbp, mesh: Mesh, rank: int) -> int:
    """The rank with the same coordinates on the Partial axes and zero on the others."""
    coords = mesh.coords(rank)
    return mesh.rank(c if p.is_partial else 0 for c, p in zip(coords, nd, strict=True))


def joined(parts: list[np.ndarray], shape: tuple[int, ...], nd: NdSbp, mesh: Mesh) -> np.ndarray:
    """The whole that the ranks' parts stand for; AssertionError if replicas differ."""
    whole = np.zeros(shape, parts[0].dtype if parts[0].dtype != bool else np.int64)
    for rank, part in enumerate(parts):
        where = local_slices(shape, nd, mesh, rank)
        assert part.shape == tuple(s.stop - s.start for s in where), (nd, rank, part.shape, where)
        coords = mesh.coords(rank)
        replica_of = mesh.rank(0 if p.is_broadcast else c for c, p in zip(coords, nd, strict=True))
        if replica_of != rank:
            np.testing.assert_allclose(part, parts[replica_of], rtol=1e-6, atol=1e-6)
        else:
            whole[where] += part
    return whole.astype(parts[0].dtype)
