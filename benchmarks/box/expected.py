"""What a plan or a step should put on each host's link.

`planned` are the tensors' bytes that the plan counts. OneFlow 0.9.0's socket transport sends four
control messages of 112 bytes for each message of a tensor (who sends what, where it is wanted, the
head of the data, its end), one way or the other; on a link that carries as many messages in as out
that makes `MESSAGE_BYTES` a message. It is the same for every collective, whatever its size.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoddl.plans import Plan
from autoddl.plans.figures import figures
from autoddl.sbp.collectives import COLLECTIVES, Step, nic_bytes, nic_messages
from autoddl.sbp.layout import TensorSpec
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.placement import NdSbp

MESSAGE_BYTES = 4 * 112
ROLL_CALL_BYTES = 8  # a step starts with an all-gather of an int64 of each rank


@dataclass(frozen=True)
class Expected:
    """Bytes that each host sends, and receives; `messages` in which they travel."""

    planned: float
    messages: float

    @property
    def payload(self) -> float:
        """With the transport's control messages, without the headers of the network."""
        return self.planned + MESSAGE_BYTES * self.messages


def of_step(shape: tuple[int, ...], placement: str, step: str, mesh: Mesh) -> Expected:
    """One step of a float32 tensor."""
    parsed = Step.parse(step)
    table = COLLECTIVES.balanced if mesh.shares else COLLECTIVES
    planned = nic_bytes(TensorSpec(shape), NdSbp.parse(placement), [parsed], mesh, table)
    return Expected(planned, nic_messages([parsed], mesh, table))


def of_plan(plan: Plan) -> Expected:
    """One training step, with its roll call."""
    predicted = figures(plan)
    mesh = plan.stage.mesh
    hops = mesh.size - 1 if mesh.nodes > 1 else 0
    return Expected(
        predicted.cost.nic_bytes.total + hops * ROLL_CALL_BYTES,
        predicted.cost.nic_messages + hops,
    )
