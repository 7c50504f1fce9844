"""Nested arguments and results of modules: their tensors taken out and put back."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .backend import Tensor


@dataclass(frozen=True)
class Slot:
    """The place of the `index`-th tensor in a nested structure."""

    index: int


def map_leaves(tree: Any, leaf: type | tuple[type, ...], change: Callable[[Any], Any]) -> Any:
    """`tree` (nested tuples, lists, dicts, dataclasses) with every instance of `leaf` changed."""

    def inside(item: Any) -> Any:
        return map_leaves(item, leaf, change)

    if isinstance(tree, leaf):
        return change(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*map(inside, tree))
    if isinstance(tree, (tuple, list)):
        return type(tree)(map(inside, tree))
    if isinstance(tree, dict):
        changed = copy.copy(tree)  # a subclass may take other arguments than a dict
        for key, item in tree.items():  # one by one: the results of transformers have no `update`
            changed[key] = inside(item)
        return changed
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        fields = [f.name for f in dataclasses.fields(tree) if f.init]
        return dataclasses.replace(tree, **{name: inside(getattr(tree, name)) for name in fields})
    return tree


def take_tensors(tree: Any, kind: type) -> tuple[Any, list[Tensor]]:
    """`tree` with a Slot in the place of each tensor of type `kind`, and the tensors."""
    tensors: list[Tensor] = []

    def take(tensor: Tensor) -> Slot:
        tensors.append(tensor)
        return Slot(len(tensors) - 1)

    return map_leaves(tree, kind, take), tensors


def put_tensors(tree: Any, tensors: Sequence[Any]) -> Any:
    """The inverse of `take_tensors`."""
    return map_leaves(tree, Slot, lambda slot: tensors[slot.index])


def numbers(tree: Any) -> list[Any]:
    """The numbers in a tree of slots, in order; truths are numbers, too."""
    found: list[Any] = []
    map_leaves(tree, (Slot, int, float), found.append)
    return [x for x in found if not isinstance(x, Slot)]
