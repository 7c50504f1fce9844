"""Constants whose sizes follow the batch, such as a mask of all rows.

Each is computed at two batches; a graph has it if it is the same in each row, if it counts them, or
if it is so but for a factor that grows with the batch, or falls (`ones(rows).sum()`). What two
batches tell may not be so at the example's (of `rows // 4` both have zeros alone): it is computed
there, too, if it is small.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ...graph.builder import Factor, Follows, Size
from ..backend import Tensor

_BATCHES = 2, 3
_MOST = 1 << 20  # elements of a constant that is computed at the example's batch, too
_DIFFERS = "a constant that differs from row to row of the batch"


@dataclass(frozen=True)
class Varying:
    """A constant by its values at batches of 2 and of 3.

    whole: at the example's batch, if that is known
    """

    values: tuple[Tensor, Tensor]
    whole: Tensor | None = None

    def is_complex(self) -> bool:
        return self.values[0].is_complex()

    def _part(self, name: str) -> Varying:
        two, three, whole = (
            v if v is None else getattr(v, name) for v in (*self.values, self.whole)
        )
        return Varying((two, three), whole)

    real = property(lambda self: self._part("real"))
    imag = property(lambda self: self._part("imag"))

    def check(self, batch: int) -> None:
        """`Follows` if what the values at two batches tell of this one is not `whole`."""
        if self.whole is None:
            return
        try:
            part, wide, shape = self.stretched(batch)
        except Follows:
            end = self.step(batch)
            counted = end is None or _numbers(self.whole) == list(range(0, end, self.steps))
        else:
            counted = _alike(part.expand(wide).reshape(shape), self.whole)
        if not counted:
            raise Follows(_DIFFERS)

    def stretched(self, batch: int) -> tuple[Tensor, list[int], list[int]]:
        """(a part, what it is to be stretched to, and then reshaped to) for this batch.

        `Follows` if it is not the same in each row of the batch.
        """
        base, wide, shape, rows = [], [], [], []
        for n, m in zip(*(v.shape for v in self.values), strict=True):
            each = m - n
            if each and n != 2 * each:
                raise Follows("a size that is no multiple of the batch's")
            if each:
                rows.append(len(base))
            base += [2, each] if each else [n]
            wide += [Size(batch, 1), each] if each else [n]
            shape.append(Size(each * batch, 1) if each else n)
        part = self.values[0].reshape(base)
        for d in rows:
            part = part.narrow(d, 0, 1)
        for b, value in zip(_BATCHES, self.values, strict=True):
            at = [b if d in rows else n for d, n in enumerate(part.shape)]
            if not _equal(part.expand(at).reshape(value.shape), value):
                raise Follows(_DIFFERS)
        return part, wide, shape

    def grown(self, batch: int) -> tuple[Varying, Size | Factor]:
        """(what is the same in each row of the batch, the size that it is multiplied by).

        `Follows` if there is none: at two and three rows and the example's it is to be the same
        times the batch's size, as `ones_like(x).sum()` is, or divided by it.
        """
        sizes = *_BATCHES, batch
        if self.whole is not None and not self.is_complex():
            for power in (1, -1) if self.values[0].is_floating_point() else (1,):
                given = (*self.values, self.whole)
                parts = [_over(v, n, power) for v, n in zip(given, sizes, strict=True)]
                found = Varying((parts[0], parts[1]), parts[2])
                with contextlib.suppress(Follows):
                    found.stretched(batch)
                    found.check(batch)
                    return found, Size(batch, 1) if power > 0 else Factor(1.0 / batch, -1)
        raise Follows(_DIFFERS)

    def shape(self, batch: int) -> list[int]:
        """At this batch."""
        pairs = zip(*(v.shape for v in self.values), strict=True)
        return [n if n == m else Size((m - n) * batch, 1) for n, m in pairs]

    @property
    def steps(self) -> int:
        """The second number."""
        return int(self.values[1].flatten()[1])

    def step(self, batch: int) -> Size | None:
        """Of one dim 0, step, 2 step, ...: where that ends at this batch; else None."""
        if max(sum(n != 1 for n in v.shape) for v in self.values) != 1:
            return None
        two, three = map(_numbers, self.values)
        each = len(three) - len(two)
        if len(two) != 2 * each or type(three[0]) is not int or three[1] <= 0:
            return None
        wanted = list(range(0, len(three) * three[1], three[1]))
        alike = three == wanted and two == wanted[: len(two)]
        return Size(three[1] * each * batch, 1) if alike else None


def power_of(at: Callable[[int], float], batch: int) -> int | None:
    """The power of the batch with which a number grows; None if with none of 0, 1 and -1.

    at: the number at a size of the batch
    """
    now, others = at(batch), {n: at(n) for n in (2 * batch, batch + 1)}

    def fits(power: int) -> bool:
        return all(math.isclose(x, now * (n / batch) ** power) for n, x in others.items())

    return next(filter(fits, (0, 1, -1)), None)


def at_batches(run: Callable[..., Any], values: Sequence[Any], batch: int) -> Any:
    """What `run` gives: once, or at each batch if a value follows the batch."""
    if not _varies(values):
        return run(*values)
    found = [run(*_at(values, i, batch)) for i in range(2)]
    if _elements(found[0], found[1], batch) <= _MOST and _has_whole(values):
        found.append(run(*_at(values, 2, batch)))
    return _together(found, batch)


def _varies(values: Iterable[Any]) -> bool:
    return any(
        _varies(v)
        if isinstance(v, (list, tuple))
        else isinstance(v, Varying) or getattr(v, "exponent", 0) != 0
        for v in values
    )


def _has_whole(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_has_whole, value))
    return not isinstance(value, Varying) or value.whole is not None


def _elements(first: Any, second: Any, batch: int) -> int:
    """At this batch, of what has come out at the two."""
    if isinstance(first, (list, tuple)):
        return sum(_elements(a, b, batch) for a, b in zip(first, second, strict=True))
    pairs = zip(getattr(first, "shape", ()), getattr(second, "shape", ()), strict=True)
    return math.prod(n + (m - n) * (batch - _BATCHES[0]) for n, m in pairs)


def _at(value: Any, index: int, batch: int) -> Any:
    """A value at one of the two batches, or at the example's."""
    if isinstance(value, (list, tuple)):
        return [_at(v, index, batch) for v in value]
    if isinstance(value, Varying):
        return (*value.values, value.whole)[index]
    power = getattr(value, "exponent", 0)
    found = value * ((*_BATCHES, batch)[index] / batch) ** power if power else value
    return round(found) if power and isinstance(value, int) else found


def _together(values: Sequence[Any], batch: int) -> Any:
    """What has come out at two batches, and perhaps at the example's."""
    first, second = values[:2]
    if isinstance(first, (list, tuple)):
        return [_together(each, batch) for each in zip(*values, strict=True)]
    if not hasattr(first, "shape"):
        if any(value != first for value in values):
            raise Follows("a number that follows the batch")
        return first
    if not _equal(first, second):
        found = Varying((first, second), *values[2:])
        found.check(batch)
        return found
    if not all(_alike(first, value) for value in values[2:]):
        raise Follows("a constant that follows the batch")
    return first


def _over(x: Tensor, size: int, power: int) -> Tensor:
    """`x` divided by this power of the batch's size; of whole numbers, those that it divides."""
    if x.is_floating_point():
        return x / float(size) ** power
    if bool((x % size).any()):
        raise Follows(_DIFFERS)
    return x // size


def _numbers(x: Tensor) -> list[Any]:
    return x.flatten().tolist()


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool((once(a, b) == once(b, a)).all())


def once(x: Tensor, beside: Tensor) -> Tensor:
    """`x` without what stands again in it and in the other one of its shape, as in a stretched one.

    What a model sets aside for all rows and heads is one number, and may have more elements than
    memory has bytes.
    """
    pairs = enumerate(zip(x.stride(), beside.stride(), x.shape, strict=True))
    for dim in [d for d, (own, other, n) in pairs if own == other == 0 and n > 1]:
        x = x.narrow(dim, 0, 1)
    return x


def _alike(told: Tensor, whole: Tensor) -> bool:
    """Up to rounding."""
    return told.shape == whole.shape and told.to(whole.dtype).allclose(whole, equal_nan=True)
