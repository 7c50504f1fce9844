"""Rules whose labels depend on the shapes hold on any that Hypothesis finds."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from autoddl.sbp.mesh import Mesh
from autoddl.sbp.oracle import fits
from autoddl.sbp.rules.shape import leading_dims
from autoddl.sbp.signature import signatures_of

from .operators.case import Case, case, f, out
from .operators.matmul import product_case
from .operators.shape import reshape_case
from .proof import check

SIZES = st.sampled_from([1, 2, 3, 4, 6])
SHAPES = st.lists(SIZES, max_size=4).map(tuple)
EXAMPLES = settings(max_examples=60, derandomize=True, deadline=None)


def check_all(c: Case, nodes: int = 2) -> None:
    """Each signature, on all axes at once."""
    mesh = Mesh(nodes, 1)
    for signature in signatures_of(c.op):
        if fits(c.op, mesh, [signature] * mesh.num_axes):
            check(c, mesh, [signature] * mesh.num_axes)


@st.composite
def reshapes(draw):
    """A shape and another one of as many elements, with some of its factors merged or moved."""
    primes = draw(st.lists(st.sampled_from([2, 2, 3]), min_size=1, max_size=5))
    pieces = []
    for _ in range(2):
        cuts = draw(st.lists(st.integers(0, len(primes)), max_size=3).map(sorted))
        bounds = [0, *cuts, len(primes)]
        pieces.append(
            tuple(math.prod(primes[a:b]) for a, b in zip(bounds, bounds[1:], strict=False))
        )
    return tuple(pieces)


def stays_contiguous(source, target, i: int, j: int) -> bool:
    """True if halving dim i of the source and dim j of the target gives the same elements."""
    numbers = np.arange(math.prod(source))
    halves = np.split(numbers.reshape(source), 2, axis=i)
    expected = np.split(numbers.reshape(target), 2, axis=j)
    return all(np.array_equal(a.ravel(), b.ravel()) for a, b in zip(halves, expected, strict=True))


@EXAMPLES
@given(shapes=reshapes())
def test_reshape_finds_exactly_the_dims_that_run_together(shapes):
    source, target = shapes
    ins, outs = leading_dims(source, target)
    found = {(i, outs.index(label)) for i, label in enumerate(ins) if label is not None}
    halved = {
        (i, j)
        for i, n in enumerate(source)
        for j, m in enumerate(target)
        if n % 2 == 0 and m % 2 == 0 and stays_contiguous(source, target, i, j)
    }
    assert {(i, j) for i, j in found if source[i] % 2 == 0 and target[j] % 2 == 0} == halved


@EXAMPLES
@given(shapes=reshapes(), nodes=st.sampled_from([2, 3, 4]))
def test_reshape(shapes, nodes):
    check_all(reshape_case("any", *shapes), nodes)


@st.composite
def stretched(draw, shape):
    """A shape that broadcasts onto `shape`."""
    kept = draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape)))
    short = tuple(n if keep else 1 for n, keep in zip(shape, kept, strict=True))
    return short[draw(st.integers(0, len(shape))) :]


@EXAMPLES
@given(data=st.data(), shape=SHAPES, kind=st.sampled_from(["broadcast_sub", "broadcast_mul"]))
def test_broadcasting(data, shape, kind):
    left, right = data.draw(stretched(shape)), data.draw(stretched(shape))
    joint = np.broadcast_shapes(left, right)
    check_all(case("any", kind, (f(*left), f(*right)), out(*joint)))


@EXAMPLES
@given(data=st.data(), batch=st.lists(SIZES, max_size=2).map(tuple), m=SIZES, k=SIZES, n=SIZES)
def test_matrix_products(data, batch, m, k, n):
    left, right = data.draw(stretched(batch)), data.draw(stretched(batch))
    joint = np.broadcast_shapes(left, right)
    ta, tb = data.draw(st.booleans()), data.draw(st.booleans())
    a = f(*left, *((k, m) if ta else (m, k)))
    b = f(*right, *((n, k) if tb else (k, n)))
    check_all(product_case("any", "broadcast_matmul", a, b, out(*joint, m, n), ta, tb))


@EXAMPLES
@given(data=st.data(), shape=SHAPES.filter(bool), keep=st.booleans())
def test_sums(data, shape, keep):
    dims = st.integers(0, len(shape) - 1)
    axis = tuple(sorted(data.draw(st.sets(dims, min_size=1))))
    result = np.zeros(shape).sum(axis=axis, keepdims=keep).shape
    check_all(case("any", "reduce_sum", (f(*shape),), out(*result), axis=axis, keepdims=keep))
