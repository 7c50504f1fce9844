"""Random draws. The reference hashes the global position, so that shards see parts of one draw."""

import autograd.numpy as np

from .case import case, out, unit
from .reference import op

CASES = (
    case("", "uniform", (), out(4, 6), shape=(4, 6), dtype="float32", **{"from": -1.0, "to": 3.0}),
    case("", "uniform_int", (), out(4, 6, dtype="int64"), shape=(4, 6), dtype="int64",
         **{"from": 2, "to": 5}),
    case("", "normal", (), out(4, 6), shape=(4, 6), dtype="float32", mean=1.0, std=2.0),
    case("", "exponential", (), out(4, 6), out_shape=(4, 6), dtype="float32", lambd=0.5),
    case("each", "bernoulli", (unit(4, 6),), out(4, 6), p=-1.0, dtype="float32"),
    case("all", "bernoulli", (unit(4, 6),), out(4, 6), p=0.25, dtype="float32"),
    case("", "randperm", (), out(12, dtype="int32"), n=12),
)  # fmt: skip


def hashed(starts, shape, whole):
    """Between 0 and 1, of a shard of a tensor [whole] that begins at `starts`."""
    places = (start + np.arange(n) for start, n in zip(starts, shape, strict=True))
    position = np.ravel_multi_index(np.meshgrid(*places, indexing="ij"), whole)
    return (position * 7919) % 101 / 101


@op("uniform", "uniform_int", "normal", "exponential", "randperm")
def _draw(inputs, attrs, shard):
    (spec,) = shard.op.outputs
    shape = attrs.get("shape") or attrs.get("out_shape") or spec.shape
    drawn = hashed(shard.out_starts[0], shape, spec.shape)
    return (np.argsort(drawn) if "n" in attrs else drawn,)


@op("bernoulli")
def _bernoulli(inputs, attrs, shard):
    (x,) = inputs
    chances = x if attrs["p"] < 0 else attrs["p"]
    return (1.0 * (hashed(shard.in_starts[0], x.shape, shard.op.inputs[0].shape) < chances),)
