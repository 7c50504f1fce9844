"""Views by their strides: which of them OneFlow makes without a copy, and which are contiguous.

Of a view's element i the place is  offset + sum over dims d of  i[d] strides[d].  A reshape of a
view is one as well if each of its new dims runs through old dims that follow one another in memory.
Shapes are global: a split of one dim leaves the order of the others as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from ..sbp.rules import find_rule
from ..sbp.signature import OpSpec, View

Strides = tuple[int, ...]


def contiguous(shape: Sequence[int]) -> Strides:
    """Of a tensor in row-major order."""
    strides = [1] * len(shape)
    for dim in reversed(range(len(shape) - 1)):
        strides[dim] = strides[dim + 1] * shape[dim + 1]
    return tuple(strides)


@lru_cache(maxsize=10_000)
def is_contiguous(shape: Strides, strides: Strides) -> bool:
    """True if the elements follow one another; dims of size 1 may have any stride."""
    rows = zip(shape, strides, contiguous(shape), strict=True)
    return all(n == 1 or stride == row for n, stride, row in rows)


def reshaped(shape: Sequence[int], strides: Strides, target: Sequence[int]) -> Strides | None:
    """The strides of a view [shape] in the shape `target`; None if that takes a copy."""
    if 0 in shape:
        return contiguous(target)
    # runs of old dims that follow one another: (elements, stride of the last one)
    runs: list[tuple[int, int]] = []
    for n, stride in zip(shape, strides, strict=True):
        if n == 1:
            continue
        if runs and runs[-1][1] == n * stride:
            runs[-1] = runs[-1][0] * n, stride
        else:
            runs.append((n, stride))
    found: list[int] = []
    left = 1  # elements of the current run that new dims still have to cover
    stride = 1
    for n in target:
        if n == 1:
            found.append(1)
            continue
        if left == 1:
            left, stride = runs.pop(0)
            stride *= left
        if left % n:
            return None
        left //= n
        stride //= n
        found.append(stride)
    return tuple(found)


def view_of(op: OpSpec) -> View:
    """How the output of `op` shares the input's memory."""
    rule = find_rule(op.kind)
    return rule.view if rule else ""


def view_strides(op: OpSpec, strides: Strides) -> Strides | None:
    """Of the output of `op`, whose first input has `strides`; None if it is no view."""
    shape, target, view = op.inputs[0].shape, op.outputs[0].shape, view_of(op)
    if view == "reshape":
        return reshaped(shape, strides, target)
    if view == "transpose":
        return tuple(strides[dim] for dim in op.attrs["perm"])
    if view == "expand":
        new = len(target) - len(shape)
        old = zip(shape, strides, target[new:], strict=True)
        return (0,) * new + tuple(stride if n == m else 0 for n, stride, m in old)
    return strides if view else None


def gradient_strides(op: OpSpec, strides: Strides) -> Strides | None:
    """Of the input's gradient, if the output's has `strides`; None if it is no view of that."""
    shape, target, view = op.inputs[0].shape, op.outputs[0].shape, view_of(op)
    if view == "reshape":
        return reshaped(target, strides, shape)
    if view == "transpose":
        perm = [dim % len(shape) for dim in op.attrs["perm"]]
        return tuple(strides[perm.index(dim)] for dim in range(len(shape)))
    return strides if view == "same" else None
