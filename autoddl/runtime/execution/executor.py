"""Runs a program on one rank: operators on local shards, and every planned step between them.

Forward, each operator gets its inputs through the forward steps of its edges and runs on them.
Backward, in reverse order, each operator's vector-Jacobian product is taken on the same local
tensors and the gradients of its inputs go through the backward steps to their producers, where
those of several consumers are summed. Autograd never sees more than one operator, so nothing is
communicated that is not planned. Of a block that the plan recomputes, only the inputs are kept; its
operators run again, with all steps between them, before its backward pass.

A parameter travels to its readers once per mini-batch; its gradients are summed over the
micro-batches where they arise, and travel back once. Of one that is stored split (ZeRO, see
`cost.sharded_storage`) the gradients travel back for each micro-batch from stage 2 on and are
summed there; in stage 3 it travels before each pass of its reader and is forgotten after it, but
for what runs again: that keeps it for the backward pass, which follows.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ...graph.batch_norm import statistics_of
from ...graph.rows import Rows
from ..backend import Tensor, dtype_of
from ..comm.groups import Groups
from ..kernel import RunState
from ..state import ModelState
from .buckets import Bucket
from .check import check_gradients, check_node, check_tensor
from .gradients import Gradients
from .inputs import Inputs
from .program import FED, Key, Node, Program
from .strands import Delayed, Pass, Turns, Values, take_turns
from .vjp import Record, product, run_forgetting, run_kernel


class Executor:
    """One rank's run of a program, pass by pass, in any order that a schedule gives.

    debug:   check every tensor against its planned placement
    rows:    how the micro-batches of training add up; by default to the mean of their losses
    buckets: of gradients that travel together, beside the backward pass
    ahead:   parameters that are stored split are asked for one reader ahead
    late:    gradients that wait, as `Gradients` takes them
    """

    def __init__(
        self,
        program: Program,
        state: ModelState,
        run_state: RunState,
        groups: Groups,
        debug: bool = False,
        rows: Rows | None = None,
        buckets: Sequence[Bucket] = (),
        ahead: bool = False,
        late: Mapping[Key, str] | None = None,
    ) -> None:
        self.graph = program.graph
        self._program = program
        self._state = state
        self._run_state = run_state
        self._groups = groups
        self._backend = groups.backend
        self._debug = debug
        self.rows = rows or Rows()
        self._sent = {
            sent_key(n.op.attrs["tensor"]) for n in program.nodes if n.op.kind == "stage_output"
        }
        self._gradients = Gradients(program, groups.backend, buckets, late)
        self._inputs = Inputs(program, state, run_state, self.rows)
        self._gathers, self._known = self._inputs.gathers, self._inputs.known
        self._ahead = program.gathered if ahead else ((), ())

    def begin(self, micro_batches: Sequence[Values]) -> None:
        """Start an iteration on the inputs of its micro-batches."""
        self._run_state.training = True
        self._state.forget_gradients()
        self._parameters = self._inputs.parameters()
        self._gradients.begin(len(micro_batches))
        self._open: dict[int, Pass] = {}
        self._delayed: dict[int, list[Delayed]] = {}
        self._losses: list[tuple[Tensor, float]] = []
        self._known.add_up(micro_batches)

    def forward_pass(self, number: int, inputs: Values, share: float) -> Values:
        """Micro-batch `number`; gives the tensors that the part sends on."""
        self._run_state.micro_batch = number
        self._open[number] = done = Pass()
        for _ in self._forward(inputs, self._parameters, done, with_gradient=True):
            pass
        if done.loss is not None:
            self._losses.append((done.loss, share))
        values, done.values = done.values, {}
        return self._sent_of(values)

    def backward_pass(self, number: int, returned: Values, share: float, delays: bool) -> Values:
        """Gives the gradients of the tensors that the part has received.

        returned: the gradients of what it has sent, by tensor
        delays:   heavy weights' gradients wait for `weights_pass`
        """
        self._run_state.micro_batch = number
        delayed: list[Delayed] | None = [] if delays else None
        arrived: Values = {}
        for _ in self._backward(self._open.pop(number), share, returned, delayed, arrived):
            pass
        self._known.forget(number)
        if delayed is not None:
            self._delayed[number] = delayed
        return arrived

    def passes_in_turns(
        self, inputs: Mapping[int, Values], share: float, scaled: float, turns: Turns
    ) -> None:
        """Both passes of some micro-batches, in flight together, by the plan's `turns`.

        inputs: by micro-batch, in ascending order; the first is strand 0. Their tensors are taken
                out as soon as the forward pass has read them
        scaled: `share` times the loss scale
        """
        strands = [self._strand(values, share, scaled) for values in inputs.values()]

        def switch(strand: int, numbers: Sequence[int] = tuple(inputs)) -> None:
            self._run_state.micro_batch = numbers[strand]

        take_turns(strands, turns, switch)
        for number in inputs:
            self._known.forget(number)

    def _strand(self, inputs: Values, share: float, scaled: float) -> Iterator[None]:
        """Both passes of a micro-batch, of a part that is the whole model."""
        done = Pass()
        yield from self._forward(inputs, self._parameters, done, with_gradient=True)
        inputs.clear()
        assert done.loss is not None, "the graph has no loss"
        self._losses.append((done.loss, share))
        yield from self._backward(done, scaled, {}, None, {})

    def weights_pass(self, number: int) -> None:
        """Take the gradients that the backward pass of micro-batch `number` has left."""
        for item in self._delayed.pop(number):
            gradient_of = item.record.by_input
            assert gradient_of is not None
            given: list[Tensor | None] = [None] * len(item.node.edges)
            for index in item.inputs:
                given[index] = gradient_of(item.taken, index)
            if self._debug:
                check_gradients(item.node, given, self._groups)
            for index in item.inputs:
                gradient = given[index]
                assert gradient is not None
                self._gradients.add(item.node.edges[index], gradient)
            self._gradients.leave()

    def finish(self) -> Tensor | None:
        """Set the parameters' gradients; the sum of the losses, if the part has the loss."""
        self._parameters = {}
        self._gradients.home(self._set_gradient)
        total = None
        for loss, share in self._losses:  # not before: a loss may still be on its way
            total = loss * share if total is None else total + loss * share
        return total

    def add_up(self, micro_batches: Sequence[Values]) -> None:
        """Before an evaluation whose micro-batches add up: the sums that it needs whole."""
        self._known.add_up(micro_batches)

    def evaluate(
        self, inputs: Values, outputs: Sequence[str], number: int = 0
    ) -> tuple[Values, list[Tensor]]:
        """Forward as in evaluation: what the part sends on, and this rank's parts of `outputs`."""
        self._run_state.training, self._run_state.micro_batch = False, number
        self._state.settle()
        with self._backend.no_grad():
            done = Pass()
            parameters = self._inputs.parameters()
            for _ in self._forward(inputs, parameters, done, with_gradient=False):
                pass
            del parameters
            results = [self._inputs.output(name, inputs, done.values) for name in outputs]
            self._known.forget(number)
            return self._sent_of(done.values), results

    def _sent_of(self, values: Values) -> Values:
        return {key: x for key, x in values.items() if key in self._sent}

    def _forward(
        self, inputs: Values, parameters: dict[Key, Tensor], done: Pass, with_gradient: bool
    ) -> Iterator[None]:
        """Stops twice in each operator: when its inputs are on their way, and when it has run.

        Nothing but `done` holds a tensor of it afterwards.
        """
        self._gathers.begin(self._ahead[0] if with_gradient else ())
        for node in self._program.nodes:
            if with_gradient and node.block is not None and node.block not in done.kept:
                done.kept[node.block] = {}
            known = self._known.made_by(node) if self._known else None
            if node.idle or known is not None:
                done.records.append(None)
                done.values.update(known or {})
                yield
            else:
                received = self._received(node, inputs, parameters, done)
                yield
                self._pass(node, received, done, with_gradient and node.block is None)
                del received
            yield

    def _pass(self, node: Node, received: list[Tensor], done: Pass, with_gradient: bool) -> None:
        """One operator, from its inputs."""
        if node.kernel is None:
            if node.op.kind == "loss":
                (done.loss,) = received
            else:
                done.values[sent_key(node.op.attrs["tensor"])] = received[0]
            done.records.append(None)
            return
        record, outputs = self._run(node, received, with_gradient)
        for one in node.inside or (node,):
            if one.context.updates:
                self._update(one)
        done.records.append(record)
        done.values.update(zip(node.op.outputs, outputs, strict=True))

    def _received(
        self, node: Node, inputs: Values, parameters: dict[Key, Tensor], done: Pass
    ) -> list[Tensor]:
        """The operator's inputs, where it wants them; those of its block are kept."""
        if node.block in done.kept:
            outside = self._program.block_inputs[node.block]
            for edge in node.edges:
                if edge.tensor in outside:
                    source = inputs if edge.source.kind in FED else done.values
                    done.kept[node.block][edge.tensor] = source[edge.tensor]
        received = [
            self._inputs.received(edge, inputs, parameters, done.values) for edge in node.edges
        ]
        self._gathers.ask_next(node)
        if self._debug:
            alike = [
                None if edge.source.kind == "buffer" and self._state.is_apart(edge.source) else x
                for edge, x in zip(node.edges, received, strict=True)
            ]
            check_node(node, "input", alike, node.planned.ins, self._groups)
        return received

    def _run(
        self, node: Node, received: list[Tensor], with_gradient: bool
    ) -> tuple[Record | None, list[Tensor]]:
        """Call the operator's kernel."""
        assert node.kernel is not None
        wanted = node.wanted if with_gradient else ()
        record: Record | None
        if node.fetched_back is not None and with_gradient:
            fetch = functools.partial(self._gathers.take, node.fetched_back)
            record, outputs = run_forgetting(
                self._backend, node.kernel, node.context, node.attrs, received, fetch
            )
        else:
            record, outputs = run_kernel(
                self._backend, node.kernel, node.context, node.attrs, received, wanted
            )
        if self._known:
            outputs = self._known.instead(node.op, outputs)
        if self._debug:
            check_node(node, "output", outputs, node.planned.outs, self._groups)
        return record, outputs

    def _update(self, node: Node) -> None:
        """Keep the state that the operator has changed."""
        for index, value in node.context.updates.items():
            name = node.edges[index].source.attrs["name"]
            apart = node.unlike_rows if statistics_of(node.op) == "shard" else ()
            self._state.update(name, value, node.planned.ins[index], apart)
        self._state.count_batch(node.op.module)

    def _run_again(self, block: int, done: Pass, parameters: dict[Key, Tensor]) -> None:
        """Run a block forward from its inputs, and put down its records."""
        inputs = done.kept.pop(block)
        values = dict(inputs)
        for number, node in enumerate(self._program.nodes):
            if node.block == block and (known := self._known.made_by(node)) is not None:
                values.update(known)
            elif node.block == block:
                received = [
                    self._inputs.received(edge, inputs, parameters, values) for edge in node.edges
                ]
                self._gathers.ask_next(node)
                done.records[number], outputs = self._run(node, received, with_gradient=True)
                values.update(zip(node.op.outputs, outputs, strict=True))

    def _backward(
        self,
        done: Pass,
        share: float,
        returned: Mapping[str, Tensor],
        delayed: list[Delayed] | None,
        arrived: Values,
    ) -> Iterator[None]:
        """Take the records one by one from the end, and add to the gradients of parameter uses.

        delayed: if given, gets the parameter gradients that can wait
        arrived: gets the gradients of what the part has received

        Stops twice in each operator: when its gradients are taken, and when they are on their way.
        """
        done.values.clear()  # what is left are the model's results
        self._gathers.begin(self._ahead[1])
        for node in reversed(self._program.nodes):
            if node.block in done.kept:
                self._run_again(node.block, done, self._parameters)
            if node.carries_gradient:
                given = self._given(node, done, share, arrived, returned, delayed)
                yield
                self._hand_on(node, *given, arrived)
                del given  # before the next operator runs
            else:
                done.records.pop()
                yield
            self._gradients.leave(node)
            yield
        self._gradients.end_pass()

    def _given(
        self,
        node: Node,
        done: Pass,
        share: float,
        arrived: Values,
        returned: Mapping[str, Tensor],
        delayed: list[Delayed] | None,
    ) -> tuple[Sequence[Tensor | None], tuple[int, ...]]:
        """The gradients of an operator's inputs, and the inputs whose gradients come later.

        Its record and the gradients of its outputs are gone then.
        """
        record = done.records.pop()
        if node.op.kind == "loss":
            assert done.loss is not None
            start = self._backend.from_numpy(np.array(share))
            return [self._backend.cast(start, dtype_of(done.loss))], ()
        if node.kernel is None:
            return [returned[node.op.attrs["tensor"]]], ()
        assert record is not None
        taken = [
            arrived.pop(name, None) if takes else None
            for name, takes in zip(node.op.outputs, node.takes, strict=True)
        ]
        if self._debug:
            check_node(node, "gradient of output", taken, node.planned.grad_outs, self._groups)
        later = () if delayed is None else _can_wait(node, record)
        if delayed is not None and later:
            delayed.append(Delayed(node, record, taken, later))
        asked = time.perf_counter()
        self._gathers.ask_again(node)
        given = product(record, taken, later)
        if self._program.made is not None:
            self._program.made(node, asked, given)
        return given, later

    def _hand_on(
        self,
        node: Node,
        given: Sequence[Tensor | None],
        later: tuple[int, ...],
        arrived: Values,
    ) -> None:
        """Add the gradients of an operator's inputs to those of parameter uses and of producers."""
        if self._debug:
            check_gradients(node, given, self._groups)
        for index, (edge, gradient) in enumerate(zip(node.edges, given, strict=True)):
            if not edge.carries_gradient or index in later:
                continue
            assert gradient is not None
            if edge.source.kind == "param":
                self._gradients.add(edge, gradient)
            else:
                _add(arrived, edge.tensor, edge.backward(gradient))

    def _set_gradient(self, name: str, gradient: Tensor, is_own: bool) -> None:
        stored = self._state.stored[name]
        if self._debug:
            what = f"gradient of parameter {name}"
            check_tensor(gradient, what, stored.shape, stored.nd, self._groups)
        self._state.set_gradient(name, gradient, is_own)


def sent_key(tensor: str) -> str:
    """The key among a stage's values of what it sends on as `tensor`, placed as it is sent."""
    return f"{tensor}.sent"


def _can_wait(node: Node, record: Record) -> tuple[int, ...]:
    """Inputs whose gradients nothing in this pass needs, and that can be taken by themselves."""
    edges = node.edges if record.by_input is not None else ()
    return tuple(
        index
        for index, edge in enumerate(edges)
        if edge.carries_gradient and edge.source.kind == "param"
    )


def _add(sums: Values, key: str, value: Tensor) -> None:
    sums[key] = sums[key] + value if key in sums else value
