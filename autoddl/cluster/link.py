"""The alpha-beta model of a link (AutoDDL section 3.1): n bytes take alpha + n beta seconds.

A collective sends several messages one after the other, and on real machines starting it costs a
fixed time as well, independent of its size and of the number of devices:

    seconds = call + messages alpha + bytes beta

`Link.seconds` computes this; the paper's model is the case call = 0. A point-to-point transfer is
started differently from a collective and has a latency of its own.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """What it costs to use a link, in one direction.

    alpha_s:         seconds per message
    beta_s_per_byte: seconds per byte
    call_s:          seconds to start one collective
    transfer_s:      latency of a point-to-point transfer, in seconds; None takes alpha_s
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
        """Seconds to send `volume_bytes` from one device to one other."""
        return self.transfer_latency_s + volume_bytes * self.beta_s_per_byte

    def seconds(self, messages: float, volume_bytes: float) -> float:
        """Seconds of one collective: `messages` messages in turn, `volume_bytes` in all."""
        return self.call_s + messages * self.alpha_s + volume_bytes * self.beta_s_per_byte
