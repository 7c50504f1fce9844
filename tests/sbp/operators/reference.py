"""The references by operator kind, and the form of them that the oracle takes."""

from collections.abc import Callable

import autograd.numpy as np
from autograd import grad

from autoddl.sbp.oracle import Kernel

FORWARD: dict[str, Callable] = {}


def kernel(kind: str) -> Kernel:
    """The forward function of `kind` with its pullback."""
    forward = FORWARD[kind]

    def run(inputs, attrs, shard):
        floats = [i for i, x in enumerate(inputs) if x.dtype.kind == "f"]

        def weighted_sum(values, grads):
            merged = list(inputs)
            for i, value in zip(floats, values, strict=True):
                merged[i] = value
            outs = forward(merged, attrs, shard)
            return sum(np.sum(out * g) for out, g in zip(outs, grads, strict=True) if g is not None)

        def pullback(grads):
            found = grad(weighted_sum)(tuple(inputs[i] for i in floats), grads)
            by_input = dict(zip(floats, found, strict=True))
            return [by_input.get(i) for i in range(len(inputs))]

        return forward(inputs, attrs, shard), pullback

    return run


def op(*kinds):
    def register(function):
        for kind in kinds:
            assert kind not in FORWARD, kind
            FORWARD[kind] = function
        return function

    return register


def table(functions):
    """Operators of one output, each a function of the inputs and the attributes."""
    for kind, function in functions.items():
        op(kind)(lambda inputs, attrs, shard, function=function: (function(*inputs, attrs),))
