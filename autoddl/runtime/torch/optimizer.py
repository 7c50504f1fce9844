"""A torch optimizer, and what it keeps of parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..backend import Kept
from ..update.parameters import state_kind

_COUNT = "step"  # of updates: optimizers keep it with each parameter, those without do not count


class TorchOptimizer:
    """See `runtime.backend.Optimizer`. The state is what torch's own `state_dict` reads."""

    def __init__(self, own: torch.optim.Optimizer) -> None:
        self.own: Any = own
        self.kind = state_kind(own)
        self.steps = 0

    @property
    def steps(self) -> int:
        """How many it has done."""
        return self._steps

    @steps.setter
    def steps(self, count: int) -> None:
        self._steps = count
        for state in self.own.state.values():
            if _COUNT in state:
                state[_COUNT] = _as_count(state[_COUNT], count)

    @property
    def defaults(self) -> Mapping[str, Any]:
        return self.own.defaults

    @property
    def groups(self) -> Sequence[Mapping[str, Any]]:
        return [{k: v for k, v in g.items() if k != "params"} for g in self.own.param_groups]

    def step(self) -> None:
        self._steps += 1
        self.own.step()

    def read(self, parameter: Any) -> Kept:
        tensors = {
            name: value
            for name, value in self.own.state.get(parameter, {}).items()
            if _is_part(name, value, parameter)
        }
        group = self._group(parameter)
        options = {} if group is None else {k: v for k, v in group.items() if k != "params"}
        return Kept.of(tensors, options)

    def write(self, parameter: Any, kept: Kept) -> None:
        own = self.own.state[parameter]
        for name in [n for n, v in own.items() if _is_part(n, v, parameter)]:
            if name not in kept.tensors:
                del own[name]
        for name, local in kept.tensors.items():
            own[name] = local.detach().clone()
        if kept.tensors and self.kind in ("adam", "adamw") and _COUNT not in own:
            own[_COUNT] = torch.tensor(float(self._steps))
        group = self._group(parameter)
        if group is not None:
            kept.put_options(group)

    def _group(self, parameter: Any) -> Any:
        """The parameter group that it is in, if it is in one."""
        for group in self.own.param_groups:
            if any(one is parameter for one in group["params"]):
                return group
        return None


def _as_count(old: Any, count: int) -> Any:
    return torch.full_like(old, count) if isinstance(old, torch.Tensor) else count


def _is_part(name: str, value: Any, parameter: Any) -> bool:
    """Whether a value of the state is placed as the parameter is."""
    is_tensor = isinstance(value, torch.Tensor) and value.shape == parameter.shape
    return is_tensor and name != _COUNT
