"""Dynamic loss scaling: small float16 gradients neither vanish, nor do large ones pass unnoticed.

The gradient of the loss begins as S instead of 1, and every gradient is divided by S in float32
before the update. If any of them, on any rank, is not finite, no rank updates and S is halved;
after `growth_interval` updates in a row S is doubled. With S a power of two nothing is rounded.
bfloat16 reaches as far as float32, so its gradients need no scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..backend import Tensor
from ..comm.groups import Group
from .finite import all_finite


@dataclass
class LossScaler:
    """`scale`: S; `good_steps`: updates since it changed; `skipped`: steps without an update."""

    scale: float = 2.0**16
    growth_interval: int = 2000
    good_steps: int = 0
    skipped: int = 0

    def __post_init__(self) -> None:
        if not self.scale > 0 or self.growth_interval < 1:
            raise ValueError(
                "a loss scale must be positive and grow after at least one step, got "
                f"scale={self.scale}, growth_interval={self.growth_interval}"
            )

    def unscale(self, gradients: Sequence[dict[str, Tensor]], world: Group) -> bool:
        """Divide this rank's parts of the gradients by S; True if those of all ranks are finite.

        gradients: by name, of each part of the model
        """
        finite = all_finite((x for part in gradients for x in part.values()), world)
        if finite:
            for part in gradients:
                for name in part:  # not in place: two names may have one tensor
                    part[name] = part[name] * (1.0 / self.scale)
        self._count(finite)
        return finite

    def _count(self, finite: bool) -> None:
        if not finite:
            self.scale, self.good_steps, self.skipped = self.scale / 2, 0, self.skipped + 1
            return
        self.good_steps += 1
        if self.good_steps == self.growth_interval:
            self.scale, self.good_steps = self.scale * 2, 0
