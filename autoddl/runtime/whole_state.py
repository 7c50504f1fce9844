"""The state of a job as one process would have it: gathered from all parts, and given back to them.

Whole values go one by one: of each tensor a rank has the whole only for a moment, and only rank 0
keeps what it needs of it. They have the model's own names and know nothing of placements, so that
what one mesh has left another takes up.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from .backend import Kept, Tensor, dtype_of
from .jobs.session import broadcast_text, share_text
from .part import Job, Part
from .state import shard
from .traced import Traced
from .update.update import Update


class WholeState:
    """What `parts`, this rank's, hold of the model, and `update` of the optimizer's state.

    All methods are called by all ranks together.
    """

    def __init__(self, traced: Traced, job: Job, parts: Mapping[int, Part], update: Update) -> None:
        self._keys = traced.keys
        self._names = tuple(dict.fromkeys(traced.keys.values()))
        self._job = job
        self._parts = parts
        self._update = update
        self._backend = job.groups.backend
        self._owner: dict[str, int] = {}
        for n, stage in enumerate(job.plan.stages):
            for op in stage.graph.ops:
                if op.kind in ("param", "buffer"):
                    self._owner.setdefault(op.attrs["name"], n)

    @property
    def _trained(self) -> list[str]:
        """The names of all parameters that get gradients, of the whole model."""
        graph = self._job.plan.graph
        return [op.attrs["name"] for op in graph.params if op.outputs[0] in graph.needs_grad]

    # ---- the model

    def model(self) -> Iterator[tuple[str, Tensor]]:
        """The model's tensors by name, whole on every rank; tied ones once."""
        for name in self._names:
            yield name, self._whole(name)

    def _whole(self, name: str) -> Tensor:
        """A tensor of the model, from the part that holds it."""
        # BatchNorm's counter is no operator; it is where the moving mean is
        owner = self._owner
        number = owner.get(name, owner.get(f"{name.rpartition('.')[0]}.running_mean"))
        if number is None:
            return next(iter(self._parts.values())).state.get(name)
        part = self._parts.get(number)
        like = self._job.whole[name]
        value = None if part is None else part.state.get(name)
        return self._from_part(value, number, tuple(like.shape), dtype_of(like))

    def _from_part(
        self, value: Tensor | None, number: int, shape: tuple[int, ...], dtype: str
    ) -> Tensor:
        """What the ranks of a part have, on every rank; the others give None."""
        if self._job.plan.num_stages == 1:
            assert value is not None
            return value
        if value is None:
            value = self._backend.zeros(shape, dtype)
        return self._backend.broadcast(value, self._job.ranks[number][0])

    def check_model(self, values: Mapping[str, Any]) -> None:
        """ValueError if a name is missing or unknown, or a shape is another."""
        names = self._keys
        missing, unknown = sorted(names.keys() - values), sorted(values.keys() - names)
        if missing or unknown:
            raise ValueError(
                f"the state does not fit the model: missing {missing[:5]}, unknown {unknown[:5]}"
            )
        for key, name in names.items():
            self._check_shape(key, values[key], name)

    def _check_shape(self, what: str, value: Any, name: str) -> None:
        expected = tuple(self._job.whole[name].shape)
        if tuple(value.shape) != expected:
            raise ValueError(f"{what}: expected shape {expected}, got {tuple(value.shape)}")

    def set_model(self, values: Mapping[str, Any] | None) -> None:
        """Take over rank 0's values, tensors or arrays; the others' count for nothing."""
        self._set(values, self._names)
        if self._update.average is not None:
            self._update.average.restart()

    def _set(self, values: Mapping[str, Any] | None, names: Iterable[str]) -> None:
        for name in names:
            value = self._from_first(values and values[name], name)
            for part in self._parts.values():
                part.state.set(name, value)

    def _from_first(self, value: Any, name: str, dtype: str | None = None) -> Tensor:
        """Rank 0's value, of the shape of the model's tensor `name`, on every rank."""
        like = self._job.whole[name]
        if self._backend.rank != 0 or value is None:
            value = self._backend.zeros(tuple(like.shape), dtype or dtype_of(like))
        elif isinstance(value, np.ndarray):
            value = self._backend.from_numpy(np.array(value))
        return self._backend.broadcast(value, 0)

    # ---- the training

    def training(self) -> dict[str, Any] | None:
        """Everything that training goes on from, on rank 0; None on the others."""
        arrays = {}
        for name, value in self.model():
            arrays[name] = self._kept_array(value)
        optimizer, averages = self._optimizer(), self._averages()
        if self._backend.rank != 0:
            return None
        scaler, run = self._update.scaler, self._job.run_state
        return {
            "model": {key: arrays[name] for key, name in self._keys.items()},
            "optimizer": optimizer,
            "ema": averages,
            "scaler": None if scaler is None else dataclasses.asdict(scaler),
            "steps": run.step,
            "seed": run.seed,
        }

    def _kept_array(self, value: Tensor) -> np.ndarray | None:
        """A copy on rank 0, whatever happens to the tensor; the others keep nothing."""
        return np.array(self._backend.to_numpy(value)) if self._backend.rank == 0 else None

    def _averages(self) -> dict[str, np.ndarray | None] | None:
        """Of the trained parameters; None if none are kept."""
        average = self._update.average
        if average is None:
            return None
        with average.in_place():
            return {name: self._kept_array(self._whole(name)) for name in self._trained}

    def _optimizer(self) -> dict[str, Any]:
        """What the optimizers of all parts keep, by parameter."""
        optimizer = self._update.optimizer
        kept: dict[str, dict[str, Any]] = {}
        options: dict[str, Any] = {}
        for number, ranks in enumerate(self._job.ranks):
            part = self._parts.get(number)
            read = {n: optimizer.read(p) for n, p in part.trained.items()} if part else {}
            text = json.dumps({
                name: [{k: dtype_of(x) for k, x in one.tensors.items()}, one.options]
                for name, one in read.items()
            })  # fmt: skip
            told = json.loads(broadcast_text(text, ranks[0], self._backend))
            for name, (dtypes, given) in told.items():
                if name in options:
                    continue  # tied: another part has the same
                shape = tuple(self._job.whole[name].shape)
                options[name], kept[name] = given, {}
                for slot, dtype in dtypes.items():
                    local = None if part is None else read[name].tensors[slot]
                    value = None if part is None else part.state.gather(name, local)
                    whole = self._from_part(value, number, shape, dtype)
                    kept[name][slot] = self._kept_array(whole)
        own = type(optimizer.own).__name__
        return {"name": own, "steps": optimizer.steps, "kept": kept, "options": options}

    def set_training(self, state: Mapping[str, Any] | None) -> None:
        """Go on from rank 0's `training`. ValueError on every rank if it does not fit."""
        told = json.loads(share_text(lambda: json.dumps(self._described(state)), self._backend))
        if told["averaged"] and self._update.average is not None:
            self._set(state and state["ema"], told["averaged"])  # for a moment
            self._update.average.restart()
            self._set(state and state["model"], self._names)
        else:
            self.set_model(state and state["model"])
        optimizer = self._update.optimizer
        optimizer.steps = told["optimizer_steps"]
        for name, (dtypes, options) in told["kept"].items():
            given = state["optimizer"]["kept"][name] if state else {}
            whole = {k: self._from_first(given.get(k), name, dtypes[k]) for k in dtypes}
            for part in self._parts.values():
                if name in part.trained:
                    nd, groups = part.state.stored[name].nd, self._job.groups
                    local = {k: shard(value, nd, groups) for k, value in whole.items()}
                    optimizer.write(part.trained[name], Kept(local, options))
        if self._update.scaler is not None and told["scaler"] is not None:
            vars(self._update.scaler).update(told["scaler"])
        self._job.run_state.step, self._job.run_state.seed = told["steps"], told["seed"]

    def _described(self, state: Mapping[str, Any] | None) -> dict[str, Any]:
        """What all ranks have to know of the state before its values come; rank 0 checks it."""
        needed = {"model", "optimizer", "ema", "scaler", "steps", "seed"}
        if state is None or not needed <= state.keys():
            raise ValueError("load_train_state takes what train_state has given, on rank 0")
        self.check_model(state["model"])
        optimizer, own = state["optimizer"], type(self._update.optimizer.own).__name__
        if optimizer["name"] != own:
            raise ValueError(f"the state is that of {optimizer['name']}, the optimizer is {own}")
        for name, slots in optimizer["kept"].items():
            for slot, value in slots.items():
                self._check_shape(f"{slot} of {name}", value, name)
        self._check_averages(state["ema"])
        kept = {
            name: [{k: str(x.dtype) for k, x in slots.items()}, optimizer["options"][name]]
            for name, slots in optimizer["kept"].items()
        }
        told = {k: state[k] for k in ("scaler", "steps", "seed")}
        averaged = list(state["ema"] or ())
        return {
            **told, "kept": kept, "averaged": averaged, "optimizer_steps": optimizer["steps"]
        }  # fmt: skip

    def _check_averages(self, averages: Mapping[str, Any] | None) -> None:
        if averages is None:
            return
        if self._update.average is None:
            raise ValueError(
                "the state has averaged parameters, and this trainer keeps none: give parallelize "
                "an ema_decay, or drop them with state['ema'] = None"
            )
        if averages.keys() != set(self._trained):
            raise ValueError("the state's averages are those of other parameters")
        for name, value in averages.items():
            self._check_shape(f"the average of {name}", value, name)
