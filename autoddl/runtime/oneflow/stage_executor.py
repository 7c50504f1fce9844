"""One rank's run of its part of a pipeline's model, pass by pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import oneflow as flow

from .accumulated import Accumulated
from .executor import Delayed, Executor, Pass, Values
from .program import Key


class StageExecutor(Executor):
    """Passes of the micro-batches in any order that a schedule gives."""

    def begin(self, micro_batches: Sequence[Values]) -> None:
        """Start an iteration on the inputs of its micro-batches."""
        self._run_state.training = True
        self._state.forget_gradients()
        self._parameters = self._fetch_parameters()
        self._gradients: Accumulated[Key] = Accumulated()
        self._open: dict[int, Pass] = {}
        self._delayed: dict[int, list[Delayed]] = {}
        self._losses: list[flow.Tensor] = []
        self._known.add_up(micro_batches)

    def forward_pass(self, number: int, inputs: Values, share: float) -> Values:
        """Micro-batch `number`; gives the tensors that the part sends on."""
        self._run_state.micro_batch = number
        done = self._forward(inputs, self._parameters, with_gradient=True)
        self._open[number] = done
        if done.loss is not None:
            self._losses.append(done.loss * share)
        values, done.values = done.values, {}
        return values

    def backward_pass(
        self, number: int, returned: Mapping[str, Any], share: float, delays: bool
    ) -> Values:
        """Gives the gradients of the tensors that the part has received.

        delays: heavy weights' gradients wait for `weights_pass`
        """
        self._run_state.micro_batch = number
        done = self._open.pop(number)
        delayed: list[Delayed] | None = [] if delays else None
        arrived = self._backward(done, self._parameters, share, self._gradients, returned, delayed)
        if delayed is not None:
            self._delayed[number] = delayed
        return arrived

    def weights_pass(self, number: int) -> None:
        """What the backward pass of micro-batch `number` has left."""
        self._backward_weights(self._delayed.pop(number), self._gradients)

    def finish(self) -> flow.Tensor | None:
        """Set the parameters' gradients; the sum of the losses, if the part has the loss."""
        self._send_gradients(self._gradients)
        total = None
        for loss in self._losses:
            total = loss if total is None else total + loss
        return total

    def evaluate_part(
        self, inputs: Values, outputs: Sequence[str]
    ) -> tuple[Values, list[flow.Tensor]]:
        """Forward as in evaluation: what the part sends on, and this rank's parts of `outputs`."""
        self._run_state.training = False
        self._state.settle()
        with flow.no_grad():
            done = self._forward(inputs, self._fetch_parameters(), with_gradient=False)
            return done.values, [self._output(name, inputs, done.values) for name in outputs]
