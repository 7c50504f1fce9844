"""The model as one process would have it: gathered from all parts, and given back to them.

Whole values go one by one: of each tensor a rank has the whole only for a moment. They have the
model's own names and know nothing of placements. All that training goes on from is not gathered,
but saved by each rank (`checkpoint`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .._files import expect
from ..plans import Plan
from .backend import Tensor, dtype_of
from .part import Job, Part
from .traced import Traced
from .update.update import Update


def holders(plan: Plan, names: Iterable[str]) -> dict[str, int | None]:
    """By name of a tensor of the model the first part that has it; None if the graph reads none.

    Of BatchNorm's counter, which is no operator, the part that has its moving mean.
    """
    owner: dict[str, int] = {}
    for n, stage in enumerate(plan.stages):
        for op in stage.graph.ops:
            if op.kind in ("param", "buffer"):
                owner.setdefault(op.attrs["name"], n)
    return {
        name: owner.get(name, owner.get(f"{name.rpartition('.')[0]}.running_mean"))
        for name in dict.fromkeys(names)
    }


class WholeState:
    """What `parts`, this rank's, hold of the model, and `update` of its averages.

    All methods are called by all ranks together.
    """

    def __init__(self, traced: Traced, job: Job, parts: Mapping[int, Part], update: Update) -> None:
        self._keys = traced.keys
        self._holders = holders(job.plan, traced.keys.values())
        ops = (op for stage in job.plan.stages for op in stage.graph.ops)
        self._read = {op.attrs["name"] for op in ops if op.kind in ("param", "buffer")}
        self._job = job
        self._parts = parts
        self._update = update
        self._backend = job.groups.backend

    def model(self) -> Iterator[tuple[str, Tensor]]:
        """The model's tensors by name, whole on every rank; tied ones once."""
        for name, number in self._holders.items():
            yield name, self._whole(name, number)

    def _whole(self, name: str, number: int | None) -> Tensor:
        """A tensor of the model, from the part that holds it."""
        if number is None:
            return next(iter(self._parts.values())).state.get(name)
        part = self._parts.get(number)
        if self._job.plan.num_stages == 1:
            assert part is not None
            return part.state.get(name)
        value = self._empty(name) if part is None else part.state.get(name)
        return self._backend.broadcast(value, self._job.ranks[number][0])

    def _empty(self, name: str) -> Tensor:
        like = self._job.whole[name]
        return self._backend.zeros(tuple(like.shape), dtype_of(like))

    def check_model(self, values: Mapping[str, Any]) -> None:
        """ValueError if a name is missing or unknown, or a shape is another."""
        names = self._keys
        expect(values, Mapping, "load_state_dict takes a dict from names to tensors")
        missing, unknown = sorted(names.keys() - values), sorted(values.keys() - names)
        if missing or unknown:
            raise ValueError(
                f"the state does not fit the model: missing {missing[:5]}, unknown {unknown[:5]}"
            )
        for key, name in names.items():
            expected, given = tuple(self._job.whole[name].shape), values[key]
            found = tuple(getattr(given, "shape", ())) if hasattr(given, "shape") else type(given)
            if found != expected:
                raise ValueError(f"{key}: expected shape {expected}, got {found}")

    def set_model(self, values: Mapping[str, Tensor]) -> None:
        """Take over rank 0's values by name; the others' count for nothing."""
        for name in self._holders:
            value = values[name] if self._backend.rank == 0 else self._empty(name)
            value = self._backend.broadcast(value, 0)
            for part in self._parts.values():  # what others have is not the user's model's to take
                if name in part.state.stored or name not in self._read:
                    part.state.set(name, value)
        if self._update.average is not None:
            self._update.average.restart()
