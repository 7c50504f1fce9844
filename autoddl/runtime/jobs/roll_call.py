"""Before they do something together, the ranks make sure that all of them do the same thing.

A call that not all ranks make (one has run out of batches, or asks for `state_dict` alone) would
mix up their collectives, or hang. Each call therefore starts with one small all-gather of what each
rank is about to do; ranks that disagree all raise. Leaving the program is such a call as well.

The same all-gather carries two things more, which so cost no exchange of their own: whether the
loss and the gradients of the step before were finite, and now and then a checksum of the batch.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..backend import Tensor
from ..comm.groups import Group
from .guard import inside, leave, leave_if_failed

CALLS = (
    "exit", "step", "eval_step", "state_dict", "load_state_dict", "save", "load", "averaged",
    "evaluate", "checked", "module",
)  # fmt: skip
Checksums = Mapping[int, tuple[int, int]]  # argument -> what it is a part of, and its checksum


class RollCall:
    """Roll calls of the ranks of `world`, a group of all of them.

    arguments: tensors that a step takes at most
    """

    def __init__(self, world: Group, arguments: int = 0) -> None:
        self._world = world
        self._arguments = arguments
        self._count = 0
        self._health: tuple[int, Tensor] | None = None

    def report(self, step: int, health: Tensor) -> None:
        """What the next call is to tell of `step`.

        health: float64 [2], of the loss and of the gradients: finite if they all are
        """
        self._health = step, health

    def __call__(
        self, call: str, rows: int = 0, sums: Checksums | None = None, why: str = ""
    ) -> None:
        """Raise RuntimeError on all ranks if one of them makes another call now.

        rows: of a batch that is shorter than others, for all ranks to have the same
        sums: of this rank's batch
        why:  what this rank knows of numbers that are not finite

        Raises FloatingPointError on all ranks if a number of the step before was not finite, and
        RuntimeError if ranks have been given different batches.
        """
        health, self._health = self._health, None
        with inside(call):
            said = self._gathered(call, rows, health and health[1], sums or {})
        message = self._differences(said[:, 0])
        if message:
            raise RuntimeError(message)
        if health is not None and (message := _not_finite(health[0], said[:, 1:3])):
            raise FloatingPointError(message + why)
        if message := self._other_batches(said[:, 3:].reshape(len(said), -1, 2)):
            raise RuntimeError(message)

    def _gathered(self, call: str, rows: int, health: Tensor | None, sums: Checksums) -> np.ndarray:
        """A row of every rank: what it calls, its health, and a key and a checksum by argument."""
        self._count += 1
        backend = self._world.backend
        given = [sums.get(number, (-1, 0)) for number in range(self._arguments)]
        own = np.array([rows * len(CALLS) + CALLS.index(call), 0, 0, *np.ravel(given)], np.float64)
        if self._world.size == 1:
            if health is not None:
                own[1:3] = backend.to_numpy(health)
            return own[None]
        mine = backend.from_numpy(own)
        if health is not None:
            parts = backend.narrow(mine, 0, 0, 1), health, backend.narrow(mine, 0, 3, len(own) - 3)
            mine = backend.cat(parts if len(own) > 3 else parts[:2], 0)
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

    def _other_batches(self, said: np.ndarray) -> str:
        """said: [ranks, arguments, 2], keys (-1: of nothing) and checksums."""
        for argument in range(said.shape[1]):
            first: dict[float, int] = {}
            for rank, (key, value) in enumerate(said[:, argument]):
                other = first.setdefault(key, rank)
                if key >= 0 and said[other, argument, 1] != value:
                    return (
                        f"tensor {argument} of the batch of call number {self._count} is not the "
                        f"same on rank {other} and rank {rank}. All ranks must be given the same "
                        "global batch, or each its own rows of it (trainer.rows): draw and shuffle "
                        "with the same seed on every rank"
                    )
        return ""

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
