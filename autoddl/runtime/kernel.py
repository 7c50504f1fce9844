"""What a kernel is: how an operator runs on one rank's shards.

A kernel is a function `(ctx, inputs, attrs) -> outputs` of local tensors; `attrs` are those of the
shard (`Rule.local_attrs`). The framework differentiates it, unless it returns `Explicit`: operators
that communicate inside do, so that their backward pass runs exactly the collectives that are
planned. Heavy operators with weights return `ByInput`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..graph.placed import PlannedOp
from ..sbp.layout import local_shape, local_slices
from ..sbp.mesh import Mesh
from ..sbp.placement import B, NdSbp
from ..sbp.signature import Attrs, OpSpec
from .backend import Tensor, Vjp
from .comm.groups import Group

# (tensors, training, random seed) -> results
OpaqueFn = Callable[[Sequence[Tensor], bool, int], Sequence[Tensor]]


@dataclass(frozen=True)
class Filled:
    """A batch of `rows` rows that is filled up with padding, behind them, to `total` rows."""

    rows: int
    total: int

    @property
    def share(self) -> float:
        """Of the rows that are none of padding."""
        return self.rows / self.total

    def rows_in(self, number: int, batch: int) -> int:
        """How many of them are in micro-batch `number`, which has `batch` rows."""
        return min(max(self.rows - number * batch, 0), batch)


@dataclass
class RunState:
    """What all operators of one run share.

    seed:        the plan's; with the step, the micro-batch, the operator and the shard it decides
                 what dropout drops
    filled:      None for a batch that needs no padding
    training:    False turns dropout off and makes BatchNorm use its moving statistics
    nonfinite:   in debug mode, of the step so far: "nan" or "inf" -> the first operator's output
                 that had one
    """

    seed: int
    training: bool = True
    step: int = 0
    micro_batch: int = 0
    filled: Filled | None = None
    nonfinite: dict[str, str] = field(default_factory=dict)


@dataclass
class Context:
    """What a kernel may know beyond its inputs: the whole operator and this rank's place in it.

    spec:    the operator with global shapes
    inner:   the ranks that run the operator's own collectives together; None if it needs none
    updates: input index -> its new value, for state that the operator changes (moving statistics)
    """

    name: str
    spec: OpSpec
    planned: PlannedOp
    mesh: Mesh
    rank: int
    state: RunState
    inner: Group | None = None
    opaque: OpaqueFn | None = None
    device: str = "cpu"
    updates: dict[int, Tensor] = field(default_factory=dict)

    def offset(self, index: int, dim: int) -> int:
        """Where this rank's shard of input `index` starts along `dim` of the whole."""
        shape = self.spec.inputs[index].shape
        return local_slices(shape, self.planned.ins[index], self.mesh, self.rank)[dim].start

    def output_offset(self, index: int, dim: int) -> int:
        """Where this rank's shard of output `index` starts along `dim` of the whole."""
        shape = self.spec.outputs[index].shape
        return local_slices(shape, self.planned.outs[index], self.mesh, self.rank)[dim].start

    def is_split(self, index: int, dim: int) -> bool:
        """True if `dim` of input `index` is split."""
        return dim in self.planned.ins[index].split_dims()

    def random_seed(self) -> int:
        """A seed that differs from shard to shard of the output and is equal on its replicas."""
        where = _split_coordinates(self.planned.outs, self.mesh, self.rank)
        state = self.state
        text = f"{state.seed}/{state.step}/{state.micro_batch}/{self.name}/{where}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


def _split_coordinates(outs: Sequence[NdSbp], mesh: Mesh, rank: int) -> tuple[int, ...]:
    """`rank`'s coordinates on the axes that split the first output."""
    labels = outs[0] if outs else (B,) * mesh.num_axes
    return tuple(c for c, p in zip(mesh.coords(rank), labels, strict=True) if p.is_split)


@dataclass
class Explicit:
    """Outputs and their vector-Jacobian product: output gradients -> input gradients."""

    outputs: Sequence[Tensor]
    vjp: Vjp


# (output gradients, the index of an input) -> that input's gradient
GradientOf = Callable[["Sequence[Tensor | None]", int], Tensor]


@dataclass
class ByInput:
    """Outputs and the gradient of each input by itself.

    For heavy operators: what a weight's gradient costs can then wait (`vjp.product`).
    """

    outputs: Sequence[Tensor]
    gradient: GradientOf


Kernel = Callable[[Context, Sequence[Tensor], Attrs], "Sequence[Tensor] | Explicit | ByInput"]
# (kind, output) -> kernel of that output alone; inputs that it does not depend on are None
OutputKernel = Callable[[Context, "Sequence[Tensor | None]", Attrs], Tensor]


def run_opaque(ctx: Context, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The kernel of an opaque operator: the results of the module's own forward pass."""
    assert ctx.opaque is not None, f"{ctx.name} comes without its module"
    found = list(ctx.opaque(inputs, ctx.state.training, ctx.random_seed()))
    for y, out, placed in zip(found, ctx.spec.outputs, ctx.planned.outs, strict=True):
        expected = local_shape(out.shape, placed, ctx.mesh, ctx.rank)
        if tuple(y.shape) != expected:
            raise ValueError(
                f"{ctx.name} has given a tensor of shape {tuple(y.shape)} for one of {expected}: "
                "an opaque module's results have as many rows as its arguments, and their other "
                "sizes do not depend on these"
            )
    return found
