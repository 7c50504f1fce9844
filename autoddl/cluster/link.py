"""The alpha-beta model of a link (AutoDDL section 3.1): n bytes take alpha + n beta seconds.

A collective is several messages, one after the other, and on real machines starting it costs
something too, whatever its size and however many devices take part:

    seconds = call + messages alpha + bytes beta

`Link.seconds` computes it. The paper's model is the one with call = 0. A transfer from one device
to one other is not started as a collective is, and has a latency of its own.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """What a link costs, in one direction.

    alpha_s:         seconds per message
    beta_s_per_byte: seconds per byte
    call_s:          seconds of starting one collective
    transfer_s:      seconds of a transfer between two devices beside its bytes; None: alpha_s
    """

    alpha_s: float
    beta_s_per_byte: float
    call_s: float = 0.0
    transfer_s: float | None = None

    @property
    def bandwidth_bytes_per_s(self) -> float:
        return 1.0 / self.beta_s_per_byte

    @property
    def transfer_latency_s(self) -> float:
        return self.alpha_s if self.transfer_s is None else self.transfer_s

    def transfer_seconds(self, volume_bytes: float) -> float:
        """`volume_bytes` from one device to one other."""
        return self.transfer_latency_s + volume_bytes * self.beta_s_per_byte

    def seconds(self, messages: float, volume_bytes: float) -> float:
        """One collective of `messages` messages in turn that carry `volume_bytes` in all."""
        return self.call_s + messages * self.alpha_s + volume_bytes * self.beta_s_per_byte
