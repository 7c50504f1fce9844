"""What a step keeps of its forward passes: micro-batches in flight, and blocks that are run again.

With h micro-batches in flight (a pipeline's stage; on one mesh h is 1) what a forward pass keeps is
there h times. Of a block whose forward pass is run again before its backward pass,

    forward   twice for an operator of a block: its computation, the redistributions of its inputs
              (but for parameters, which travel once a step) and its own collectives
    memory    what leaves a block is kept like any activation; what stays inside, a_b for block b,
              is there for one block at a time:  max_b a_b  instead of  sum_b a_b
              They count as the last product of the block begins its backward pass (`gradients`).
              What comes after the last block, the tail, is gone before the first one is run again,
              and with h = 1 counts like the inside of one more block.

A search that adds up memory cannot take a maximum, but for any weights w_b >= 0 that sum to one

    sum_b w_b a_b  <=  max_b a_b

so with them it excludes nothing that fits. `Recomputation.weights` gives equal weights to the
largest blocks (or to the tail), which is exact where these are planned alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from ..graph.graph import SOURCE_KINDS, Graph, Op
from ..graph.regions import Blocks
from ..sbp.signature import find_rule

Checkpointing = Literal["auto", "none", "all"]
_AT_EVERY_BATCH = ("block_of", "place_of", "last_products", "done", "leaving")  # slow to find out


@dataclass(frozen=True)
class Recomputation:
    """`blocks`: names of the operators of each block, in graph order; () for none.

    in_flight: micro-batches whose forward pass is done or at work and whose backward pass is not:
               they all keep their tails, which count like what comes before the blocks
    """

    graph: Graph
    blocks: Blocks = ()
    in_flight: int = 1

    @cached_property
    def block_of(self) -> Mapping[str, int]:
        """Operator name -> the number of its block."""
        return {name: number for number, block in enumerate(self.blocks) for name in block}

    @cached_property
    def place_of(self) -> Mapping[str, int]:
        """`block_of`, and one number more for the operators of the tail."""
        if not self.blocks or self.in_flight > 1:
            return self.block_of
        names = [op.name for op in self.graph.ops]
        after = max(n for n, name in enumerate(names) if name in self.block_of) + 1
        tail = (op.name for op in self.graph.ops[after:] if op.kind not in SOURCE_KINDS)
        return {**self.block_of, **dict.fromkeys(tail, len(self.blocks))}

    @cached_property
    def last_products(self) -> Mapping[str, int]:
        """The last trained product or convolution of each block -> its block."""
        found = {
            self.block_of[op.name]: op.name
            for op in self.graph.ops
            if op.name in self.block_of and is_product(self.graph, op)
        }
        return {name: block for block, name in found.items()}

    @cached_property
    def done(self) -> frozenset[str]:
        """What comes after the last product of its block: gone as that one's backward pass runs."""
        return frozenset(
            name
            for product, block in self.last_products.items()
            for name in self.blocks[block][self.blocks[block].index(product) + 1 :]
        )

    def at_batch(self, graph: Graph) -> Recomputation:
        """Recomputation of the same blocks of the model at another batch."""
        found = Recomputation(graph, self.blocks, self.in_flight)
        found.__dict__.update({name: getattr(self, name) for name in _AT_EVERY_BATCH})
        return found

    def passes(self, op: str) -> int:
        """How often the forward pass of an operator is run."""
        return 2 if op in self.block_of else 1

    @cached_property
    def leaving(self) -> frozenset[str]:
        """Tensors of blocks that something outside of their block reads, itself or as a view."""
        found: set[str] = set()
        for op in reversed(self.graph.ops):
            block = self.block_of.get(op.name)
            if block is None:
                continue
            for name in op.outputs:
                readers = [user for user, _ in self.graph.consumers[name]]
                if name in self.graph.outputs or any(
                    self.block_of.get(user.name) != block
                    or (_is_view(user) and user.outputs[0] in found)
                    for user in readers
                ):
                    found.add(name)
        return frozenset(found)

    def entering(self, block: int) -> tuple[str, ...]:
        """Tensors that a block reads and does not make; parameters and buffers do not count."""
        names = frozenset(self.blocks[block])
        members = [op for op in self.graph.ops if op.name in names]
        made = {name for op in members for name in op.outputs}
        read = dict.fromkeys(name for op in members for name in op.inputs)
        return tuple(
            name
            for name in read
            if name not in made and self.graph.producers[name].kind not in ("param", "buffer")
        )

    def leaves(self, op: Op) -> bool:
        """True if the outputs of `op` are kept until all blocks have been run again."""
        return op.name not in self.place_of or not self.leaving.isdisjoint(op.outputs)

    @cached_property
    def weights(self) -> tuple[float, ...]:
        """A weight for each block's inside and the tail, by their bytes before any split."""
        sizes = [0] * (len(self.blocks) + 1)
        for op in self.graph.ops:
            if op.name in self.place_of and not self.leaves(op):
                sizes[self.place_of[op.name]] += sum(
                    self.graph.tensors[o].spec.bytes for o in op.outputs
                )
        largest = [size == max(sizes) for size in sizes]
        return tuple(is_largest / sum(largest) for is_largest in largest)

    def weight(self, op: str) -> float:
        """How often what an operator keeps counts: inside its block or in the tail by a weight."""
        if op in self.done:
            return 0.0
        place = self.place_of.get(op)
        return float(self.in_flight) if place is None else self.weights[place]

    def output_weight(self, op: Op) -> float:
        """How often the outputs of an operator count, which may leave its block."""
        return float(self.in_flight) if self.leaves(op) else self.weight(op.name)

    def key(self, op: Op) -> tuple[int, float, bool]:
        """Equal for operators that cost the same, all else being equal."""
        if op.name not in self.place_of:
            return 1, 1.0, True
        return self.passes(op.name), self.weight(op.name), self.leaves(op)


def is_product(graph: Graph, op: Op) -> bool:
    """True for a product or convolution with a gradient."""
    rule = find_rule(op.kind)
    return rule is not None and rule.heavy and any(o in graph.needs_grad for o in op.outputs)


def _is_view(op: Op) -> bool:
    rule = find_rule(op.kind)
    return rule is not None and rule.is_view
