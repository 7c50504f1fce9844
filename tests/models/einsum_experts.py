"""Experts as GShard writes them: with one-hot tensors [batch, length, experts, capacity]."""

import oneflow as flow
import oneflow.nn.functional as F

from autoddl.runtime.oneflow.models.moe import Choices, Experts


def one_hots(choices: Choices, experts: int, room: int) -> flow.Tensor:
    """The weights [batch, length, experts, room] with which tokens come back from their places."""
    parts = []
    for which in range(choices.expert.shape[-1]):
        expert, position, weight = (part[:, :, which] for part in choices)
        whom = F.one_hot(expert, experts).to(weight.dtype) * weight.unsqueeze(-1)
        where = F.one_hot(position.clamp(max=room - 1), room).to(weight.dtype)
        parts.append(whom.unsqueeze(-1) * where.unsqueeze(2))
    return sum(parts[1:], parts[0])


class EinsumExperts(Experts):
    """`Experts`, the same but for how tokens go and come back."""

    def mixed(self, x: flow.Tensor, choices: Choices, room: int) -> flow.Tensor:
        combine = one_hots(choices, self.up.shape[0], room)
        dispatch = (combine > 0).to(x.dtype)
        sent = flow.einsum("bsec,bsd->ebcd", dispatch, x)
        return flow.einsum("bsec,ebcd->bsd", combine, self.applied(sent))
