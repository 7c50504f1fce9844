"""Padding, by a value or by the tensor's own elements."""

import autograd.numpy as np

from .registry import op


def _taken(mode):
    """Padding with elements of the tensor itself: each output element's place in it."""

    def run(inputs, attrs, shard):
        (x,) = inputs
        before_after = np.reshape(attrs["padding"], (-1, 2))[::-1]  # counted from the last dim
        for dim, widths in enumerate(before_after, start=x.ndim - len(before_after)):
            places = np.pad(np.arange(x.shape[dim]), tuple(widths), mode=mode)
            x = x[(slice(None),) * dim + (places,)]
        return (x,)

    return run


op("reflection_pad1d", "reflection_pad2d")(_taken("reflect"))
op("replication_pad1d", "replication_pad2d")(_taken("edge"))


@op("pad")
def _pad(inputs, attrs, shard):
    widths = list(zip(attrs["padding_before"], attrs["padding_after"], strict=True))
    value = attrs["floating_constant_value"]
    return (np.pad(inputs[0], widths, mode="constant", constant_values=value),)
