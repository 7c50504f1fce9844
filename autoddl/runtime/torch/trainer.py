"""A trainer on PyTorch, whose model torch's own tools can take."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.utils import clip_grad  # type: ignore[import-not-found]

from ...plans.figures import figures
from ...sbp.layout import is_chunk
from ..jobs.guard import inside
from ..state import Stored
from ..tracing.instead import instead
from ..trainer import Trainer
from ..update.update import Hook
from ..whole_state import holders


class TorchTrainer(Trainer):
    """See `Trainer`."""

    def step(self, *batch: Any) -> torch.Tensor:
        _check_modes("step")
        return super().step(*batch)

    def after_backward(self, hook: Hook) -> Hook:
        if not callable(hook) or self.plan.num_stages == 1 and not self._has_parts():
            return super().after_backward(hook)

        @functools.wraps(hook)
        def guarded(named: Any) -> Any:
            with instead(clip_grad, "_get_total_norm", _no_norm):
                return hook(named)

        super().after_backward(guarded)
        return hook

    def _has_parts(self) -> bool:
        return any(parameter.is_part for parameter in self.parameters().values())

    def eval_step(self, *inputs: Any) -> Any:
        _check_modes("eval_step")
        return super().eval_step(*inputs)

    def evaluate(self, batches: Iterable[Any], metrics: Any = None) -> dict[str, float]:
        _check_modes("evaluate")
        return super().evaluate(batches, metrics)

    @inside("module")
    def module(self) -> nn.Module:
        """A copy of the model whose parameters and buffers are `DTensor`s, placed as planned.

        They are the trainer's own memory: `torch.distributed.checkpoint` saves the module's
        `state_dict`, each rank its parts, and training goes on from what it loads into it, under
        any plan or none; averages stay what they are. A step gives buffers new memory: ask again
        after it. On one device they are plain tensors, in stages None where another stage has
        them. All ranks call it.

        Raises ValueError where a `DTensor` cannot be placed so, or two stages share a parameter.
        """
        self._call_training("module")
        for tensor in figures(self.plan).travel.shared_params:
            raise ValueError(
                f"two stages have {tensor}, which a module has once; use trainer.save or "
                "trainer.state_dict"
            )
        for part in self._parts.values():
            part.state.settle()
        named = {**self._traced.params, **self._traced.buffers}
        parts = holders(self.plan, named)
        found = {id(x): self._shared(name, x, parts[name]) for name, x in named.items()}
        made = copy.deepcopy(self._traced.model, {id(x): x for x in named.values()})
        for module in made.modules():
            for own in (module._parameters, module._buffers):
                own.update({key: found[id(x)] for key, x in own.items() if x is not None})
        return made

    def _shared(self, name: str, own: torch.Tensor, number: int | None) -> torch.Tensor | None:
        """What stands in the module for the user's `own` tensor, which part `number` has."""
        if number is not None and number not in self._parts:
            return None
        state = self._parts[self.stage if number is None else number].state
        stored = state.stored.get(name)
        x = state.unread(name) if stored is None else self._dtensor(name, stored)
        return nn.Parameter(x, own.requires_grad) if isinstance(own, nn.Parameter) else x

    def _dtensor(self, name: str, stored: Stored) -> torch.Tensor:
        mesh = self._job.groups.mesh
        if mesh.size == 1:
            return stored.local
        if not all(is_chunk(stored.shape, stored.nd, mesh, rank) for rank in range(mesh.size)):
            raise ValueError(
                f"{name} of shape {stored.shape} is cut into other parts on {mesh} devices than a "
                "DTensor has; use trainer.save and trainer.state_dict"
            )
        places = [Shard(p.dim) if p.is_split else Replicate() for p in stored.nd]
        like = torch.empty(stored.shape, device="meta")
        return DTensor.from_local(
            stored.local, self._meshes[self.stage], places, shape=like.shape, stride=like.stride()
        )

    @cached_property
    def _meshes(self) -> list[DeviceMesh]:
        """Of the stages, a dimension for each axis of the plan; all ranks make them all."""
        kind = self._backend.facts.device
        pairs = zip(self._job.ranks, self.plan.stages, strict=True)
        return [
            DeviceMesh(kind, torch.tensor(ranks).view(stage.mesh.extents)) for ranks, stage in pairs
        ]


def _no_norm(*given: Any, **options: Any) -> Any:
    raise ValueError(
        "clip_grad_norm_ in a hook would take the norm of this rank's parts of gradients alone; "
        "parallelize(clip_grad_norm=1.0) takes that of the whole model"
    )


def _check_modes(call: str) -> None:
    """ValueError where torch's operators compute otherwise than the plan has them do."""
    if any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
        raise ValueError(
            f"trainer.{call} inside of torch.autocast: a plan has a precision of its own; call it "
            'outside, and plan with precision="bfloat16"'
        )
