"""What moves elements and computes nothing."""

import autograd.numpy as np

from .registry import op


@op("reshape")
def _reshape(inputs, attrs, shard):
    return (inputs[0].reshape(attrs["shape"]),)


@op("squeeze")
def _squeeze(inputs, attrs, shard):
    return (np.squeeze(inputs[0], axis=attrs["axes"]),)


@op("expand_dims")
def _expand_dims(inputs, attrs, shard):
    return (np.expand_dims(inputs[0], attrs["axis"]),)


@op("transpose")
def _transpose(inputs, attrs, shard):
    return (np.transpose(inputs[0], attrs["perm"]),)


@op("expand")
def _expand(inputs, attrs, shard):
    return (inputs[0] * np.ones(attrs["expand_shape"]),)


@op("narrow")
def _narrow(inputs, attrs, shard):
    cut = slice(attrs["start"], attrs["start"] + attrs["length"])
    return (inputs[0][(slice(None),) * attrs["dim"] + (cut,)],)


@op("slice")
def _slice(inputs, attrs, shard):
    cuts = zip(attrs["start"], attrs["stop"], attrs["step"], strict=True)
    return (inputs[0][tuple(slice(*cut) for cut in cuts)],)


@op("slice_update")
def _slice_update(inputs, attrs, shard):
    ref, value = inputs
    cuts = zip(attrs["start"], attrs["stop"], attrs["step"], strict=True)
    numbers = np.arange(ref.size).reshape(ref.shape)
    numbers[tuple(slice(*cut) for cut in cuts)] = ref.size + np.arange(value.size).reshape(
        value.shape
    )
    return (np.concatenate([ref.ravel(), value.ravel()])[numbers],)


@op("unfold_tensor")
def _unfold_tensor(inputs, attrs, shard):
    (x,), dim, size = inputs, attrs["dimension"], attrs["size"]
    starts = range(0, x.shape[dim] - size + 1, attrs["step"])
    places = np.array([range(start, start + size) for start in starts])
    return (np.moveaxis(x[(slice(None),) * dim + (places,)], dim + 1, -1),)


@op("concat")
def _concat(inputs, attrs, shard):
    return (np.concatenate(inputs, axis=attrs["axis"]),)


@op("stack")
def _stack(inputs, attrs, shard):
    return (np.stack(inputs, axis=attrs["axis"]),)


@op("roll")
def _roll(inputs, attrs, shard):
    (x,) = inputs
    for shift, dim in zip(attrs["shifts"], attrs["dims"], strict=True):
        x = np.roll(x, shift, axis=dim)
    return (x,)


@op("flip")
def _flip(inputs, attrs, shard):
    (dim,) = attrs["dims"]
    return (inputs[0][(slice(None),) * dim + (slice(None, None, -1),)],)


@op("tril", "triu")
def _triangle(inputs, attrs, shard):
    (x,) = inputs
    mask = (np.tril if shard.op.kind == "tril" else np.triu)(np.ones(x.shape), attrs["diagonal"])
    return (x * mask,)
