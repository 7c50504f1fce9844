"""A batch of n rows that is filled up with padding to the b rows of a plan: a last, short one.

It is run as a batch of b rows of which the padding adds nothing to sums over rows. Where factors
depend on the number of rows, as in a mean, these are then for b rows: what has the power k
(`rows.py`) is (n / b)^k times what it should be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..sbp.placement import B
from .batch_norm import is_training_norm
from .graph import Graph
from .rows import Key, State, walked

# What stands in the place of padding where an operator adds up rows: for each of its inputs that
# has rows. Of a product, which is linear in each input, one is enough.
_NEUTRAL: Mapping[str, tuple[float, ...]] = {
    "reduce_sum": (0.0,),
    "reduce_nansum": (0.0,),
    "reduce_mean": (0.0,),
    "matmul": (0.0,),
    "broadcast_matmul": (0.0,),
    "batch_matmul": (0.0,),
    "matrix_vector_product": (0.0,),
    "binary_cross_entropy_with_logits_reduce_mean": (1e4, 1.0),  # sure, and right
}


@dataclass(frozen=True)
class Summed:
    """Rows that an operator adds up: where they are in its input, and what padding is there."""

    state: State
    neutral: float


@dataclass(frozen=True)
class Padding:
    """How a graph is run on n of the b rows of a batch; the others are padding, of any values.

    power:  of the loss, which comes out (n / b)^power times too large
    sizes:  (operator, input index) -> exponent e: the input is multiplied by (n / b)^e
    summed: (operator, input index) -> its rows; those of padding get a value that adds nothing
    known:  as of `Rows`
    """

    power: int
    sizes: Mapping[Key, int]
    summed: Mapping[Key, Summed]
    known: Mapping[str, int]


def find_padding(graph: Graph, evaluates: bool = False) -> Padding:
    """How `graph` is run on a batch with padding. ValueError if rows interact.

    evaluates: as in evaluation, where BatchNorm takes its moving statistics
    """
    short = "with fewer rows than the plan's; drop a last short batch, as with drop_last=True"
    if graph.batch == 0:
        raise ValueError(f"the graph has no batch dim: it cannot be run {short}")
    graph = graph.in_mode(not evaluates)
    walk = walked(graph, evaluates)
    norms = (op for op in graph.ops if is_training_norm(op, evaluates))
    meeting = next(norms, None) or walk.met.get(graph.loss)
    if meeting is not None:
        raise ValueError(
            f"rows of the batch meet in {meeting.name} ({meeting.kind}): the model cannot be run "
            f"{short} of the DataLoader"
        )
    summed: dict[Key, Summed] = {}
    for op in graph.ops:
        read = {(op.name, i): walk.summed.get((op.name, i)) for i in range(len(op.inputs))}
        rows = {key: state for key, state in read.items() if state is not None}
        if rows and op.kind not in _NEUTRAL:
            raise ValueError(f"{op.name} ({op.kind}) adds up rows, and cannot be run {short}")
        for (key, state), neutral in zip(rows.items(), _NEUTRAL.get(op.kind, ()), strict=False):
            summed[key] = Summed(state, neutral)
    loss = walk.states.get(graph.loss, State(B))
    return Padding(loss.power, walk.sizes, summed, walk.sums)
