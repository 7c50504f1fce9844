"""An averaged copy of the parameters: an exponential moving average (EMA), to evaluate with.

After each update, with decay d, every element of a trained parameter p has the average

    a = d a + (1 - d) p

beginning at the parameter's first value. A rank keeps the average of its own parts alone, placed as
the parameters are, so that nothing travels.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Real

from ..._files import expect
from ...plans import Plan
from ...plans.figures import figures
from ...plans.format import format_bytes
from ...sbp.layout import ITEM_BYTES
from ..backend import Backend, Tensor, dtype_of
from ..state import ModelState


def check_decay(decay: float | None) -> None:
    """ValueError unless an average can have this decay; None averages nothing."""
    if decay is not None:
        expect(decay, Real, "ema_decay is a number, or None")
    if decay is not None and not 0 < decay < 1:
        raise ValueError(f"ema_decay must lie between 0 and 1, such as 0.999, got {decay}")


class Average:
    """The averages of `trained`, the names of parameters of each of this rank's parts.

    decay:       of the formula above
    is_in_place: the parameters have the averages' values for now
    """

    def __init__(
        self,
        decay: float,
        states: Mapping[int, ModelState],
        trained: Mapping[int, Iterable[str]],
        backend: Backend,
    ) -> None:
        self.decay = decay
        self._states = states
        self._backend = backend
        self._values = {
            (part, name): backend.zeros(tuple(local.shape), dtype_of(local))
            for part, names in trained.items()
            for name in names
            for local in [states[part].stored[name].local]
        }
        self.is_in_place = False
        self.restart()

    @property
    def bytes(self) -> int:
        """Of this rank's averages."""
        sizes = ((math.prod(x.shape), ITEM_BYTES[dtype_of(x)]) for x in self._values.values())
        return sum(count * each for count, each in sizes)

    def check_counted(self, plan: Plan) -> None:
        """Say so if the plan's memory has no room for averages; on one rank is enough."""
        if plan.stages[0].ema or self._backend.rank:
            return
        needed, limit = max(figures(plan).needed_bytes), figures(plan).limit_bytes
        fits = "" if needed + self.bytes <= limit else ": together too much"
        most = f" of at most {format_bytes(limit)}" if limit < math.inf else ""
        logging.getLogger("autoddl").warning(
            f"the averages of ema_decay take {format_bytes(self.bytes)} a device, which the plan "
            f"has not counted in its {format_bytes(needed)}{most}{fits}; plan with ema=True "
            "(autoddl plan --ema) to count them"
        )

    def of(self, part: int, name: str) -> Tensor:
        """The average of a parameter: this rank's part of it."""
        return self._values[part, name]

    def restart(self) -> None:
        """Begin again at the parameters' values."""
        for key, average in self._values.items():
            self._backend.write(average, self._parameter(key))

    def update(self) -> None:
        """The parameters have new values."""
        with self._backend.no_grad():
            for key, average in self._values.items():
                average += (self._parameter(key) - average) * (1.0 - self.decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the parameters have the averages' values."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        self.is_in_place = not self.is_in_place
        for key, average in self._values.items():
            parameter = self._parameter(key)
            kept = self._backend.zeros(tuple(average.shape), dtype_of(average))
            self._backend.write(kept, parameter)
            self._backend.write(parameter, average)
            self._backend.write(average, kept)

    def _parameter(self, key: tuple[int, str]) -> Tensor:
        part, name = key
        return self._states[part].stored[name].local
