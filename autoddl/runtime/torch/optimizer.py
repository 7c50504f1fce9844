"""A torch optimizer, and what it keeps of parameters."""

from __future__ import annotations

import contextlib
import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..backend import Kept
from ..update.parameters import check_by_element, state_kind

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
        state = self.own.state.get(parameter, {})
        tensors = {n: value for n, value in state.items() if _is_part(n, value, parameter)}
        numbers = {n: _as_number(value) for n, value in state.items() if n not in tensors}
        for name, value in numbers.items():
            if isinstance(value, torch.Tensor):
                raise ValueError(
                    f"{type(self.own).__name__} keeps {name} of shape {tuple(value.shape)} of a "
                    f"parameter of shape {tuple(parameter.shape)}; a checkpoint has numbers, and "
                    "tensors of that shape: take another optimizer, or save its state yourself"
                )
        group = self._group(parameter) or {}
        options = {k: _as_number(v) for k, v in group.items() if k != "params"}
        return Kept.of(tensors, {**options, **{f"state/{n}": v for n, v in numbers.items()}})

    def write(self, parameter: Any, kept: Kept) -> None:
        own = self.own.state[parameter]
        for name in [n for n, v in own.items() if _is_part(n, v, parameter)]:
            if name not in kept.tensors:
                del own[name]
        for name, local in kept.tensors.items():
            own[name] = local.detach().clone()
        numbers = kept.numbers
        if kept.tensors and self.kind in ("adam", "adamw"):  # other frameworks count once for all
            numbers.setdefault(_COUNT, float(self._steps))
        own.update({n: torch.tensor(v) if type(v) is float else v for n, v in numbers.items()})
        group = self._group(parameter)
        if group is not None:
            rates = {n: v for n, v in group.items() if isinstance(v, torch.Tensor)}
            kept.put_options(group)
            for name, rate in rates.items():  # a compiled step reads its memory
                group[name] = rate.fill_(group[name])

    def _group(self, parameter: Any) -> Any:
        """The parameter group that it is in, if it is in one."""
        groups = self.own.param_groups
        return next((g for g in groups if any(one is parameter for one in g["params"])), None)


def check_parts(own: torch.optim.Optimizer) -> None:
    """ValueError if it is to change parts of parameters and cannot; see `check_by_element`."""
    for group in own.param_groups:
        if any(parameter.is_part for parameter in group["params"]):
            with contextlib.suppress(TypeError, RuntimeError, LookupError):  # it takes no such step
                check_by_element(type(own).__name__, functools.partial(_change, own, group))


def _change(own: Any, group: Mapping[str, Any], rows: slice, columns: slice) -> torch.Tensor:
    """What two steps of a copy do to a part of a matrix."""
    device, rate = group["params"][0].device, group.get("lr") or 0.1
    start = torch.arange(16, dtype=torch.float64, device=device).view(4, 4).sin()[rows, columns]
    one = torch.nn.Parameter(start.clone())
    copy: Any = object.__new__(type(own))
    copy.__dict__.update(vars(own), state=defaultdict(dict))
    copy.__dict__.pop("step", None)  # a scheduler's, of the optimizer itself
    copy.param_groups = [{**group, "params": [one], "lr": rate}]
    for shift in range(2):
        one.grad = (3 * start + shift).cos()
        copy.step()
    return one.detach() - start


def _as_number(value: Any) -> Any:
    """Of a tensor without dims."""
    return value.item() if isinstance(value, torch.Tensor) and not value.ndim else value


def _as_count(old: Any, count: int) -> Any:
    return torch.full_like(old, count) if isinstance(old, torch.Tensor) else count


def _is_part(name: str, value: Any, parameter: Any) -> bool:
    """Whether a value of the state is placed as the parameter is."""
    is_tensor = isinstance(value, torch.Tensor) and value.shape == parameter.shape
    return is_tensor and name != _COUNT
