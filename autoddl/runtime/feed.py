"""From a batch as the user gives it to each micro-batch's local inputs.

Micro-batch m of M is rows [m b / M, (m + 1) b / M) of the global batch of b rows. A rank reads its
part of each micro-batch, so its rows of the global batch are several ranges. The user may give all
rows, or only those that this rank reads.
"""

from __future__ import annotations

import zlib
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..graph.graph import Graph, Op, Tensor
from ..graph.placed import PlannedOp
from ..sbp.layout import TensorSpec, local_slices
from .backend import Backend, dtype_of
from .backend import Tensor as LocalTensor
from .comm.groups import Groups

# of a tensor that is summed up: a larger one is seen by every so many elements (1 GB/s: 1 ms)
_SUMMED_BYTES = 1 << 20


@dataclass(frozen=True)
class _Input:
    """An input operator: its tensor, its place among the arguments and this rank's part of it."""

    name: str
    index: int
    spec: TensorSpec
    batch_dim: int | None
    part: tuple[slice, ...]


class Feed:
    """The inputs of `graph`, a micro-batch's, which runs `micro_batches` times on a batch."""

    def __init__(
        self,
        graph: Graph,
        planned: Mapping[str, PlannedOp],
        micro_batches: int,
        groups: Groups,
        wanted: Container[str] | None = None,
    ) -> None:
        """`wanted`: names of the input operators that are fed; None: all."""
        self.micro_batches = micro_batches
        self.batch = graph.batch * micro_batches
        self._micro = graph.batch
        self._backend = groups.backend
        self._inputs = [
            _input(op, graph.tensors[op.outputs[0]], planned[op.name], groups)
            for op in graph.ops
            if op.kind == "input" and (wanted is None or op.name in wanted)
        ]
        rows = [
            np.arange(low, high)
            for x in self._inputs
            if x.batch_dim is not None
            for low, high in (self._range(x, m) for m in range(micro_batches))
        ]
        self._rows = np.unique(np.concatenate(rows)) if rows else np.arange(self.batch)

    @property
    def rows(self) -> slice | np.ndarray:
        """The rows of the global batch that this rank reads: a slice, or their numbers."""
        rows = self._rows
        if not self.batch:  # for one size alone, of which every rank is given all
            return slice(None)
        if len(rows) and rows[-1] - rows[0] == len(rows) - 1:
            return slice(int(rows[0]), int(rows[-1]) + 1)
        return rows

    @property
    def num_arguments(self) -> int:
        """How many arguments a call has at least."""
        return max((x.index + 1 for x in self._inputs), default=0)

    def take(
        self, arguments: Sequence[LocalTensor], rows: int | None = None
    ) -> list[dict[str, LocalTensor]]:
        """For each micro-batch, tensor name -> this rank's part.

        rows: fewer than the batch has, which the arguments have; padding is put behind them

        Raises ValueError if an argument is missing or has another dtype or shape.
        """
        if len(arguments) < self.num_arguments:
            raise ValueError(f"expected {self.num_arguments} tensors, got {len(arguments)}")
        parts: list[dict[str, LocalTensor]] = [{} for _ in range(self.micro_batches)]
        for x in self._inputs:
            self._check(x, arguments[x.index], rows)
        split = [x for x in self._inputs if x.batch_dim is not None]
        counts = {arguments[x.index].shape[x.batch_dim] for x in split}
        if len(counts) > 1:
            raise ValueError(
                f"tensors of {' and of '.join(map(str, sorted(counts)))} rows: give the global "
                f"batch of {self.batch}, or of each tensor this rank's {len(self._rows)}"
            )
        for x in self._inputs:
            value = self._backend.detached(arguments[x.index])
            if rows is not None and x.batch_dim is not None:
                again = self._backend.cat([value] * -(-self.batch // rows), x.batch_dim)
                value = self._backend.narrow(again, x.batch_dim, 0, self.batch)
            for m, part in enumerate(parts):  # of a batch elsewhere only this comes to the device
                part[x.name] = self._backend.cast(self._part(x, value, m), x.spec.dtype)
        return parts

    def _part(self, x: _Input, value: LocalTensor, m: int) -> LocalTensor:
        for dim, piece in enumerate(x.part):
            start, length = piece.start, piece.stop - piece.start
            if dim == x.batch_dim:
                start, _ = self._range(x, m)
                if value.shape[dim] != self.batch:  # this rank's rows only
                    start = int(np.searchsorted(self._rows, start))
            if length != value.shape[dim]:
                value = self._backend.narrow(value, dim, start, length)
        return self._backend.contiguous(value)

    def _range(self, x: _Input, m: int) -> tuple[int, int]:
        """Rows of the global batch that this rank reads of `x` in micro-batch `m`."""
        assert x.batch_dim is not None
        piece = x.part[x.batch_dim]
        return m * self._micro + piece.start, m * self._micro + piece.stop

    def _check(self, x: _Input, value: LocalTensor, rows: int | None) -> None:
        if not isinstance(value, self._backend.facts.tensor):
            raise ValueError(f"argument {x.index}: expected a tensor, got {type(value).__name__}")
        dtype = dtype_of(value)
        if dtype != x.spec.dtype:
            raise ValueError(
                f"argument {x.index}: expected dtype {x.spec.dtype} as in the example, got {dtype}"
            )
        shape = list(x.spec.shape)
        allowed = [shape]
        if x.batch_dim is not None:
            sizes = dict.fromkeys((self.batch, len(self._rows)) if rows is None else (rows,))
            allowed = [[*shape[: x.batch_dim], n, *shape[x.batch_dim + 1 :]] for n in sizes]
        if list(value.shape) not in allowed:
            choices = " (the global batch) or ".join(str(tuple(s)) for s in allowed)
            hint = " (this rank's rows)" if len(allowed) > 1 else ""
            if not self.batch:
                hint += " of the example, as the traced model is for one size of the batch"
                hint += " (of a DataLoader, drop_last=True drops a last short one)"
            raise ValueError(
                f"argument {x.index}: expected shape {choices}{hint}, got {tuple(value.shape)}"
            )


def checksums(
    arguments: Sequence[LocalTensor],
    graph: Graph,
    batch: int,
    rows: slice | np.ndarray,
    backend: Backend,
) -> dict[int, tuple[int, int]]:
    """Of each argument that the model reads: a number for the part that was given, and its sum.

    An evaluation may be given no target.

    Ranks that were given the same part have the same numbers if their values agree.

    graph: of the whole model, at any batch; rows: of a batch of `batch` that this rank reads
    """
    found, numbers = {}, np.arange(batch)[rows].tolist()
    for op in graph.ops:
        index = op.attrs["index"] if op.kind == "input" else len(arguments)
        if index < len(arguments):
            dims = graph.tensors[op.outputs[0]].batch_dims
            array = backend.to_numpy(backend.detached(arguments[index]))
            own = dims and array.shape[dims[0]] == len(numbers) != batch
            part = zlib.crc32(repr((array.shape, numbers if own else "whole")).encode())
            flat = array.reshape(-1)[:: 1 + array.nbytes // _SUMMED_BYTES]
            found[index] = part, zlib.crc32(np.ascontiguousarray(flat).tobytes())
    return found


def _input(op: Op, tensor: Tensor, planned: PlannedOp, groups: Groups) -> _Input:
    return _Input(
        tensor.name,
        op.attrs["index"],
        tensor.spec,
        tensor.batch_dims[0] if tensor.batch_dims else None,
        local_slices(tensor.spec.shape, planned.outs[0], groups.mesh, groups.rank),
    )
