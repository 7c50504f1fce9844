"""Modules whose call is one operator of the graph, though it issues several of OneFlow's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import oneflow.nn as nn


class OneOperator(nn.Module):
    """A module without parameters, called with tensors, that gives one tensor.

    Traced, its call is one operator of `kind`, which needs a rule and a kernel, with `attrs`; run
    as it is, its forward computes the same on one device. A function makes one and calls it: it
    belongs to the module that the function is called in.
    """

    kind: str

    def attrs(self) -> Mapping[str, Any]:
        """The operator's attributes, none of which depends on the batch."""
        return {}
