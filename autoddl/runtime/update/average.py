"""An averaged copy of the parameters: an exponential moving average (EMA), to evaluate with.

After each update, with decay d, every element of a trained parameter p has the average

    a = d a + (1 - d) p

beginning at the parameter's first value. A rank keeps the average of its own parts alone, placed as
the parameters are, so that nothing travels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from ..backend import Backend, Tensor, dtype_of
from ..state import ModelState


def check_decay(decay: float | None) -> None:
    """ValueError unless an average can have this decay; None averages nothing."""
    if decay is not None and not 0 < decay < 1:
        raise ValueError(f"ema_decay must lie between 0 and 1, such as 0.999, got {decay}")


class Average:
    """The averages of `trained`, the names of parameters of each of this rank's parts.

    is_in_place: the parameters have the averages' values for now
    """

    def __init__(
        self,
        decay: float,
        states: Mapping[int, ModelState],
        trained: Mapping[int, Iterable[str]],
        backend: Backend,
    ) -> None:
        self._decay = decay
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

    def restart(self) -> None:
        """Begin again at the parameters' values."""
        for key, average in self._values.items():
            self._backend.write(average, self._parameter(key))

    def update(self) -> None:
        """The parameters have new values."""
        with self._backend.no_grad():
            for key, average in self._values.items():
                average += (self._parameter(key) - average) * (1.0 - self._decay)

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
