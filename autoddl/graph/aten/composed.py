"""Functions of PyTorch that look at values, written with others that do not.

They are called in the place of torch's own while a model is recorded, and use methods of tensors
alone. What torch's own checks of values, such as that no variance is negative, is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]


def cov(x: Any, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Any:
    """Of rows; a number if there is one."""
    x = x.reshape(1, -1) if x.ndim < 2 else x
    weights = fweights if aweights is None else aweights * (1 if fweights is None else fweights)
    if weights is None:
        far = x - x.mean(1, keepdim=True)
        return (far @ far.mT / max(x.shape[1] - correction, 0)).squeeze()
    total = weights.sum()
    far = x - ((x * weights).sum(1) / total)[:, None]
    lost = correction if aweights is None else correction * (weights * aweights).sum() / total
    return (far @ (far * weights).mT / (total - lost).clamp(min=0)).squeeze()


def corrcoef(x: Any) -> Any:
    found = cov(x)
    if not found.ndim:
        return found / found
    deviation = found.diagonal().sqrt()
    return (found / deviation[:, None] / deviation[None]).clamp(-1, 1)


def bincount(own: Function) -> Function:
    """Where the number of bins does not follow from values."""

    def run(x: Any, weights: Any = None, minlength: int = 0) -> Any:
        if not minlength:
            return own(x, weights)
        each = x.new_ones(x.shape).long() if weights is None else weights
        each = each if weights is None or weights.is_floating_point() else weights.double()
        return each.new_zeros(minlength).scatter_add(0, x.long(), each)

    return run


def gaussian_nll_loss(own: Function) -> Function:
    """Where the variance is a tensor; where it is raised to `eps`, it keeps its gradient."""

    def run(
        input: Any, target: Any, var: Any, full: bool = False, eps: float = 1e-6,
        reduction: str = "mean",
    ) -> Any:  # fmt: skip
        if isinstance(var, float):
            return own(input, target, var, full, eps, reduction)
        if var.ndim == input.ndim - 1:
            var = var.unsqueeze(-1)
        unlike = [m for n, m in zip(input.shape, var.shape, strict=False) if n != m]
        if var.ndim != input.ndim or unlike not in ([], [1]):
            raise ValueError("var is of incorrect size")  # as torch has it
        var = var + (var.detach().clamp(min=eps) - var.detach())
        each = 0.5 * (var.log() + (input - target) ** 2 / var)
        each = each + 0.5 * math.log(2 * math.pi) if full else each
        return each if reduction == "none" else each.mean() if reduction == "mean" else each.sum()

    return run


# name -> what makes a function in the place of torch's own
COMPOSED: dict[str, Callable[[Function], Function]] = {
    "cov": lambda own: cov,
    "corrcoef": lambda own: corrcoef,
    "bincount": bincount,
    "gaussian_nll_loss": gaussian_nll_loss,
}
