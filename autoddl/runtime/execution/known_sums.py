"""Sums over the batch that training needs whole, added up before the first micro-batch is trained.

They depend on the data alone (`rows.Rows.known`): a weighted mean's denominator, for instance. What
is redistributed for them is kept until it is used again in training: nothing travels twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from ...graph.graph import Op
from ...graph.rows import Rows, known_from, reads
from ..backend import Backend, Tensor
from ..kernel import RunState
from .program import Edge, Key, Node, Program
from .vjp import run_kernel

Values = dict[str, Tensor]
# (edge, micro-batch's inputs, no parameters, what is computed) -> the tensor, where it is read
Receive = Callable[[Edge, Values, dict, Values], Tensor]


class KnownSums:
    """This rank's parts of the sums, as they are placed by the program."""

    def __init__(
        self,
        program: Program,
        rows: Rows,
        receive: Receive,
        run_state: RunState,
        backend: Backend,
    ) -> None:
        self._backend = backend
        self._run_state = run_state
        self._receive = receive
        graph = program.graph
        made = {name for node in program.nodes for name in node.op.outputs}
        self._powers = {name: power for name, power in rows.known.items() if name in made}
        needed: set[str] = set()
        for name in self._powers:
            found = known_from(graph, name)
            assert found is not None, f"{name} does not depend on the data alone"
            needed.update(found)
        self._nodes = [node for node in program.nodes if node.op.name in needed]
        self._read = {name for name in self._powers} | {
            name for node in self._nodes for name in node.op.inputs
        }
        self._only = _only_for(program, self._nodes, self._powers.keys())
        self._values: Values = {}
        self._received: dict[int, dict[Key, Tensor]] = {}  # by micro-batch

    def __bool__(self) -> bool:
        """Whether any are known for this batch."""
        return bool(self._values)

    def add_up(self, micro_batches: Sequence[Values]) -> None:
        """Find the sums of a batch, if it is in several parts."""
        self._values, self._received = {}, {}
        filled = self._run_state.filled
        if not self._powers or (len(micro_batches) == 1 and filled is None):
            return
        with self._backend.no_grad():
            for number, inputs in enumerate(micro_batches):
                values: Values = {}
                self._run_state.micro_batch = number
                self._received[number] = {}
                for node in self._nodes:
                    values.update(self._outputs(node, number, inputs, values))
                    for name in self._powers.keys() & set(node.op.outputs):
                        old = self._values.get(name)
                        new = values[name]
                        self._values[name] = new if old is None else old + new
            for name, power in self._powers.items():
                if power:
                    times = len(micro_batches) * (1.0 if filled is None else filled.share)
                    self._values[name] = self._values[name] * times**-power

    def instead(self, op: Op, outputs: Sequence[Tensor]) -> list[Tensor]:
        """An operator's outputs, with those that are known in the place of its micro-batch's."""
        return [self._values.get(n, x) for n, x in zip(op.outputs, outputs, strict=True)]

    def received(self, edge: Edge, micro_batch: int) -> Tensor | None:
        """What an edge has brought already."""
        return self._received.get(micro_batch, {}).get(edge.key)

    def forget(self, micro_batch: int) -> None:
        """A micro-batch has been trained."""
        self._received.pop(micro_batch, None)

    def made_by(self, node: Node) -> Values | None:
        """What an operator gives in training, if nothing of it has to be computed any more."""
        if node.op.name not in self._only:
            return None
        return {name: self._values[name] for name in node.op.outputs if name in self._values}

    def _outputs(
        self, node: Node, number: int, inputs: Values, values: Values
    ) -> Mapping[str, Tensor]:
        """Those that are read."""
        op = node.op
        wanted = [n for n, name in enumerate(op.outputs) if name in self._read]
        needed = {i for n in wanted for i in reads(op, n)}
        received = [
            self._receive(edge, inputs, {}, values) if i in needed else None
            for i, edge in enumerate(node.edges)
        ]
        if op.name not in self._only:
            for edge, x in zip(node.edges, received, strict=True):
                if x is not None and edge.placed != edge.target:
                    self._received[number][edge.key] = x
        if len(needed) < len(node.edges):
            return {
                op.outputs[n]: self._backend.kernels.outputs[op.kind, n](
                    node.context, received, node.attrs
                )
                for n in wanted
            }
        assert node.kernel is not None
        whole = [x for x in received if x is not None]
        _, outputs = run_kernel(
            self._backend, node.kernel, node.context, node.attrs, whole, [False] * len(whole)
        )
        return dict(zip(op.outputs, outputs, strict=True))


def _only_for(program: Program, nodes: Sequence[Node], sums: Collection[str]) -> frozenset[str]:
    """Those of `nodes` of which training needs nothing but the sums."""
    only: set[str] = set()
    readers = program.graph.consumers
    for node in reversed(nodes):
        others = [name for name in node.op.outputs if name not in sums]
        if all(reader.name in only for name in others for reader, _ in readers[name]):
            only.add(node.op.name)
    return frozenset(only)
