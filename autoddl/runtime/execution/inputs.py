"""Where the inputs of an operator come from, and in which placement it wants them.

They are tensors of the batch, of operators before it or of another stage, buffers, and parameters:
those that stay are brought to their readers once an iteration, those that are stored split for each
pass (`Gathers`). Sums over the batch that are known already stand for what would give them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from ...graph.rows import Rows
from ..backend import Backend, Tensor
from ..comm.beside import later
from ..kernel import RunState
from ..state import ModelState
from .known_sums import KnownSums
from .program import FED, Edge, Key, Node, Program
from .strands import Values


class Gathers:
    """Parameters that are stored split (ZeRO's stage 3), each gathered for its only reader.

    Collectives run in the order in which they are asked for. So where gradients travel beside the
    backward pass, what a reader needs is asked for one reader ahead, in front of the gradients of
    the reader before it, which need not hurry (`plans.schedule.step` has the seconds). Two of these
    parameters are there at once then, and one else.

    fetch: brings the parameter of an edge
    """

    def __init__(self, fetch: Callable[[Edge], Tensor], backend: Backend) -> None:
        self._fetch, self._backend = fetch, backend
        self._there: dict[Key, Callable[[], Tensor]] = {}
        self._coming: Iterator[Edge] = iter(())

    def begin(self, edges: Sequence[Edge]) -> None:
        """A pass that reads `edges` in this order, all but the first ahead; () for none."""
        self._there.clear()
        self._coming = iter(edges[1:])

    def ask_next(self, node: Node) -> None:
        """When `node` has asked for its own, and for all else that it waits for."""
        if node.fetched_twice is not None:
            edge = next(self._coming, None)
            if edge is not None:
                self._ask(edge)

    def ask_again(self, node: Node) -> None:
        """For its own, if it was not asked for ahead, and for the next: in a backward pass."""
        if node.fetched_back is not None:
            self._ask(node.fetched_back)
            self.ask_next(node)

    def take(self, edge: Edge) -> Tensor:
        found = self._there.pop(edge.key, None)
        return self._fetch(edge) if found is None else found()

    def _ask(self, edge: Edge) -> None:
        if edge.key not in self._there:
            self._there[edge.key] = later(self._backend.thread, partial(self._fetch, edge))


class Inputs:
    """What a program's operators read on this rank.

    known:   the sums of the batch that are added up before the first micro-batch
    gathers: the parameters that are stored split
    """

    def __init__(
        self, program: Program, state: ModelState, run_state: RunState, rows: Rows
    ) -> None:
        self._program = program
        self._state = state
        self._run_state = run_state
        self._backend = state.groups.backend
        self.gathers = Gathers(self.fetch, self._backend)
        self.known = KnownSums(program, rows, self.bring, run_state, self._backend)

    def parameters(self) -> dict[Key, Tensor]:
        """Each use of a parameter that stays, in the placement in which it is used."""
        return {edge.key: self.fetch(edge) for edge in self._program.parameters}

    def fetch(self, edge: Edge) -> Tensor:
        """A parameter where its reader wants it."""
        stored = self._state.stored[edge.source.attrs["name"]]
        dtype = self._program.graph.tensors[edge.tensor].spec.dtype
        local = self._backend.detached(stored.local)
        return edge.forward(local if dtype == stored.dtype else self._backend.cast(local, dtype))

    def output(self, name: str, inputs: Values, values: Values) -> Tensor:
        """A result of the model, as its producer places it."""
        source = self._program.graph.producers[name]
        if source.kind == "input":
            return inputs[name]
        if source.kind in ("param", "buffer"):
            (nd,) = self._program.ops[source.name].outs
            return self._state.local(source.attrs["name"], nd)
        return values[name]

    def received(
        self, edge: Edge, inputs: Values, parameters: dict[Key, Tensor], values: Values
    ) -> Tensor:
        """The tensor of an edge, where its reader wants it."""
        if self.known:
            known = self.known.received(edge, self._run_state.micro_batch)
            if known is not None:
                if edge.is_last:
                    values.pop(edge.tensor, None)
                return known
        return self.bring(edge, inputs, parameters, values)

    def bring(
        self, edge: Edge, inputs: Values, parameters: dict[Key, Tensor], values: Values
    ) -> Tensor:
        """Redistribute the tensor of an edge."""
        if edge.source.kind == "param":
            return self.gathers.take(edge) if edge.zero_stage == 3 else parameters[edge.key]
        if edge.source.kind in FED:
            return edge.forward(inputs[edge.tensor])
        if edge.source.kind == "buffer":
            stored = self._state.stored[edge.source.attrs["name"]]
            # the operator that updates a buffer has left it where it wants it
            if stored.nd == edge.target:
                return stored.local
            return edge.forward(self._state.local(edge.source.attrs["name"], edge.placed))
        return edge.forward(values.pop(edge.tensor) if edge.is_last else values[edge.tensor])
