"""Random meshes, placements and tensors for the tests of sbp."""

import functools

from hypothesis import strategies as st

from autoddl.sbp.layout import TensorSpec
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.placement import B, NdSbp, P, S
from autoddl.sbp.redistribute import PathTable

# One to four axes of extents 2 and 3, within nodes, between nodes and both.
MESHES = [
    Mesh(*shape)
    for shape in [(1, 2), (3, 1), (2, 2), (2, 3), (1, 6), (4, 1), (2, 4), (4, 3), (2, 6), (4, 4)]
]


def placements(ndim, *, partial=True):
    return st.sampled_from([B, *([P] if partial else []), *map(S, range(ndim))])


def nd_sbps(mesh, ndim, *, partial=True):
    axes = st.tuples(*[placements(ndim, partial=partial)] * mesh.num_axes)
    return axes.map(NdSbp)


@st.composite
def placed_tensors(draw, *, count=1, even=False, max_dims=3):
    """(mesh, shape, `count` NdSbps); the dims of an even one are multiples of the mesh's size."""
    mesh = draw(st.sampled_from(MESHES))
    ndim = draw(st.integers(1, max_dims if mesh.num_axes < 4 else 2))
    sizes = st.sampled_from([mesh.size, 2 * mesh.size]) if even else st.integers(0, 13)
    shape = tuple(draw(sizes) for _ in range(ndim))
    return mesh, shape, *(draw(nd_sbps(mesh, ndim)) for _ in range(count))


def ring_price(mesh, alpha_s=1e-6, intra=1e-9, inter=1e-8):
    """Ring and pairwise collectives, each link class with its own seconds per byte."""

    def price(kind, axes):
        nodes, gpus = mesh.topology(axes)
        p, beta = nodes * gpus, intra if nodes == 1 else inter
        rounds = 2 if kind == "all_reduce" else 1
        return rounds * (p - 1) * alpha_s, rounds * (p - 1) / p * beta

    return price


def odd_price(mesh, seed):
    """A price without sense, which leads along paths that a real one never takes."""

    def price(kind, axes):
        mixed = hash((seed, sum(map(ord, kind)), axes)) % 1009
        return (mixed % 31) * 1e-6, (mixed + 1) * 1e-9

    return price


@functools.cache
def path_table(mesh, seed):
    """A table per mesh and price; seed 0 is the ring's price."""
    return PathTable(mesh, odd_price(mesh, seed) if seed else ring_price(mesh))


def volume_price(mesh, spec):
    """Prices a path at the bytes that one device sends, in units of the whole tensor."""
    return ring_price(mesh, alpha_s=0.0, intra=1 / spec.bytes, inter=1 / spec.bytes)


def float_spec(shape):
    return TensorSpec(tuple(shape), "float64")
