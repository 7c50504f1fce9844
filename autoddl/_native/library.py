"""The compiled loops as functions of arrays.

Each method says what it computes; where the same is done on arrays is said there as well. While one
runs, other threads do, too. The library is found by its name and not imported, as it knows nothing
of Python, and so serves every version of it.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .fingerprint import fingerprint

SOURCE = Path(__file__).with_name("loops.c")
_PATTERN = "_loops*.so"
Ints = NDArray[np.signedinteger[Any]]
Reals = NDArray[np.floating[Any]]
Doubles = NDArray[np.float64]
Singles = NDArray[np.float32]


@lru_cache(maxsize=1)
def loops() -> Loops | None:
    """The compiled loops, or None where they were not compiled or cannot run."""
    for path in sorted(SOURCE.parent.glob(_PATTERN)):
        found = load(path)
        if found is not None:
            return found
    return None


def load(path: Path) -> Loops | None:
    """A compiled library; None if it is of another kind of machine.

    Raises ImportError if it was made from another source than the one beside it.
    """
    try:
        library = ctypes.CDLL(str(path))
    except OSError:
        return None
    library.autoddl_loops_source.restype = ctypes.c_char_p
    if library.autoddl_loops_source().decode() != fingerprint(SOURCE.read_bytes()):
        raise ImportError(
            f"{path} was compiled from another version of {SOURCE.name}; install autoddl again "
            "(in a checkout: pip install --no-build-isolation -e .)"
        )
    return Loops(library)


class Wires(NamedTuple):
    """Variables, and the edges over which they pass messages (`search.messages`).

    nodes:    scores of the strategies of one variable after the other
    begins:   [variables + 1] where those of each begin
    part:     [variables] of what a variable is given that it passes on over an edge
    later:    [variables + 1] where the edges to later ones begin, as they are in order
    earlier:  [variables + 1] where those to earlier ones begin in `back`, which has their numbers
    ends:     [edges, 2] variables
    given:    [edges, 2] where what the edge gives to each end begins in `messages`
    tables:   [edges, 2] addresses of its table, and of that turned, in single precision
    """

    nodes: Doubles
    begins: NDArray[np.int64]
    part: Doubles
    later: NDArray[np.int64]
    earlier: NDArray[np.int64]
    back: NDArray[np.int64]
    ends: NDArray[np.int64]
    given: NDArray[np.int64]
    tables: NDArray[np.int64]
    messages: Doubles


@dataclass(frozen=True)
class Loops:
    library: ctypes.CDLL

    def __post_init__(self) -> None:
        size, address = ctypes.c_int64, ctypes.c_void_p
        for name, takes in {
            "autoddl_shortest": [size] * 2 + [address] * 5,
            "autoddl_min_plus": [size] * 3
            + [address, ctypes.c_int, size, size, address]
            + [address, ctypes.c_int, size, size, address],
            "autoddl_sum_fronts": [size] + [address] * 10 + [size] + [address] * 4,
            "autoddl_sweep": [size] + [address] * 11,
        }.items():
            function = getattr(self.library, name)
            function.argtypes, function.restype = takes, ctypes.c_int
        self.library.autoddl_free.argtypes = [address] * 2

    def shortest(
        self, order: Ints, begins: Ints, targets: Ints, weights: Reals, length: Doubles
    ) -> None:
        """Shorten `length` [nodes, starts], of paths so far, by edges (`sbp.states`).

        order:  [nodes] that they are looked at in, and then back, and so on
        begins: [nodes + 1] where the edges of each node begin among `targets` and `weights`
        """
        order, weights = _own(order, np.int32), _own(weights, np.float64)
        begins, targets = _own(begins, np.int32), _own(targets, np.int32)
        assert length.flags.c_contiguous and length.dtype == np.float64
        assert len(begins) == len(length) + 1 and len(targets) == len(weights) == begins[-1]
        assert len(order) == len(length)
        edges = _at(order), _at(begins), _at(targets), _at(weights)
        _check(self.library.autoddl_shortest(*length.shape, *edges, _at(length)))

    def min_plus(self, left: Ints | Reals, node: Reals, right: Ints | Reals) -> Singles:
        """min over s of left[i, s] + node[s] + right[s, j] (`search.elimination.min_plus`)."""
        left, right = _real(left), _real(right)
        node = _own(node, np.float64)
        (rows, inner), columns = left.shape, right.shape[1]
        assert node.shape == (inner,) and right.shape[0] == inner
        result = np.empty((rows, columns), dtype=np.float32)
        failed = self.library.autoddl_min_plus(
            rows, inner, columns, _at(left), left.itemsize == 8, *left.strides, _at(node),
            _at(right), right.itemsize == 8, *right.strides, _at(result),
        )  # fmt: skip
        _check(failed)
        return result

    def sweep(self, wires: Wires) -> float:
        """Pass messages on, there and back, in place; the bound (`search.messages`)."""
        for array in wires:
            assert array.flags.c_contiguous and array.dtype in (np.int64, np.float64)
        assert len(wires.begins) == len(wires.part) + 1 == len(wires.later) == len(wires.earlier)
        bound = ctypes.c_double()
        nodes, begins, *others = map(_at, wires)
        failed = self.library.autoddl_sweep(
            len(wires.part), begins, nodes, *others, ctypes.addressof(bound)
        )
        _check(failed)
        return bound.value

    def sum_fronts(
        self,
        matches: tuple[Ints, Ints, Ints, Doubles],
        first: tuple[Ints, Doubles, Doubles],
        second: tuple[Ints, Doubles, Doubles],
        most: int,
    ) -> tuple[int, Ints, Doubles]:
        """Number of pairs looked at, entries and pairs of the sums' fronts (`search.pareto`).

        matches:       entries of first, second and result, which ascend, and the most that a sum
                       may score
        first, second: where the pairs of each entry start, pairs [n, 2], and their scores
        most:          if more pairs are looked at, there is no result
        """
        *entries, room = matches
        arrays = [_own(array, np.int64) for array in entries] + [_own(room, np.float64)]
        for start, *pairs in (first, second):
            arrays += [_own(start, np.int64), *(_own(array, np.float64) for array in pairs)]
        looked, size = ctypes.c_int64(), ctypes.c_int64()
        made, pairs = ctypes.c_void_p(), ctypes.c_void_p()
        results = [ctypes.addressof(result) for result in (looked, size, made, pairs)]
        failed = self.library.autoddl_sum_fronts(
            len(room), *(_at(array) for array in arrays), min(most, 2**62), *results
        )
        try:
            _check(failed)
            entry = _copied(made, size.value, np.int64)
            both = _copied(pairs, 2 * size.value, np.float64).reshape(-1, 2)
        finally:
            self.library.autoddl_free(made, pairs)
        return looked.value, entry, both


def _at(array: NDArray[Any]) -> int:
    """Where it lies in memory; NumPy's own way takes four times as long."""
    flags = array.flags
    if array.size and flags.writeable and flags.forc:
        rows: Any = array if flags.c_contiguous else array.T
        return ctypes.addressof(ctypes.c_char.from_buffer(rows))
    return array.ctypes.data


def _own(array: NDArray[Any], dtype: Any) -> Any:  # of that type
    return np.ascontiguousarray(array, dtype=dtype)


def _real(array: Ints | Reals) -> Any:  # of floats
    """Of single or double precision, in any order."""
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)


def _copied(address: ctypes.c_void_p, size: int, dtype: Any) -> Any:  # of that type
    if not size:
        return np.empty(0, dtype)
    assert address.value is not None
    return np.frombuffer(ctypes.string_at(address.value, size * np.dtype(dtype).itemsize), dtype)


def _check(failed: int) -> None:
    if failed:
        raise MemoryError("no memory was left for planning's loops")
