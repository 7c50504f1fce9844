"""What a rank holds of the state that training goes on from, as parts of named tensors.

A part that several ranks have is written by one of them, in turns from tensor to tensor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ...sbp.layout import local_slices
from ..backend import Kept, Tensor
from ..part import Job
from ..part import Part as StagePart
from ..state import Stored, has_turn
from ..traced import Traced
from ..update.update import Update
from ..whole_state import holders
from .folder import Manifest
from .pieces import Part, Reader

_CONSTANT = -1  # part of what a trace has made a buffer of, and what is in no `state_dict`
_MODEL, _KEPT, _AVERAGE = "model", "optimizer", "ema"


class Shards:
    """Of `parts`, this rank's, and of what `update` keeps."""

    def __init__(
        self, traced: Traced, job: Job, parts: Mapping[int, StagePart], update: Update
    ) -> None:
        self._job = job
        self._parts = parts
        self._update = update
        self._backend = job.groups.backend
        self._holders = holders(job.plan, traced.keys.values())
        graph = job.plan.graph
        self._trained = {
            op.attrs["name"] for op in graph.params if op.outputs[0] in graph.needs_grad
        }

    # ---- to be written

    def own(self) -> Iterator[Part]:
        """The parts that this rank is to write. Ranks call it together."""
        for number, part in self._parts.items():
            part.state.settle()
            for turn, (name, stored) in enumerate(part.state.stored.items()):
                is_ours = self._holders.get(name, _CONSTANT) == number
                if is_ours and has_turn(stored.nd, self._job.groups, turn):
                    yield from self._kinds(number, name, stored)
        for name, number in self._holders.items():
            part = self._parts.get(number or 0)
            if part is None or name in part.state.stored:
                continue
            if self._backend.rank == self._job.ranks[number or 0][0]:
                value = part.state.get(name)
                shape = tuple(value.shape)
                yield Part(f"{_MODEL}/{name}", shape, (0,) * len(shape), self._copy(value))

    def _kinds(self, number: int, name: str, stored: Stored) -> Iterator[Part]:
        """The parts of a tensor of the model, and of what belongs to it."""
        part, average = self._parts[number], self._update.average
        start = tuple(one.start for one in self._box(stored))
        found = {_MODEL: stored.local}
        if name in part.trained:
            kept = self._update.optimizer.read(part.trained[name]).tensors
            found |= {f"{_KEPT}/{slot}": local for slot, local in kept.items()}
            if average is not None:
                found[_AVERAGE] = average.of(number, name)
        for kind, local in found.items():
            yield Part(f"{kind}/{name}", stored.shape, start, self._copy(local))

    def _copy(self, local: Tensor) -> np.ndarray:
        return np.array(self._backend.to_numpy(self._backend.detached(local)), order="C")

    def _box(self, stored: Stored) -> tuple[slice, ...]:
        groups = self._job.groups
        return local_slices(stored.shape, stored.nd, groups.mesh, groups.rank)

    def options(self) -> dict[str, Any]:
        """Of the optimizer, by parameter of this rank."""
        return {
            name: self._update.optimizer.read(parameter).options
            for part in self._parts.values() for name, parameter in part.trained.items()
        }  # fmt: skip

    def facts(self) -> dict[str, Any]:
        """The fields of a manifest that all ranks have alike."""
        scaler, run, optimizer = self._update.scaler, self._job.run_state, self._update.optimizer
        return {
            "steps": run.step,
            "seed": run.seed,
            "optimizer": type(optimizer.own).__name__,
            "updates": optimizer.steps,
            "scaler": None if scaler is None else dataclasses.asdict(scaler),
        }

    # ---- back

    def check(self, found: Manifest) -> None:
        """ValueError, the same on every rank, unless it is this model's and this optimizer's."""
        own = type(self._update.optimizer.own).__name__
        if found.optimizer != own:
            raise ValueError(f"the state is that of {found.optimizer}, the optimizer is {own}")
        names = {key.partition("/")[2] for key in found.tensors if _kind(key) == _MODEL}
        missing, unknown = (
            sorted(self._holders.keys() - names),
            sorted(names - self._holders.keys()),
        )
        if missing or unknown:
            raise ValueError(
                f"the state does not fit the model: missing {missing[:5]}, unknown {unknown[:5]}"
            )
        for key, tensor in found.tensors.items():
            expected = tuple(self._job.whole[_name(key)].shape)
            if tensor.shape != expected:
                raise ValueError(f"{key}: expected shape {expected}, got {tensor.shape}")
        averaged = {_name(key) for key in found.tensors if _kind(key) == _AVERAGE}
        if averaged and self._update.average is not None and averaged != self._trained:
            raise ValueError("the state's averages are those of other parameters")

    def take(self, found: Manifest, reader: Reader) -> bool:
        """Go on from a state that fits. True if it has averages that nobody keeps here."""
        optimizer, average, read = self._update.optimizer, self._update.average, reader.read
        optimizer.steps = found.updates
        slots: dict[str, list[str]] = {}
        for key in found.tensors:
            if _kind(key) == _KEPT:
                slots.setdefault(_name(key), []).append(key.split("/", 2)[1])
        for number, part in self._parts.items():
            for name, stored in part.state.stored.items():
                if name not in self._holders:
                    continue
                box = self._box(stored)

                def local(kind: str, name: str = name, box: tuple[slice, ...] = box) -> Tensor:
                    return self._backend.from_numpy(read(f"{kind}/{name}", box))

                part.state.set_local(name, local(_MODEL))
                if name in part.trained and name in found.options:
                    kept = {slot: local(f"{_KEPT}/{slot}") for slot in slots.get(name, ())}
                    optimizer.write(part.trained[name], Kept(kept, found.options[name]))
                if average is not None and name in part.trained:
                    kind = _AVERAGE if f"{_AVERAGE}/{name}" in found.tensors else _MODEL
                    self._backend.write(average.of(number, name), local(kind))
        self._take_unread(found, reader)
        if self._update.scaler is not None and found.scaler is not None:
            vars(self._update.scaler).update(found.scaler)
        self._job.run_state.step, self._job.run_state.seed = found.steps, found.seed
        return average is None and any(_kind(key) == _AVERAGE for key in found.tensors)

    def _take_unread(self, found: Manifest, reader: Reader) -> None:
        """What the model's operators do not read."""
        for name, number in self._holders.items():
            for v, part in self._parts.items():
                if name not in part.state.stored and number in (None, v):
                    shape = found.tensors[f"{_MODEL}/{name}"].shape
                    whole = reader.read(f"{_MODEL}/{name}", [slice(0, n) for n in shape])
                    part.state.set(name, self._backend.from_numpy(whole))


def _kind(key: str) -> str:
    return key.partition("/")[0]


def _name(key: str) -> str:
    """Of the tensor of the model to which it belongs."""
    return key.split("/", 2)[2] if _kind(key) == _KEPT else key.partition("/")[2]
