"""Before they do something together, the ranks make sure that all of them do the same thing.

A call that not all ranks make (one has run out of batches, or asks for `state_dict` alone) would
mix up their collectives, or hang. Each call therefore starts with one small all-gather of what each
rank is about to do; ranks that disagree all raise. Leaving the program is such a call as well.

The same all-gather carries two things more, which so cost no exchange of their own: whether the
loss and the gradients of the step before were finite, and numbers that tell whether the ranks have
the same batch, settings and parameters (`update/alike.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ..backend import Tensor
from ..comm.groups import Group
from .agreement import unlike
from .guard import inside, leave, leave_if_failed

CALLS = (
    "exit", "step", "eval_step", "state_dict", "load_state_dict", "save", "load", "averaged",
    "evaluate", "checked", "module",
)  # fmt: skip
_HEAD = 3  # numbers before those of subjects: the call, and the health of loss and gradients


@dataclass(frozen=True)
class Saying:
    """What a rank says of a subject, which ranks that say it under the same key have alike.

    text: line by line, for people, where the numbers differ
    """

    key: int
    number: float
    text: Callable[[], str] = str


Said = Mapping[str, Saying]
_NOTHING = Saying(-1, 0.0)


class RollCall:
    """Roll calls of the ranks of `world`, a group of all of them.

    subjects: which there are, and by how much the numbers of ranks may differ
    """

    def __init__(self, world: Group, subjects: Mapping[str, float]) -> None:
        self._world = world
        self._subjects = subjects
        self._count = 0
        self._health: tuple[int, Tensor] | None = None
        self._later: Callable[[], Said] = dict

    def report(self, step: int, health: Tensor) -> None:
        """What the next call is to tell of `step`.

        health: float64 [2], of the loss and of the gradients: finite if they all are
        """
        self._health = step, health

    def say_later(self, said: Callable[[], Said]) -> None:
        """What the next call is to say."""
        self._later = said

    def __call__(self, call: str, rows: int = 0, said: Said | None = None, why: str = "") -> None:
        """Raise RuntimeError on all ranks if one of them makes another call now.

        rows: of a batch that is shorter than others, for all ranks to have the same
        said: what this rank says
        why:  what this rank knows of numbers that are not finite

        Raises FloatingPointError on all ranks if a number of the step before was not finite, and
        RuntimeError if they say different things of a subject.
        """
        health, self._health = self._health, None
        later, self._later = self._later, dict
        with inside(call):
            own = {**later(), **(said or {})} if self._world.size > 1 else {}
            heard = self._gathered(call, rows, health and health[1], own)
        message = self._differences(heard[:, 0])
        if message:
            raise RuntimeError(message)
        if health is not None and (message := _not_finite(health[0], heard[:, 1:_HEAD])):
            raise FloatingPointError(message + why)
        for number, (subject, most) in enumerate(self._subjects.items()):
            keys, numbers = heard[:, _HEAD + 2 * number :][:, :2].T
            if (pair := _unlike(keys, numbers, most)) is not None:
                with inside(call):
                    raise RuntimeError(self._disagreement(subject, pair, keys, own.get(subject)))

    def _gathered(self, call: str, rows: int, health: Tensor | None, said: Said) -> np.ndarray:
        """A row of every rank: what it calls, its health, and a key and a number by subject."""
        self._count += 1
        backend = self._world.backend
        every = (said.get(subject, _NOTHING) for subject in self._subjects)
        pairs = [number for one in every for number in (one.key, one.number)]
        own = np.array([rows * len(CALLS) + CALLS.index(call), 0, 0, *pairs], np.float64)
        if self._world.size == 1:
            if health is not None:
                own[1:_HEAD] = backend.to_numpy(health)
            return own[None]
        mine = backend.from_numpy(own)
        if health is not None:
            first = backend.narrow(mine, 0, 0, 1)
            last = backend.narrow(mine, 0, _HEAD, len(pairs))
            mine = backend.cat((first, health, last), 0)
        return backend.to_numpy(self._world.all_gather(mine)).reshape(self._world.size, -1)

    def _differences(self, said: np.ndarray) -> str:
        if (said == said[0]).all():
            return ""
        who: dict[str, list[int]] = {}
        for rank, code in sorted(enumerate(said), key=lambda x: (x[1] % len(CALLS), x[1])):
            of, number = divmod(int(code), len(CALLS))
            name = f"{CALLS[number]} with a batch of {of} rows" if of else CALLS[number]
            who.setdefault(name, []).append(rank)
        parts = [f"{name} on rank {', '.join(map(str, ranks))}" for name, ranks in who.items()]
        return (
            f"the ranks do different things in their call number {self._count}: "
            f"{'; '.join(parts)}. All ranks must make the same calls in the same order "
            "(step, eval_step, state_dict, load_state_dict) and end together"
        )

    def _disagreement(
        self, subject: str, pair: tuple[int, int], keys: np.ndarray, own: Saying | None
    ) -> str:
        """The message. All ranks call it, with the first two that differ."""
        text = own.text() if own is not None else ""
        is_compared = keys[self._world.index] == keys[pair[0]]
        told = unlike(subject, text, is_compared, self._world.backend)
        if told == subject:
            told = f"{subject} is not the same on rank {pair[0]} and rank {pair[1]}"
        return (
            f"the ranks do not train alike in their call number {self._count}: {told}. All ranks "
            "must have the same settings at each step, and be given the same global batch, or each "
            "its own rows of it (trainer.rows): draw and shuffle with the same seed on every rank"
        )

    def at_exit(self) -> None:
        """End the job if this rank ends while others go on, or its last step was not finite."""
        leave_if_failed()
        try:
            self("exit")
        except (RuntimeError, FloatingPointError) as error:
            leave(str(error))


def _not_finite(step: int, said: np.ndarray) -> str:
    """The message if a row of `said` ([ranks, 2]: of the loss, of gradients) is not finite."""
    bad = ~np.isfinite(said)
    if not bad.any():
        return ""
    what = [name for name, one in zip(("the loss", "a gradient"), bad.any(0), strict=True) if one]
    ranks = np.flatnonzero(bad.any(1))
    return (
        f"step {step}: {' and '.join(what)} is infinite or no number (seen on rank "
        f"{', '.join(map(str, ranks))}). Go on from the last saved state, as this step has been "
        'taken; parallelize(on_nonfinite="skip") leaves such steps out, "ignore" goes on, and '
        "debug=True names the first operator"
    )


def _unlike(keys: np.ndarray, numbers: np.ndarray, most: float) -> tuple[int, int] | None:
    """The first two ranks with the same key (-1: of nothing) whose numbers differ by more."""
    first: dict[float, int] = {}
    for rank, (key, number) in enumerate(zip(keys, numbers, strict=True)):
        other = first.setdefault(key, rank)
        if key >= 0 and not abs(numbers[other] - number) <= most:
            return other, rank
    return None
