"""What moves elements and computes nothing."""

import autograd.numpy as np

from .case import Case, case, f, index, out
from .reference import op, table


def reshape_case(name: str, source: tuple[int, ...], target: tuple[int, ...]) -> Case:
    return case(name, "reshape", (f(*source),), out(*target), shape=target)


TRIL = {"floating_fill_value": 0.0, "integer_fill_value": 0, "is_floating_fill_value": False}

CASES = (
    reshape_case("heads", (2, 4, 24), (2, 4, 6, 4)),
    reshape_case("merge_heads", (2, 4, 6, 4), (2, 4, 24)),
    reshape_case("flatten", (4, 6, 2, 3), (4, 36)),
    reshape_case("rows", (4, 6, 8), (24, 8)),
    reshape_case("regroup", (6, 4), (4, 6)),
    reshape_case("regroup_more", (2, 12, 4), (8, 3, 4)),
    reshape_case("ones", (4, 1, 6), (1, 4, 6, 1)),
    reshape_case("window", (2, 12, 12, 4), (2, 4, 3, 4, 3, 4)),
    case("ints", "reshape", (index(9, 4, 6),), out(24, dtype="int64"), shape=(24,)),
    case("", "squeeze", (f(4, 1, 6, 1),), out(4, 6), axes=(1, 3)),
    case("", "expand_dims", (f(4, 6),), out(4, 1, 6), axis=1),
    case("", "transpose", (f(4, 6, 2, 8),), out(2, 4, 8, 6), perm=(2, 0, 3, 1)),
    case("stretch", "expand", (f(1, 6, 1),), out(4, 6, 8), expand_shape=(4, 6, 8)),
    case("prepend", "expand", (f(6, 8),), out(4, 6, 8), expand_shape=(4, 6, 8)),
    case("", "narrow", (f(4, 6, 12),), out(4, 6, 4), dim=2, start=4, length=4),
    case("whole", "narrow", (f(4, 6),), out(4, 6), dim=1, start=0, length=6),
    case("", "slice", (f(4, 6, 8),), out(4, 2, 8), start=(0, 1, 0), stop=(4, 3, 8),
         step=(1, 1, 1)),
    case("strided", "slice", (f(4, 6, 8),), out(4, 3, 4), start=(0, 0, 1), stop=(4, 6, 8),
         step=(1, 2, 2)),
    case("one", "slice", (f(3, 4, 6),), out(1, 4, 6), start=(1, 0, 0), stop=(2, 4, 6),
         step=(1, 1, 1)),
    case("", "slice_update", (f(4, 6, 8), f(4, 2, 8)), out(4, 6, 8), start=(0, 1, 0),
         stop=(4, 3, 8), step=(1, 1, 1)),
    case("strided", "slice_update", (f(4, 6, 8), f(4, 3, 4)), out(4, 6, 8), start=(0, 0, 1),
         stop=(4, 6, 8), step=(1, 2, 2)),
    case("", "unfold_tensor", (f(4, 8, 6),), out(4, 3, 6, 4), dimension=1, size=4, step=2),
    case("", "concat", (f(4, 6), f(4, 2), f(4, 12)), out(4, 20), axis=1),
    case("tokens", "concat", (f(4, 1, 8), f(4, 6, 8)), out(4, 7, 8), axis=1),
    case("", "stack", (f(4, 6), f(4, 6)), out(4, 2, 6), axis=1),
    case("", "roll", (f(4, 6, 8, 2),), out(4, 6, 8, 2), dims=(1, 2), shifts=(-1, 3)),
    case("", "flip", (f(4, 6, 8),), out(4, 6, 8), dims=(1,)),
    case("", "tril", (f(4, 6, 6),), out(4, 6, 6), diagonal=0, **TRIL),
    case("", "triu", (f(4, 6, 6),), out(4, 6, 6), diagonal=1),
)  # fmt: skip


table({
    "reshape": lambda x, a: x.reshape(a["shape"]),
    "squeeze": lambda x, a: np.squeeze(x, axis=a["axes"]),
    "expand_dims": lambda x, a: np.expand_dims(x, a["axis"]),
    "transpose": lambda x, a: np.transpose(x, a["perm"]),
    "expand": lambda x, a: x * np.ones(a["expand_shape"]),
    "flip": lambda x, a: x[(slice(None),) * a["dims"][0] + (slice(None, None, -1),)],
    "stack": lambda *given: np.stack(given[:-1], axis=given[-1]["axis"]),
    "tril": lambda x, a: x * np.tril(np.ones(x.shape), a["diagonal"]),
    "triu": lambda x, a: x * np.triu(np.ones(x.shape), a["diagonal"]),
})  # fmt: skip


@op("concat")
def _concat(inputs, attrs, shard):
    return (np.concatenate(inputs, axis=attrs["axis"]),)


@op("narrow")
def _narrow(inputs, attrs, shard):
    cut = slice(attrs["start"], attrs["start"] + attrs["length"])
    return (inputs[0][(slice(None),) * attrs["dim"] + (cut,)],)


@op("slice")
def _slice(inputs, attrs, shard):
    cuts = zip(attrs["start"], attrs["stop"], attrs["step"], strict=True)
    return (inputs[0][tuple(slice(*cut) for cut in cuts)],)


@op("slice_update")
def _slice_update(inputs, attrs, shard):
    ref, value = inputs
    cuts = zip(attrs["start"], attrs["stop"], attrs["step"], strict=True)
    numbers = np.arange(ref.size).reshape(ref.shape)
    numbers[tuple(slice(*cut) for cut in cuts)] = ref.size + np.arange(value.size).reshape(
        value.shape
    )
    return (np.concatenate([ref.ravel(), value.ravel()])[numbers],)


@op("unfold_tensor")
def _unfold_tensor(inputs, attrs, shard):
    (x,), dim, size = inputs, attrs["dimension"], attrs["size"]
    starts = range(0, x.shape[dim] - size + 1, attrs["step"])
    places = np.array([range(start, start + size) for start in starts])
    return (np.moveaxis(x[(slice(None),) * dim + (places,)], dim + 1, -1),)


@op("roll")
def _roll(inputs, attrs, shard):
    (x,) = inputs
    for shift, dim in zip(attrs["shifts"], attrs["dims"], strict=True):
        x = np.roll(x, shift, axis=dim)
    return (x,)
