"""Operators that treat each matrix, row or element by itself: they run as they are.

Of each tensor the table says how many dims an operator takes whole, or gives: 2 of a matrix, 1 of
what goes along a dim, 0 where elements count by themselves, all where rows of the batch meet.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ..builder import GraphBuilder, Ref, Unknown, broadcast
from .elementwise import is_tensor
from .table import Args, aten

_PLAIN = bool, int, float, str, list, tuple, type(None)

_TABLE = {
    # matrices
    "linalg_cholesky": "self:2 -> 2", "cholesky": "self:2 -> 2", "linalg_det": "A:2 -> 0",
    "det": "self:2 -> 0", "logdet": "self:2 -> 0", "linalg_slogdet": "A:2 -> 0 0",
    "slogdet": "self:2 -> 0 0", "linalg_eigh": "self:2 -> 1 2", "linalg_eigvalsh": "self:2 -> 1",
    "linalg_svd": "A:2 -> 2 1 2", "svd": "self:2 -> 2 1 2", "linalg_svdvals": "A:2 -> 1",
    "linalg_qr": "A:2 -> 2 2", "qr": "self:2 -> 2 2", "linalg_solve": "A:2 B:2 -> 2",
    "linalg_solve_triangular": "self:2 B:2 -> 2", "triangular_solve": "self:2 A:2 -> 2 2",
    "cholesky_solve": "self:2 input2:2 -> 2", "cholesky_inverse": "self:2 -> 2",
    "linalg_matrix_exp": "self:2 -> 2", "matrix_exp": "self:2 -> 2",
    "linalg_pinv": "self:2 -> 2", "pinverse": "self:2 -> 2", "_linalg_svd": "A:2 -> 2 1 2",
    "_upsample_bilinear2d_aa": "self:2 -> 2", "_upsample_bicubic2d_aa": "self:2 -> 2",
    "reflection_pad3d": "self:3 -> 3", "replication_pad3d": "self:3 -> 3",
    "max_pool1d_with_indices": "self:1 -> 1 1", "max_pool2d_with_indices": "self:2 -> 2 2",
    "max_pool3d_with_indices": "self:3 -> 3 3", "max_unpool2d": "self:2 indices:2 -> 2",
    "max_unpool3d": "self:3 indices:3 -> 3",
    "fractional_max_pool2d": "self:2 random_samples:1 -> 2 2",
    # along a dim
    "median.dim": "self:1 -> 0 0", "nanmedian.dim": "self:1 -> 0 0", "mode": "self:1 -> 0 0",
    "kthvalue": "self:1 -> 0 0", "cummax": "self:1 -> 1 1", "cummin": "self:1 -> 1 1",
    "logcumsumexp": "self:1 -> 1", "scatter_reduce": "self:1 index:1 src:1 -> 1",
    # elements
    "hypot": "self:0 other:0 -> 0", "copysign": "self:0 other:0 -> 0",
    "ldexp": "self:0 other:0 -> 0", "digamma": "self:0 -> 0", "polygamma": "self:0 -> 0",
    "erfinv": "self:0 -> 0", "i0": "self:0 -> 0", "fake_quantize_per_tensor_affine": "self:0 -> 0",
    # rows of the batch meet
    "median": "self:all -> 0", "nanmedian": "self:all -> 0", "dist": "self:all other:all -> 0",
    "pdist": "self:all -> 1", "masked_scatter": "self:all mask:all source:all -> all",
}  # fmt: skip


# which other operators become
_OTHERS = {"cdist": "x1:2 x2:2 -> 2", "linalg_vector_norm": "self:1 -> 0"}


@aten(*_TABLE)
def batched(e: GraphBuilder, a: Args) -> Ref | Sequence[Ref]:
    """The operator itself, along the last dim where it goes along one."""
    taken, given = (side.split() for side in {**_TABLE, **_OTHERS}[a["name"]].split("->"))
    several = isinstance(a["out"], list)
    outs = [*a["out"]] if several else [a["out"]]
    tensors: dict[str, Ref] = {}
    cores: list[str] = []
    for name, _, core in (part.partition(":") for part in taken):
        name = name if name in a else "input"  # as some overloads have it
        if is_tensor(a[name]):
            tensors[name] = e.ref(a[name])
            cores.append(core)
    rest = {k: v for k, v in a.items() if k not in (*tensors, "name", "out")}
    if unknown := [k for k, v in rest.items() if not isinstance(v, _PLAIN)]:
        raise Unknown(f"{a['name']} with {unknown[0]}")
    if a["name"] == "linalg_solve" and _of_vectors(*tensors.values()):
        cores, given = ["2", "1"], ["1"]
    along = a.get("dim") if taken[0].endswith(":1") and a["name"] not in _OTHERS else None
    if along is not None:
        rest |= {"dim": -1, **({"keepdim": False} if "keepdim" in rest else {})}
        tensors = {k: e.swapped(x, along, -1) for k, x in tensors.items()}
    sizes = [_whole(core, x.ndim) for core, x in zip(cores, tensors.values(), strict=True)]
    results = [_whole(core, len(shape)) for core, (shape, _) in zip(given, outs, strict=True)]
    rows = [x.shape[: x.ndim - n] for n, x in zip(sizes, tensors.values(), strict=True)]
    if along is not None and len({*map(tuple, rows)}) > 1:  # an index that covers a part
        sizes, results, rows = [x.ndim for x in tensors.values()], [len(outs[0][0])], [()]
    front = tuple(functools.reduce(broadcast, rows))
    made = e.several(
        "batched", list(tensors.values()),
        [_out(out, n, along, front) for out, n in zip(outs, results, strict=True)],
        function=a["name"].partition(".")[0], tensors=tuple(tensors), cores=tuple(sizes),
        results=tuple(results), **rest,
    )  # fmt: skip
    found = [
        e.swapped(y, along, -1) if along is not None and n else e.reshaped(y, out[0])
        for y, n, out in zip(made, results, outs, strict=True)
    ]
    return found if several else found[0]


def _whole(core: str, ndim: int) -> int:
    return ndim if core == "all" else int(core)


def _out(
    out: tuple[Sequence[int], str], core: int, along: int | None, rows: Sequence[int]
) -> tuple[Sequence[int], str]:
    """An output's shape and dtype while `along` is the last dim."""
    shape, dtype = [*out[0]], out[1]
    if along is None:
        return shape, dtype
    if not core:
        return rows, dtype
    shape[along], shape[-1] = shape[-1], shape[along]
    return shape, dtype


def _of_vectors(matrix: Ref, given: Ref) -> bool:
    """Whether `linalg.solve` takes its second argument as vectors."""
    return given.ndim == 1 or given.ndim == matrix.ndim - 1 and given.shape == matrix.shape[:-1]
