"""A cluster in a box: hosts as network namespaces of one machine, with shaped links."""

from .box import Box
from .counters import LinkBytes
from .spec import BoxSpec, format_rate, parse_rate

__all__ = ["Box", "BoxSpec", "LinkBytes", "format_rate", "parse_rate"]
