"""What a run of layers costs on one part of the cluster, as a pipeline stage."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StagePrice:
    """What a run of layers costs on one sub-mesh.

    forward_s, backward_s: of one micro-batch; once_s: once an iteration
    fixed_bytes: parameters and their state; stash_bytes: what each micro-batch in flight holds
    work_bytes: what is there for one micro-batch at a time
    """

    forward_s: float
    backward_s: float
    once_s: float = 0.0
    fixed_bytes: float = 0.0
    stash_bytes: float = 0.0
    work_bytes: float = 0.0

    def memory_bytes(self, in_flight: int) -> float:
        return self.fixed_bytes + in_flight * self.stash_bytes + self.work_bytes
