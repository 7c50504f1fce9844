"""The canonical form of operators in the graph: attributes without OneFlow's padding, no no-ops.

Inputs and outputs follow the order in which OneFlow declares an operator's arguments. Attributes
have OneFlow's names, except that a scalar operand, which OneFlow stores in one of several typed
attributes, is the single attribute `operand`. Only the first output remains, or those in
`KEPT_OUTPUTS`; one that is read otherwise is an operator of its own (`apart`), or there is no
canonical form.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ....sbp.layout import TensorSpec
from .job.raw import RawOp

KEPT_OUTPUTS = {"nll": ("output", "out_weight"), "sparse_softmax_cross_entropy": ("out",)}
# secondary outputs that are operators of their own -> their kinds
_INDICES = {
    **{(f"max_pool_{n}d", "indice"): f"max_pool_{n}d_indices" for n in (1, 2, 3)},
    ("median_with_indices", "indices"): "median_indices",
}
_OPERAND_TYPES = ("float", "int", "bool")
_DROPPED = frozenset({"nd_sbp", "seed", "has_seed", "max_dim_size", "device_type", "device_id"})
_DROPPED_OF = {"var": frozenset({"dtype"})}
_COPIES = frozenset({"identity", "copy", "contiguous", "amp_white_identity"})
_SHAPE_ONLY = frozenset(
    {"reshape", "expand", "narrow", "slice", "squeeze", "expand_dims", "broadcast_like", "flatten"}
)


def canonical_attrs(
    op: RawOp, exponents: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """The operator's attributes and batch exponents in the form that the graph has."""
    attrs: dict[str, Any] = {}
    batch: dict[str, tuple[int, ...]] = {}
    dropped = _DROPPED | _DROPPED_OF.get(op.kind, frozenset())
    typed = {f"{t}_operand" for t in _OPERAND_TYPES} | {f"has_{t}_operand" for t in _OPERAND_TYPES}
    for key, value in op.attrs.items():
        if key in typed:
            if key.startswith("has_") or not op.attrs.get(f"has_{key}"):
                continue
            target = "operand"
        elif key in dropped:
            continue
        else:
            target = key
        attrs[target] = value
        if any(exponents.get(key, ())):
            batch[target] = exponents[key]
    return attrs, batch


def kept_outputs(op: RawOp) -> tuple[str, ...]:
    """The outputs that the operator has in the graph: the first, or all of an opaque one."""
    if op.kind == "opaque":
        return op.makes
    if op.kind in KEPT_OUTPUTS:
        return tuple(name for key in KEPT_OUTPUTS[op.kind] for name in op.outputs[key])
    return op.makes[:1]


def apart(ops: Iterable[RawOp]) -> Iterator[RawOp]:
    """The operators, of which those of several outputs are several where their rules are."""
    for op in ops:
        parts = {key: _INDICES[op.kind, key] for key in op.outputs if (op.kind, key) in _INDICES}
        if not parts:
            yield op
            continue
        rest = {key: names for key, names in op.outputs.items() if key not in parts}
        yield replace(op, outputs=rest)
        for key, kind in parts.items():
            made = {key: op.outputs[key]}
            yield replace(op, name=f"{op.name}/{key}", kind=kind, outputs=made)


def is_no_op(op: RawOp, source: TensorSpec | None, result: TensorSpec) -> bool:
    """True if `op`, from its first input's spec to its first output's, changes nothing."""
    if source is None or source != result:
        return False
    if op.kind == "transpose":
        perm = op.attrs["perm"]
        return perm == tuple(range(len(perm)))
    if op.kind == "dropout":
        return op.attrs["rate"] == 0.0 and len(op.reads) == 1
    if op.kind == "slice":
        return all(step == 1 for step in op.attrs["step"])
    return op.kind in _COPIES or op.kind in _SHAPE_ONLY or op.kind == "cast"
