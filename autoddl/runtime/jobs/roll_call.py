"""Before they do something together, the ranks make sure that all of them do the same thing.

A call that not all ranks make (one has run out of batches, or asks for `state_dict` alone) would
mix up their collectives, or hang. Each call therefore starts with one small all-gather of what each
rank is about to do; ranks that disagree all raise. Leaving the program is such a call as well.
"""

from __future__ import annotations

import numpy as np

from ..comm.groups import Group
from .guard import leave, leave_if_failed

CALLS = (
    "exit", "step", "eval_step", "state_dict", "load_state_dict", "train_state", "load_train_state",
    "averaged", "evaluate",
)  # fmt: skip


class RollCall:
    """Roll calls of the ranks of `world`, a group of all of them."""

    def __init__(self, world: Group) -> None:
        self._world = world
        self._count = 0

    def __call__(self, call: str, rows: int = 0) -> None:
        """Raise RuntimeError on all ranks if one of them makes another call now.

        rows: of a batch that is shorter than others, for all ranks to have the same
        """
        message = self._differences(call, rows)
        if message:
            raise RuntimeError(message)

    def _differences(self, call: str, rows: int = 0) -> str:
        if self._world.size == 1:
            return ""
        self._count += 1
        backend = self._world.backend
        mine = backend.from_numpy(np.array([rows * len(CALLS) + CALLS.index(call)], dtype=np.int64))
        said = backend.to_numpy(self._world.all_gather(mine))
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

    def at_exit(self) -> None:
        """End the job if this rank ends while others go on."""
        leave_if_failed()
        message = self._differences("exit")
        if message:
            leave(message)
