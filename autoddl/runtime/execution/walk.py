"""A rank's way through the passes and transfers of a step, in the order that the plan gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ...plans.figures import figures
from ...plans.schedule.hoist import hoisted
from ...plans.schedule.orders import Action, num_strands
from ..comm.passing import Passing
from ..part import Job, Part


class Walk:
    """Walks through the actions of this rank's stage, or through the turns of the only one.

    parts:  this rank's
    hoists: transfers are asked for as early as they can be
    """

    def __init__(self, job: Job, parts: Mapping[int, Part], passing: Passing, hoists: bool) -> None:
        self._job, self._parts, self._passing, self._hoists = job, parts, passing, hoists

    def __call__(self, scale: float, work: Callable[[Callable[[], Any]], Any]) -> None:
        """All passes of a step on what the parts have taken.

        scale: of the loss
        work:  calls what computes
        """
        for part in self._parts.values():
            work(partial(self._begin, part))
        share = self._job.counting.share(self._job.run_state.filled)
        if self._job.plan.stages[0].turns:
            self._take_turns(share, share * scale, work)
            return
        for action in self._actions():
            number = figures(self._job.plan).schedule.part(self._job.stage, action.chunk)
            if action.is_compute:
                work(partial(self.compute, action, number, share, share * scale))
            else:
                self._passing.transfer(action, number)

    @staticmethod
    def _begin(part: Part) -> None:
        """Nothing here may keep the inputs: what other stages send is put beside them later."""
        part.executor.begin([part.inputs[m] for m in sorted(part.inputs)])

    def _take_turns(
        self, share: float, scaled: float, work: Callable[[Callable[[], Any]], Any]
    ) -> None:
        """With several micro-batches of a model on one mesh in flight together."""
        (part,) = self._parts.values()
        turns = part.plan.turns
        together = num_strands(turns)
        for first in range(0, self._job.plan.micro_batches, together):
            inputs = {m: part.inputs.pop(m) for m in range(first, first + together)}
            work(partial(part.executor.passes_in_turns, inputs, share, scaled, turns))

    def _actions(self) -> Sequence[Action]:
        schedule = figures(self._job.plan).schedule
        actions = schedule.actions[self._job.stage]
        return hoisted(actions, schedule.joint, self._meets) if self._hoists else actions

    def _meets(self, action: Action) -> bool:
        """Whether the stage's devices communicate in a pass."""
        number = figures(self._job.plan).schedule.part(self._job.stage, action.chunk)
        part = self._parts[number]
        leave = bool(part.plan.buckets) and not part.plan.graph.gives_back
        is_last = action.micro_batch == self._job.plan.micro_batches - 1
        return action.kind in part.meets or (leave and is_last and action.kind != "F")

    def compute(self, action: Action, number: int, share: float, scaled: float) -> None:
        """A pass of part `number`, whose loss counts `share`, and with its scale `scaled`."""
        m, part = action.micro_batch, self._parts[number]
        joint = figures(self._job.plan).schedule.joint
        if action.kind == "F":
            part.wait_for("F", m)
            part.sent.put(m, part.executor.forward_pass(m, part.inputs.pop(m), share))
            part.compute_ends()
            self._passing.forward(number, m)
        elif action.kind == "B":
            part.wait_for("B", m)
            returned = part.returned.pop(m)
            part.gradients.put(m, part.executor.backward_pass(m, returned, scaled, not joint))
            part.compute_ends()
            self._passing.backward(number, m)
        elif not joint:
            part.executor.weights_pass(m)
            part.compute_ends()
