"""Operators that rearrange elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..builder import GraphBuilder, Ref, Unknown, product
from .batched import batched
from .table import Args, aten


@aten("view", "reshape", "_unsafe_view", "view_copy", "flatten", "unflatten", "unsqueeze",
      "unsqueeze_copy", "squeeze", "squeeze_copy", "_reshape_copy", "ravel")  # fmt: skip
def reshape(e: GraphBuilder, a: Args) -> Ref:
    shape, dtype = a["out"]
    if dtype != e.ref(a["self"]).dtype:
        raise Unknown("a view of another dtype")
    return e.reshaped(a["self"], shape)


@aten("transpose", "transpose_copy", "swapaxes")
def transpose(e: GraphBuilder, a: Args) -> Ref:
    return e.swapped(a["self"], a["dim0"], a["dim1"])


@aten("t", "t_copy", "numpy_T", "mT")
def t(e: GraphBuilder, a: Args) -> Ref:
    return e.swapped(a["self"], -1, -2) if e.ref(a["self"]).ndim > 1 else e.ref(a["self"])


@aten("permute", "permute_copy")
def permute(e: GraphBuilder, a: Args) -> Ref:
    return e.permuted(a["self"], a["dims"])


@aten("movedim")
def movedim(e: GraphBuilder, a: Args) -> Ref:
    x = e.ref(a["self"])
    source = [d % x.ndim for d in _listed(a["source"])]
    target = [d % x.ndim for d in _listed(a["destination"])]
    rest = iter(d for d in range(x.ndim) if d not in source)
    places = dict(zip(target, source, strict=True))
    return e.permuted(x, [places[d] if d in places else next(rest) for d in range(x.ndim)])


def _listed(value: Any) -> Sequence[int]:
    return value if isinstance(value, (tuple, list)) else (value,)


@aten("expand", "expand_copy", "expand_as", "broadcast_to")
def expand(e: GraphBuilder, a: Args) -> Ref:
    return e.expanded(a["self"], a["out"][0])


@aten("broadcast_tensors")
def broadcast_tensors(e: GraphBuilder, a: Args) -> list[Any]:
    return [e.expanded(x, shape) for x, (shape, _) in zip(a["tensors"], a["out"], strict=True)]


@aten("repeat")
def repeat(e: GraphBuilder, a: Args) -> Ref:
    """A tensor, as often as `repeats` says along each dim."""
    x, repeats = e.ref(a["self"]), a["repeats"]
    shape = (*(1,) * (len(repeats) - x.ndim), *x.shape)
    apart = [n for size in shape for n in (1, size)]
    wide = [n for times, size in zip(repeats, shape, strict=True) for n in (times, size)]
    return e.reshaped(e.expanded(e.reshaped(x, apart), wide), a["out"][0])


@aten("repeat_interleave.self_int")
def repeat_interleave(e: GraphBuilder, a: Args) -> Ref:
    """Each element along `dim`, or of all that there are, `repeats` times."""
    x, times = e.ref(a["self"]), a["repeats"]
    if a["dim"] is None:
        x = e.reshaped(x, (product(x.shape),))
    d = (a["dim"] or 0) % x.ndim
    apart = (*x.shape[: d + 1], 1, *x.shape[d + 1 :])
    wide = (*x.shape[: d + 1], times, *x.shape[d + 1 :])
    return e.reshaped(e.expanded(e.reshaped(x, apart), wide), a["out"][0])


@aten("select", "select_copy")
def select(e: GraphBuilder, a: Args) -> Ref:
    x = e.ref(a["self"])
    dim = a["dim"] % x.ndim
    start = a["index"] % x.shape[dim]
    return e.reshaped(e.narrowed(x, dim, start, 1), a["out"][0])


@aten("narrow")
def narrow(e: GraphBuilder, a: Args) -> Ref:
    x = e.ref(a["self"])
    return e.narrowed(x, a["dim"], a["start"] % (x.shape[a["dim"]] or 1), a["length"])


@aten("slice", "slice_copy")
def slice_(e: GraphBuilder, a: Args) -> Ref:
    x = e.ref(a["self"])
    dim, step = a["dim"] % x.ndim, a["step"]
    size, length = x.shape[dim], a["out"][0][dim]
    start = a["start"] or 0
    start = min(max(start + size if start < 0 else start, 0), size)
    if step == 1:
        if start == 0 and length == size:
            return x
        return e.narrowed(x, dim, start, length)
    whole = [(0, n, 1) for n in x.shape]
    whole[dim] = (start, min(start + step * length, size), step)
    begin, end, steps = (tuple(t) for t in zip(*whole, strict=True))
    return e.op("slice", [x], a["out"][0], start=begin, stop=end, step=steps)


@aten("diagonal", "diagonal_copy")
def diagonal(e: GraphBuilder, a: Args) -> Ref:
    """Of two dims that become one at the end: every element after a row and one more."""
    x = e.ref(a["self"])
    rows, columns = a["dim1"] % x.ndim, a["dim2"] % x.ndim
    rest = [d for d in range(x.ndim) if d not in (rows, columns)]
    n, m = x.shape[rows], x.shape[columns]
    flat = [*(x.shape[d] for d in rest), product((n, m))]
    one = e.reshaped(e.permuted(x, [*rest, rows, columns]), flat)
    start = a["offset"] if a["offset"] >= 0 else -a["offset"] * m
    return slice_(e, {"self": one, "dim": -1, "start": start, "step": m + 1, "out": a["out"]})


@aten("diagonal_scatter")
def diagonal_scatter(e: GraphBuilder, a: Args) -> Ref:
    """A tensor with another in the place of a diagonal, as `diagonal` takes it."""
    x = e.ref(a["self"])
    rows, columns = a["dim1"] % x.ndim, a["dim2"] % x.ndim
    order = [*(d for d in range(x.ndim) if d not in (rows, columns)), rows, columns]
    turned, (n, m) = e.permuted(x, order), (x.shape[rows], x.shape[columns])
    flat = e.reshaped(turned, [*turned.shape[:-2], product((n, m))])
    start = a["offset"] if a["offset"] >= 0 else -a["offset"] * m
    given = {
        "self": flat,
        "src": a["src"],
        "dim": -1,
        "start": start,
        "step": m + 1,
        "out": a["out"],
    }
    found = e.reshaped(slice_scatter(e, given), turned.shape)
    return e.permuted(found, [order.index(d) for d in range(x.ndim)])


@aten("slice_scatter", "select_scatter")
def slice_scatter(e: GraphBuilder, a: Args) -> Ref:
    """A tensor with another in the place of a slice."""
    x, part = e.ref(a["self"]), e.cast(a["src"], a["out"][1])
    dim, step = a["dim"] % x.ndim, a.get("step", 1)
    size = x.shape[dim]
    start = (a["index"] if "index" in a else a["start"]) or 0
    start = min(max(start + size if start < 0 else start, 0), size)
    if "index" in a:
        part = e.reshaped(part, [1 if d == dim else n for d, n in enumerate(x.shape)])
    if part.shape[dim] == size:
        return part
    whole = [(0, n, 1) for n in x.shape]
    whole[dim] = (start, min(start + step * part.shape[dim], size), step)
    begin, end, steps = (tuple(t) for t in zip(*whole, strict=True))
    return e.op("slice_update", [x, part], x.shape, start=begin, stop=end, step=steps)


@aten("unfold")
def windows(e: GraphBuilder, a: Args) -> Ref:
    x = e.ref(a["self"])
    attrs = {"dimension": a["dimension"] % x.ndim, "size": a["size"], "step": a["step"]}
    return e.op("unfold_tensor", [x], a["out"][0], **attrs)


@aten("reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d")
def pad_with_own(e: GraphBuilder, a: Args) -> Ref:
    padding = tuple(map(int, a["padding"]))
    return e.op(a["name"], [a["self"]], a["out"][0], padding=padding)


@aten("split", "split_with_sizes", "chunk", "unbind", "split_copy", "split_with_sizes_copy",
      "unbind_copy", "tensor_split", "unsafe_split", "unsafe_chunk")  # fmt: skip
def split(e: GraphBuilder, a: Args) -> list[Ref]:
    """Parts along one dim, one after the other."""
    x = e.ref(a["self"])
    dim = a["dim"] % x.ndim
    parts, start = [], 0
    for shape, _ in a["out"]:
        length = 1 if a["name"].startswith("unbind") else shape[dim]
        parts.append(e.reshaped(e.narrowed(x, dim, start, length), shape))
        start += length
    return parts


@aten("cat", "concat")
def cat(e: GraphBuilder, a: Args) -> Any:
    shape, dtype = a["out"]
    parts = [x for x in map(e.ref, a["tensors"]) if x.shape != (0,)]
    if len(parts) == 1:
        return parts[0]
    return e.op("concat", parts, shape, dtype, axis=a["dim"] % len(shape))


@aten("stack")
def stack(e: GraphBuilder, a: Args) -> Ref:
    shape, dtype = a["out"]
    return e.op("stack", a["tensors"], shape, dtype, axis=a["dim"] % len(shape))


@aten("roll")
def roll(e: GraphBuilder, a: Args) -> Ref:
    if not a["dims"]:
        raise Unknown("roll without dims")
    return e.same("roll", a["self"], shifts=tuple(a["shifts"]), dims=tuple(a["dims"]))


@aten("flip")
def flip(e: GraphBuilder, a: Args) -> Ref:
    return e.same("flip", a["self"], dims=tuple(a["dims"]))


@aten("tril", "triu")
def triangle(e: GraphBuilder, a: Args) -> Ref:
    return e.same(a["name"], a["self"], diagonal=a["diagonal"])


def _circular(e: GraphBuilder, x: Ref, sizes: tuple[int, ...]) -> Ref:
    """Each dim goes on with its other end."""
    for i in range(0, len(sizes), 2):
        before, after, dim = sizes[i], sizes[i + 1], x.ndim - 1 - i // 2
        size = x.shape[dim]
        if min(before, after) < 0:
            raise Unknown("circular padding that takes away")
        ends = [(size - before, before), (0, size), (0, after)]
        parts = [e.narrowed(x, dim, start, length) for start, length in ends if length]
        if len(parts) > 1:
            shape = (*x.shape[:dim], before + size + after, *x.shape[dim + 1 :])
            x = e.op("concat", parts, shape, axis=dim)
    return x


@aten("constant_pad_nd", "pad")
def pad(e: GraphBuilder, a: Args) -> Ref:
    """Padding with one value; `padding` counts from the last dim."""
    x, sizes = e.ref(a["self"]), tuple(a["pad"])
    mode = a.get("mode", "constant")
    if mode in ("reflect", "replicate") and len(sizes) in (2, 4):
        kind = f"{'reflection' if mode == 'reflect' else 'replication'}_pad{len(sizes) // 2}d"
        return e.op(kind, [x], a["out"][0], padding=sizes)
    if mode in ("reflect", "replicate"):
        name = "reflection_pad3d" if mode == "reflect" else "replication_pad3d"
        return batched(e, {"name": name, "self": x, "padding": sizes, "out": a["out"]})
    if mode == "circular":
        return _circular(e, x, sizes)
    if mode != "constant":
        raise Unknown(f"padding with mode={mode!r}")
    for i, n in enumerate(sizes):
        if n < 0:  # what it takes away
            dim = x.ndim - 1 - i // 2
            x = e.narrowed(x, dim, 0 if i % 2 else -n, x.shape[dim] + n)
    sizes = tuple(max(n, 0) for n in sizes)
    if not any(sizes):
        return x
    rest = (0,) * (x.ndim - len(sizes) // 2)
    before, after = ((*rest, *sizes[i::2][::-1]) for i in (0, 1))
    value = a["value"] or 0
    return e.op(
        "pad", [x], a["out"][0], padding=sizes, padding_before=before, padding_after=after,
        floating_constant_value=float(value), integral_constant_value=int(value),
    )  # fmt: skip
