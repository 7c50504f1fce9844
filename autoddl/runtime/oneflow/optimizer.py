"""A OneFlow optimizer, and what it keeps of parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import oneflow as flow

from ..backend import Kept
from ..update.parameters import state_kind
from .parameters import local_part

# OneFlow's names of what it keeps -> those in a checkpoint, which PyTorch has: it goes on from it
_FILED = {"momentum_buf": "momentum_buffer"}
_OWN = {filed: own for own, filed in _FILED.items()}


class FlowOptimizer:
    """See `runtime.backend.Optimizer`. The state is what OneFlow's own `state_dict` reads."""

    def __init__(self, own: flow.optim.Optimizer) -> None:
        self.own: Any = own
        self.kind = state_kind(own)

    @property
    def defaults(self) -> Mapping[str, Any]:
        return self.own._default_options

    @property
    def groups(self) -> Sequence[Mapping[str, Any]]:
        return [group.options for group in self.own.param_groups]

    def step(self) -> None:
        self.own.step()

    @property
    def steps(self) -> int:
        return self.own._state["step"]

    @steps.setter
    def steps(self, count: int) -> None:
        self.own._state["step"] = count

    def read(self, parameter: Any) -> Kept:
        own: dict[str, Any] = self.own._state.get(parameter, {})
        tensors = {
            _FILED.get(name, name): local_part(value)
            for name, value in own.items()
            if isinstance(value, flow.Tensor) and value.shape == parameter.shape
        }
        group = self._group(parameter)
        return Kept.of(tensors, group.options if group else {})

    def write(self, parameter: Any, kept: Kept) -> None:
        own = self.own._state.setdefault(parameter, {})
        given = {_OWN.get(name, name): local for name, local in kept.tensors.items()}
        for name, local in given.items():
            if name not in own:
                own[name] = flow.zeros_like(parameter)
            with flow.no_grad():
                local_part(own[name]).copy_(local)
        for name in [name for name in own if name not in given]:
            del own[name]
        group = self._group(parameter)
        if group is not None:
            kept.put_options(group)

    def _group(self, parameter: Any) -> Any:
        """The parameter group that it is in, if it is in one."""
        for group in self.own.param_groups:
            if any(one is parameter for one in group.parameters):
                return group
        return None
