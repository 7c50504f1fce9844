"""From a step's gradients to new parameters: loss scale, clipping, the optimizer, averages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...plans.figures import figures
from ..backend import OptimizerFn, Tensor
from ..comm.groups import Group
from ..part import Job, Part
from .average import Average, check_decay
from .clip import check_norm, clip_gradients
from .finite import all_finite, check_choice, health, looked_at
from .loss_scale import LossScaler
from .parameters import OwnSteps, Parameters, one_number

Hook = Callable[[Iterator[tuple[str, Any]]], Any]


def checked_update(
    clip_grad_norm: float | None, ema_decay: float | None, on_nonfinite: str
) -> dict[str, Any]:
    """The options by name. ValueError unless they can be what they are called."""
    check_norm(clip_grad_norm)
    check_decay(ema_decay)
    check_choice(on_nonfinite)
    return {"clip_grad_norm": clip_grad_norm, "ema_decay": ema_decay, "on_nonfinite": on_nonfinite}


class Update:
    """Lets the user's optimizer change the parameters of `parts`, this rank's.

    optimizer: the user's
    scaler:    None if the loss is not scaled
    grad_norm: of the last step's gradients, before they were clipped; infinite if a scaled one was
               not finite, None if none are clipped
    skipped:   steps whose loss or gradients were not finite, which changed no parameter
    limit:     of the gradients' norm; None if they are not clipped
    states:    of the parts
    hooks:     called with the parameters that have gradients, before these are clipped
    average:   of the parameters; None if none is kept
    """

    def __init__(
        self,
        job: Job,
        parts: Mapping[int, Part],
        world: Group,
        optimizer: OptimizerFn,
        scaler: LossScaler | None,
        clip_grad_norm: float | None,
        ema_decay: float | None,
        on_nonfinite: str = "raise",
    ) -> None:
        """`scaler`: None for one if the plan needs it; `world`: all ranks of the job."""
        plan, backend = job.plan, job.groups.backend
        checked_update(clip_grad_norm, ema_decay, on_nonfinite)
        if scaler is None and plan.precision == "float16":
            scaler = LossScaler()
        self.scaler = scaler
        self.grad_norm: float | None = None
        self.skipped = 0
        self.limit = clip_grad_norm
        self._on_nonfinite = on_nonfinite
        self._debug = job.debug
        self.states = {v: part.state for v, part in parts.items()}
        self._looked_at = {v: looked_at(state) for v, state in self.states.items()}
        self._world = world
        producers = plan.graph.producers
        self._first_holders = {
            producers[tensor].attrs["name"]: holders[0]
            for tensor, holders in figures(plan).travel.shared_params.items()
        }
        self.average: Average | None = None
        if ema_decay is not None:
            names = {v: part.trained for v, part in parts.items()}
            self.average = Average(ema_decay, self.states, names, backend)
            self.average.check_counted(plan)
        self.hooks: list[Hook] = []
        self._trained = Parameters(pair for part in parts.values() for pair in part.trained.items())
        # a rank whose parameters are all frozen has an optimizer too, for schedulers to drive
        given = self._trained or Parameters([one_number(backend)])
        self.optimizer = backend.optimizer(optimizer, given)
        self._own_steps = OwnSteps(self.optimizer.own)

    @property
    def scale(self) -> float:
        """What the loss is multiplied by."""
        return 1.0 if self.scaler is None else self.scaler.scale

    def run(self, loss: Tensor | None, seen: Callable[[], Any]) -> Tensor | None:
        """Change the parameters, unless what is not finite is skipped. Ranks call it together.

        loss: where this rank has it
        seen: called when hooks have run

        Gives float64 [2], of the loss and of the gradients, finite if they are, where something
        else is to be raised; nothing is waited for.
        """
        gradients = [state.gradients for state in self.states.values()]
        losses = [] if loss is None else [loss]
        finite = self.scaler is None or self.scaler.unscale(gradients, self._world)
        found = None
        looked_at = [
            state.gradients[name]
            for v, state in self.states.items()
            for name in self._looked_at[v]
            if name in state.gradients
        ]
        if self._on_nonfinite == "skip":
            finite = finite and all_finite([*losses, *looked_at], self._world)
        elif self._on_nonfinite == "raise" and finite:
            backend = self._world.backend
            found = backend.cat([health(losses, backend), health(looked_at, backend)], 0)
        self.skipped += not finite
        self._change(finite, seen)
        return found

    def _change(self, finite: bool, seen: Callable[[], Any]) -> None:
        if finite and self.hooks:
            self._call_hooks()
            seen()
        if self.limit is not None:
            self.grad_norm = self._clip(self.limit) if finite else math.inf
        if finite:
            for state in self.states.values():
                state.give_gradients()
            with self._own_steps.here():
                self.optimizer.step()
            if self.average is not None:
                self.average.update()
        if self._debug:
            for state in self.states.values():
                state.check_parameters()

    def _call_hooks(self) -> None:
        for state in self.states.values():
            state.give_gradients()
        with self._world.backend.no_grad():
            for hook in self.hooks:
                hook(self._trained.named())
        for state in self.states.values():
            state.take_gradients()

    def _clip(self, limit: float) -> float:
        return clip_gradients(self.states, self._first_holders, limit, self._world)
