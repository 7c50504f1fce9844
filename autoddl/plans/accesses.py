"""The fewest elements of its matrices that a device touches which takes part in matrix products.

For C = A B of m n k multiplications divided evenly over p devices, W = m n k / p each:

**With M words of memory a device** (Irony, Toledo, Tiskin, 2004) the words sent and received are

    Q >= W / (2 sqrt(2) sqrt(M)) - M,

as with M words held and M exchanged at most (2 M)^(3/2) multiplications have their operands.

**With any memory** (the same geometry: Loomis and Whitney, Ballard et al. 2012) a device that makes
W multiplications reads a elements of A, b of B and adds to c of C with

    a b c >= W^2.

The bound for several products that share operands is the least of sum_j w_j u_j over such accesses,
each between 1/p of its matrix and the whole. `least_accesses` computes it: with u = exp(v) it is
convex, and for any prices q_i >= 0 of the constraints

    sum_j min over v_j of (w_j exp(v_j) - v_j sum_(i uses j) q_i) + 2 sum_i q_i log W_i

is a lower bound on it; the prices are raised until the bound no longer rises.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


def memory_dependent_words(multiplications: float, devices: int, memory_words: float) -> float:
    """Words that a device sends and receives at least with `memory_words` of memory; 0 or more.

    multiplications: m n k of the whole product. ValueError if devices or memory are not positive.
    """
    if devices < 1 or not memory_words > 0:
        raise ValueError(
            f"a bound needs a device and memory, got {devices} devices of {memory_words} words"
        )
    if math.isinf(memory_words):
        return 0.0
    share = multiplications / devices
    return max(0.0, share / (2 * math.sqrt(2) * math.sqrt(memory_words)) - memory_words)


@dataclass(frozen=True)
class Accesses:
    """One matrix's elements that a device touches: from `least` to `most`, at `weight` each."""

    least: float
    most: float
    weight: float


@dataclass(frozen=True)
class Multiply:
    """W multiplications with the accesses of these numbers: their product is at least W^2."""

    accesses: tuple[int, int, int]
    multiplications: float


# The bound is valid after any sweep and only rises; halvings go to the last bit of a float.
_SWEEPS = 60
_HALVINGS = 60
_ENOUGH = 1e-9  # relative: a sweep that raises the bound by less is the last


def least_accesses(accesses: Sequence[Accesses], products: Sequence[Multiply]) -> float:
    """The least weighted sum of the accesses that all products allow (from below)."""
    prices = [0.0] * len(products)
    pull = [0.0] * len(accesses)

    def chosen(j: int) -> float:
        """log of access j at the present prices."""
        a = accesses[j]
        if pull[j] <= 0:
            return math.log(a.least)
        free = math.log(pull[j] / a.weight) if a.weight > 0 else math.inf
        return min(max(free, math.log(a.least)), math.log(a.most))

    def change(i: int, price: float) -> None:
        for j in products[i].accesses:
            pull[j] += price - prices[i]
        prices[i] = price

    def value() -> float:
        total = sum(
            2 * q * math.log(p.multiplications) for q, p in zip(prices, products, strict=True)
        )
        for j, a in enumerate(accesses):
            v = chosen(j)
            total += a.weight * math.exp(v) - pull[j] * v
        return total

    def too_small(i: int) -> bool:
        """Whether product i has fewer accesses than it needs, so that its price should rise."""
        product = products[i]
        return sum(map(chosen, product.accesses)) < 2 * math.log(product.multiplications)

    best = value()
    largest = 4 * sum(a.weight * a.most for a in accesses)
    for _ in range(_SWEEPS):
        for i in range(len(products)):
            low, high = 0.0, largest
            change(i, 0.0)
            if not too_small(i):
                continue
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                change(i, middle)
                if too_small(i):
                    low = middle
                else:
                    high = middle
            change(i, low)
        before, best = best, max(best, value())
        if best - before <= _ENOUGH * abs(best):
            break
    return max(best, sum(a.weight * a.least for a in accesses))
