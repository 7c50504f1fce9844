"""Lookups in tables, and what is written to places."""

from typing import Any

from .case import case, out
from .draw import f, index, rising

BORDERS: dict[str, Any] = {"out_int32": False, "right": True}

GATHER = (
    case("embedding", "gather", (f(12, 8), index(12, 4, 6)), out(4, 6, 8), axis=0),
    case("bag", "gather", (f(12, 8), index(12, 4)), out(4, 8), axis=0),
    case("columns", "gather", (f(4, 12), index(12, 6)), out(4, 6), axis=1),
    case("middle", "gather", (f(4, 12, 8), index(12, 6)), out(4, 6, 8), axis=1),
    case("", "embedding", (f(12, 8), index(12, 4, 6)), out(4, 6, 8), padding_idx=0,
         scale_grad_by_freq=False),
    case("by_frequency", "embedding", (f(12, 8), index(12, 24)), out(24, 8), padding_idx=0,
         scale_grad_by_freq=True),
    case("triangle", "gather_nd", (f(4, 4, 8), index(4, 6, 2)), out(6, 8)),
    case("rows", "gather_nd", (f(12, 8), index(12, 6, 1)), out(6, 8)),
    case("", "dim_gather", (f(4, 12), index(12, 4, 6)), out(4, 6), dim=1),
    case("part", "dim_gather", (f(8, 12), index(12, 4, 6)), out(4, 6), dim=1),
    case("", "batch_gather", (f(4, 12, 8), index(12, 4, 6)), out(4, 6, 8)),
    case("rows", "batch_gather", (f(4, 6, 12), index(12, 4, 6, 2)), out(4, 6, 2)),
    case("", "searchsorted", (rising(12), f(4, 6)), out(4, 6, dtype="int64"), **BORDERS),
    case("rows", "searchsorted", (rising(4, 12), f(4, 6)), out(4, 6, dtype="int64"), **BORDERS),
    case("", "in_top_k", (index(12, 6), f(6, 12)), out(6, dtype="bool"), k=3),
    case("", "dim_scatter_update", (f(4, 12, 6), index(12, 4, 8, 6), f(4, 8, 6)), out(4, 12, 6),
         dim=1),
    case("part", "dim_scatter_update", (f(8, 12), index(12, 4, 6), f(4, 6)), out(8, 12), dim=1),
    case("", "dim_scatter_update_scalar", (f(4, 12), index(12, 4, 6)), out(4, 12), dim=1,
         src_scalar=1.5),
    case("zero", "dim_scatter_update_scalar", (f(4, 12), index(12, 4, 6)), out(4, 12), dim=1,
         src_scalar=0.0),
    case("", "dim_scatter_add", (f(4, 12, 6), index(12, 4, 8, 6), f(4, 8, 6)), out(4, 12, 6),
         dim=1),
    case("nodes", "dim_scatter_add", (f(5, 6), index(5, 12, 6), f(12, 6)), out(5, 6), dim=0),
    case("part", "dim_scatter_add", (f(8, 12), index(12, 4, 6), f(4, 6)), out(8, 12), dim=1),
    case("ints", "dim_scatter_add", (index(9, 4, 12), index(12, 4, 6), index(9, 4, 6)),
         out(4, 12, dtype="int64"), dim=1),
    case("", "scatter_nd", (index(5, 12, 1), f(12, 6)), out(5, 6), shape=(5, 6)),
    case("cells", "scatter_nd", (index(3, 4, 6, 2), f(4, 6, 8)), out(5, 3, 8), shape=(5, 3, 8)),
    case("", "tensor_scatter_nd_update", (f(12, 6), index(12, 4, 1), f(4, 6)), out(12, 6)),
    case("", "one_hot", (index(12, 4, 6),), out(4, 6, 12, dtype="int64"), depth=12,
         dtype="int64", floating_on_value=0.0, floating_off_value=0.0, integer_on_value=1,
         integer_off_value=0),
)  # fmt: skip
