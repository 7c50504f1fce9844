"""Matrix products, and the networks that take one a step: LSTM, GRU and plain ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..builder import GraphBuilder, Ref, Unknown, product
from .shape import diagonal, repeat_interleave
from .table import Args, aten


@aten("linalg_inv", "inverse")
def inverse(e: GraphBuilder, a: Args) -> Ref:
    return e.same("inv", a["A"] if "A" in a else a["self"])


@aten("linear")
def linear(e: GraphBuilder, a: Args) -> Ref:
    x, weight = e.ref(a["input"]), e.ref(a["weight"])
    rows = e.unmerged(x) if x.ndim > 1 else e.reshaped(x, (1, x.shape[0]))
    y = e.product(rows, weight, transpose_b=True)
    if a["bias"] is not None:
        y = e.op("broadcast_add", [y, a["bias"]], y.shape)
    return e.reshaped(y, a["out"][0])


@aten("matmul", "mm", "bmm")
def matmul(e: GraphBuilder, a: Args) -> Ref:
    x, y = e.ref(a["self"]), e.ref(a["mat2"] if "mat2" in a else a["other"])
    left = x if x.ndim > 1 else e.reshaped(x, (1, x.shape[0]))
    right = y if y.ndim > 1 else e.reshaped(y, (y.shape[0], 1))
    return e.reshaped(e.product(left, right), a["out"][0])


@aten("mv", "dot")
def vectors(e: GraphBuilder, a: Args) -> Ref:
    return matmul(e, {**a, "other": a["vec"] if "vec" in a else a["tensor"]})


_FACTORS = {"addmm": ("mat1", "mat2"), "baddbmm": ("batch1", "batch2"), "addmv": ("mat", "vec")}


@aten(*_FACTORS)
def addmm(e: GraphBuilder, a: Args) -> Ref:
    """beta self + alpha a b."""
    first, second = _FACTORS[a["name"]]
    y = matmul(e, {"self": a[first], "other": a[second], "out": a["out"]})
    y = y if a["alpha"] == 1 else e.same("scalar_mul", y, operand=a["alpha"])
    if a["beta"] == 0:
        return y
    x = a["self"] if a["beta"] == 1 else e.same("scalar_mul", a["self"], operand=a["beta"])
    return e.op("broadcast_add", [y, x], y.shape)


@aten("einsum")
def einsum(e: GraphBuilder, a: Args) -> Ref:
    """Two tensors at a time, from the left."""
    text, tensors = a["equation"].replace(" ", ""), [e.ref(x) for x in a["tensors"]]
    given, arrow, out = text.partition("->")
    terms = given.split(",")
    if not arrow:
        out = "".join(sorted(c for c in set(given) - {","} if given.count(c) == 1))
    if "." in text:
        raise Unknown(f"einsum of {text}")
    for i, term in enumerate(terms):
        tensors[i], terms[i] = _diagonals(e, tensors[i], term)
    x, names = tensors[0], terms[0]
    for i in range(1, len(terms)):
        wanted = set(out).union(*terms[i + 1 :])
        x, names = _contracted(e, x, names, tensors[i], terms[i], wanted)
    x, names = _without(e, x, names, set(out))
    return e.permuted(x, [names.index(c) for c in out])


def _diagonals(e: GraphBuilder, x: Ref, names: str) -> tuple[Ref, str]:
    """What a letter that stands twice in a term means."""
    for c in sorted(set(names)):
        while names.count(c) > 1:
            one, other = names.index(c), names.rindex(c)
            rest = [n for d, n in enumerate(x.shape) if d not in (one, other)]
            given = {"self": x, "offset": 0, "dim1": one, "dim2": other}
            x = diagonal(e, {**given, "out": ((*rest, x.shape[one]), x.dtype)})
            names = "".join(n for d, n in enumerate(names) if d not in (one, other)) + c
    return x, names


@aten("_trilinear")
def bilinear(e: GraphBuilder, a: Args) -> Ref:
    """As `torch.nn.Bilinear` calls it: rows of two tensors by a matrix for each feature."""
    dims = [tuple(a[name]) for name in ("expand1", "expand2", "expand3", "sumdim")]
    if dims != [(1, 3), (0,), (1, 2), (2, 3)]:
        raise Unknown(f"a product of three tensors stretched along {dims}")
    tensors = [a["i1"], a["i2"], a["i3"]]
    return einsum(e, {"equation": "bi,kij,bj->bk", "tensors": tensors})


def _without(e: GraphBuilder, x: Ref, names: str, wanted: set[str]) -> tuple[Ref, str]:
    """The sum over the dims that nobody wants."""
    gone = [d for d, c in enumerate(names) if c not in wanted]
    return (e.sum(x, gone) if gone else x), "".join(c for c in names if c in wanted)


def _contracted(
    e: GraphBuilder, x: Ref, ones: str, y: Ref, others: str, wanted: set[str]
) -> tuple[Ref, str]:
    """The product of two named tensors, summed over what both have and nobody wants."""
    x, ones = _without(e, x, ones, wanted | set(others))
    y, others = _without(e, y, others, wanted | set(ones))
    both = [c for c in ones if c in others and c in wanted]
    summed = [c for c in ones if c in others and c not in wanted]
    left = [c for c in ones if c not in others]
    right = [c for c in others if c not in ones]
    size = {**dict(zip(ones, x.shape, strict=True)), **dict(zip(others, y.shape, strict=True))}
    shape = [size[c] for c in (*both, *left, *right)]
    x = e.permuted(x, [ones.index(c) for c in (*both, *left, *summed)])
    y = e.permuted(y, [others.index(c) for c in (*both, *summed, *right)])
    front, (m, k, n) = (
        [size[c] for c in both],
        ([size[c] for c in s] for s in (left, summed, right)),
    )
    if summed:
        rows = e.reshaped(x, [*front, product(m), product(k)])
        found = e.product(rows, e.reshaped(y, [*front, product(k), product(n)]))
    else:
        x = e.reshaped(x, [*front, *m, *(1 for _ in n)])
        y = e.reshaped(y, [*front, *(1 for _ in m), *n])
        found = e.op("broadcast_mul", [x, y], shape)
    return e.reshaped(found, shape), "".join((*both, *left, *right))


@aten("_grouped_mm", "transformers::grouped_mm_fallback")
def grouped(e: GraphBuilder, a: Args) -> Ref:
    """Rows by the matrix of the expert that they are for."""
    x, weight = (
        e.ref(a[n] if n in a else a[m]) for n, m in (("self", "input"), ("mat2", "weight"))
    )
    if x.ndim != 2 or weight.ndim != 3 or a["offs"] is None or a.get("bias") is not None:
        raise Unknown("a grouped product of other tensors than rows and a matrix for each expert")
    return e.op("grouped_matmul", [x, weight, a["offs"]], *a["out"])


def dropping(e: GraphBuilder, a: Args, given: Sequence[Ref], mask: Any, far: Any) -> Ref:
    """Attention that drops some of its weights, step by step; far: what is not seen."""
    q, k, v = given
    times = q.shape[1] // k.shape[1]
    if times > 1:
        out = (*k.shape[:1], q.shape[1], *k.shape[2:]), (*v.shape[:1], q.shape[1], *v.shape[2:])
        many = {"dim": 1, "repeats": times}
        k, v = (
            repeat_interleave(e, {**many, "self": x, "out": (y,)})
            for x, y in zip((k, v), out, strict=True)
        )
    scale = a["scale"] if a["scale"] is not None else q.shape[-1] ** -0.5
    scores = e.product(e.same("scalar_mul", q, operand=float(scale)), k, transpose_b=True)
    hidden = float("-inf")
    if far is not None:
        scores = e.op("masked_fill", [scores, far], scores.shape, operand=hidden)
    if mask is not None and e.ref(mask).dtype == "bool":
        far = e.op("logical_not", [mask], e.ref(mask).shape)
        scores = e.op("masked_fill", [scores, far], scores.shape, operand=hidden)
    elif mask is not None:
        scores = e.op("broadcast_add", [scores, mask], scores.shape)
    weights = e.same("softmax", scores)
    if a["dropout_p"]:
        weights = e.same("dropout", weights, rate=float(a["dropout_p"]))
    return e.product(weights, v)


def _plus(e: GraphBuilder, x: Ref, y: Ref) -> Ref:
    return e.op("add_n", [x, y], x.shape)


def _times(e: GraphBuilder, x: Ref, y: Ref) -> Ref:
    return e.op("broadcast_mul", [x, y], x.shape)


def _linear(e: GraphBuilder, x: Ref, weight: Ref, bias: Ref | None) -> Ref:
    y = e.product(x, weight, transpose_b=True)
    return y if bias is None else e.op("broadcast_add", [y, bias], y.shape)


def _gates(e: GraphBuilder, x: Ref, count: int) -> list[Ref]:
    size = x.shape[-1] // count
    return [e.narrowed(x, -1, n * size, size) for n in range(count)]


def _lstm_cell(e: GraphBuilder, x: Ref, state: Sequence[Ref], hidden: Sequence[Any]) -> list[Ref]:
    """h' = o tanh(c'), c' = f c + i g; hidden: the weights of h, and of h' if it is projected."""
    h, c = state
    i, f, g, o = _gates(e, _plus(e, _linear(e, h, *hidden[:2]), x), 4)
    i, f, g, o = (e.same("tanh" if y is g else "sigmoid", y) for y in (i, f, g, o))
    c = _plus(e, _times(e, f, c), _times(e, i, g))
    h = _times(e, o, e.same("tanh", c))
    return [e.product(h, hidden[2], transpose_b=True) if len(hidden) > 2 else h, c]


def _gru_cell(e: GraphBuilder, x: Ref, state: Sequence[Ref], hidden: Sequence[Any]) -> list[Ref]:
    """h' = (h - n) z + n, n = tanh(x + r h)."""
    (h,) = state
    (*gates, own), (*others, new) = (_gates(e, y, 3) for y in (_linear(e, h, *hidden), x))
    r, z = (e.same("sigmoid", _plus(e, y, g)) for y, g in zip(gates, others, strict=True))
    n = e.same("tanh", _plus(e, new, _times(e, own, r)))
    return [_plus(e, _times(e, e.op("broadcast_sub", [h, n], h.shape), z), n)]


def _plain_cell(kind: str) -> Cell:
    def cell(e: GraphBuilder, x: Ref, state: Sequence[Ref], hidden: Sequence[Any]) -> list[Ref]:
        return [e.same(kind, _plus(e, _linear(e, state[0], *hidden), x))]

    return cell


# what a step makes of its input times the weights, the state and the other weights
Cell = Callable[[GraphBuilder, Ref, Sequence[Ref], Sequence[Any]], list[Ref]]
_CELLS: dict[str, Cell] = {
    "lstm.input": _lstm_cell,
    "gru.input": _gru_cell,
    "rnn_tanh.input": _plain_cell("tanh"),
    "rnn_relu.input": _plain_cell("relu"),
}


@aten("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
def one_step(e: GraphBuilder, a: Args) -> Any:
    """Of a network whose steps the model takes itself."""
    is_lstm = a["name"] == "lstm_cell"
    cell = _CELLS[f"{a['name'].removesuffix('_cell')}.input"]
    x = _linear(e, e.ref(a["input"]), e.ref(a["w_ih"]), a["b_ih"])
    made = cell(e, x, list(map(e.ref, a["hx"] if is_lstm else [a["hx"]])), [a["w_hh"], a["b_hh"]])
    return made if is_lstm else made[0]


class _Made(Sequence[Ref]):
    """Results of which each is made when it is read: most models read the first one alone."""

    def __init__(self, *makers: Callable[[], Ref]) -> None:
        self.makers = makers

    def __len__(self) -> int:
        return len(self.makers)

    def __getitem__(self, index: Any) -> Any:
        return self.makers[index]()


@aten(*_CELLS)
def recurrent(e: GraphBuilder, a: Args) -> _Made:
    """Step by step. torch takes 6 times as long to record its own steps, 128 of an LSTM."""
    x, cell = e.ref(a["input"]), _CELLS[a["name"]]
    states = a["hx"] if isinstance(a["hx"], list) else [a["hx"]]
    layers, ways = a["num_layers"], 1 + a["bidirectional"]
    weights = list(map(e.ref, a["params"]))
    each = len(weights) // (layers * ways)
    x = e.swapped(x, 0, 1) if a["batch_first"] else x
    last: list[list[Ref]] = []
    for layer in range(layers):
        found = []
        for way in range(ways):
            at = layer * ways + way
            own = weights[at * each : (at + 1) * each]
            first = [_of_layer(e, state, at) for state in states]
            steps, ends = _one_way(e, cell, x, first, own, a["has_biases"], way == 1)
            found.append(steps)
            last.append(ends)
        shape = (*found[0].shape[:-1], sum(y.shape[-1] for y in found))
        x = found[0] if ways == 1 else e.op("concat", found, shape, axis=2)
        if a["train"] and a["dropout"] and layer < layers - 1:
            x = e.same("dropout", x, rate=float(a["dropout"]))

    def state_of(number: int) -> Ref:
        ends = [each[number] for each in last]
        return e.op("stack", ends, (len(ends), *ends[0].shape), axis=0)

    made = (lambda number=number: state_of(number) for number in range(len(states)))
    return _Made(lambda: e.swapped(x, 0, 1) if a["batch_first"] else x, *made)


def _of_layer(e: GraphBuilder, state: Any, at: int) -> Ref:
    whole = e.ref(state)
    return e.reshaped(e.narrowed(whole, 0, at, 1), whole.shape[1:])


def _one_way(
    e: GraphBuilder,
    cell: Cell,
    x: Ref,
    state: list[Ref],
    weights: Sequence[Ref],
    has_biases: bool,
    is_reversed: bool,
) -> tuple[Ref, list[Ref]]:
    """All steps of a layer in one direction, and the last state."""
    of_x, of_h, *rest = weights
    biases, rest = (rest[:2], rest[2:]) if has_biases else ([None, None], rest)
    rows = _linear(e, x, of_x, biases[0])
    steps: list[Ref] = []
    order = range(x.shape[0])
    for t in reversed(order) if is_reversed else order:
        own = e.reshaped(e.narrowed(rows, 0, t, 1), rows.shape[1:])
        state = cell(e, own, state, [of_h, biases[1], *rest])
        steps.append(state[0])
    steps = steps[::-1] if is_reversed else steps
    return e.op("stack", steps, (len(steps), *steps[0].shape), axis=0), state
