"""The alpha-beta model of a link (AutoDDL section 3.1): n bytes take alpha + n beta seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """alpha_s: seconds per message; beta_s_per_byte: seconds per byte, in one direction."""

    alpha_s: float
    beta_s_per_byte: float

    @property
    def bandwidth_bytes_per_s(self) -> float:
        return 1.0 / self.beta_s_per_byte

    def seconds(self, messages: float, volume_bytes: float) -> float:
        """Time of `messages` messages, one after the other, that carry `volume_bytes` in all."""
        return messages * self.alpha_s + volume_bytes * self.beta_s_per_byte
