"""The machine: devices, links and their numbers, read from a JSON file."""

from .link import Link
from .spec import Cluster, Device

__all__ = ["Cluster", "Device", "Link"]
