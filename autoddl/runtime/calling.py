"""How a model and its loss are called with a batch, and the tensors of a batch in one order.

A batch is either the model's positional inputs, then the target, of which each is a tensor or
nested tuples, lists and dicts of tensors; or one dict. Of a dict the model gets by name what its
`forward` takes, and the loss all of it:

    (x, mask, y)                            loss(model(x, mask), y)
    {"ids": ids, "mask": m, "labels": y}    loss(model(ids=ids, mask=m), batch)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .._files import expect, shown
from .backend import Tensor
from .nested import Slot, put_tensors, take_tensors


@dataclass(frozen=True)
class Calling:
    """`structure`: the example, a tuple or a dict, with a Slot for each tensor.

    keys: of a dict, what the model takes
    names: of a dict, what it would take; None: whatever there is
    """

    structure: Any
    keys: tuple[str, ...] = ()
    names: frozenset[str] | None = frozenset()

    @staticmethod
    def of(
        example: Sequence[Any], forward: Callable[..., Any], tensor: type, has_loss: bool
    ) -> tuple[Calling, list[Tensor]]:
        """For an example, and its tensors. ValueError if it holds anything else, or too little."""
        if len(example) == 1 and isinstance(example[0], Mapping):
            batch, names = example[0], _names(forward)
            keys = tuple(batch) if names is None else tuple(key for key in batch if key in names)
            if not keys:
                raise ValueError(
                    f"forward takes none of the example's keys, {', '.join(map(str, batch))}: the "
                    "model gets the tensors of a dict by name"
                )
        else:
            batch, keys, names = tuple(example), (), frozenset[str]()
            needed = 2 if has_loss else 1
            if len(batch) < needed:
                raise ValueError(
                    f"the example has {len(batch)} tensors; expected the model's positional inputs"
                    + (" followed by the target" if has_loss else "")
                )
        for path, leaf in _leaves(batch):
            if not isinstance(leaf, tensor):
                raise ValueError(
                    f"example{path} is a {type(leaf).__name__}; every input and the target must be "
                    f"a {tensor.__name__}. Fix other arguments in the model, e.g. in its __init__"
                )
        structure, tensors = take_tensors(batch, tensor)
        return Calling(structure, keys, names), tensors

    def called(
        self, tensors: Sequence[Tensor], has_loss: bool
    ) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
        """The model's arguments, by place and by name, and what the loss gets beside the result."""
        batch = put_tensors(self.structure, tensors)
        if self.keys:
            return (), {key: batch[key] for key in self.keys}, batch
        return (batch[:-1], {}, batch[-1]) if has_loss else (batch, {}, None)

    def flat(self, call: str, batch: Sequence[Any]) -> list[Tensor]:
        """The tensors of a batch, given as `call` takes it. ValueError if it is no such batch."""
        if not self.keys:
            if len(batch) != len(self.structure):
                raise ValueError(
                    f"{call} takes {len(self.structure)} tensors, as in the example: the model's "
                    f"inputs, then the target; got {len(batch)}"
                )
            return self._flat(self.structure, tuple(batch))
        return self._flat(self.structure, self._only(call, batch))

    def inputs(self, call: str, inputs: Sequence[Any]) -> list[Tensor | None]:
        """The tensors of the model's inputs, None where the target's would be."""
        if self.keys:
            given, wanted = self._only(call, inputs), {k: self.structure[k] for k in self.keys}
            for key in (k for k in self.keys if k not in given):
                raise ValueError(
                    f"the batch of {call} has no {key!r}, which forward takes and the example has: "
                    "the plan is of the model with it; give any of its shape, such as zeros for "
                    "labels, and use the results that do not depend on it"
                )
        else:
            limit = len(self.structure) - 1
            if len(inputs) > limit:
                raise ValueError(f"{call} takes the model's {limit} inputs, got {len(inputs)}")
            given, wanted = tuple(inputs), self.structure[: len(inputs)]
        slots = [slot.index for _, slot in _leaves(wanted)]
        found = dict(zip(slots, self._flat(wanted, given), strict=True))
        return [found.get(index) for index in range(max(slots, default=-1) + 1)]

    def target(self, batch: Sequence[Any]) -> Any:
        """What the loss gets of a batch beside the result."""
        return {key: batch[0][key] for key in self.structure} if self.keys else batch[-1]

    @property
    def without_target(self) -> Calling:
        """Of the model alone, called with the same tensors."""
        return self if self.keys else Calling(self.structure[:-1])

    @property
    def slots(self) -> list[int]:
        """The numbers of a batch's tensors."""
        return [slot.index for _, slot in _leaves(self.structure)]

    def _only(self, call: str, given: Sequence[Any]) -> Mapping[str, Any]:
        if len(given) != 1 or not isinstance(given[0], Mapping):
            raise ValueError(f"{call} takes one dict, as the example is")
        new = [
            key for key, x in given[0].items() if key not in self.structure and x is not None
            and (hasattr(x, "shape") if self.names is None else key in self.names)
        ]  # fmt: skip
        if new:
            raise ValueError(
                f"the batch of {call} has {new[0]!r}, which forward takes and the example had not: "
                "the plan was made without it; give an example that has it, or leave it out"
            )
        return given[0]

    def _flat(self, structure: Any, batch: Any) -> list[Tensor]:
        given = dict(_leaves(batch, structure))
        return [given[path] for path, _ in _leaves(structure)]


def expect_iterable(value: Any, what: str) -> None:
    """TypeError unless one can go through it; an array without dims only looks as if."""
    try:
        iter(value)
    except TypeError:
        raise TypeError(f"{what}, got {shown(value)}") from None


def as_arguments(batch: Any) -> tuple[Any, ...]:
    """A batch of a loader, as `Trainer.step` takes it. TypeError if it is none."""
    if isinstance(batch, Mapping):
        return (batch,)
    expect(batch, (tuple, list), "a batch is a tuple of the inputs and the target, or a dict")
    return tuple(batch)


def _names(forward: Callable[..., Any]) -> frozenset[str] | None:
    """The keys of a batch that `forward` takes by name; None: all."""
    parameters = inspect.signature(forward).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    return frozenset(p.name for p in parameters if p.kind in kinds)


def _leaves(tree: Any, like: Any = None, path: str = "") -> Iterator[tuple[str, Any]]:
    """Path and value of what is no container, or stands where `like` has none.

    ValueError where a container is another than in `like`.
    """
    if isinstance(like, Slot) or not isinstance(tree, (tuple, list, Mapping)):
        if like is not None and not isinstance(like, Slot):
            raise ValueError(f"batch{path}: expected a {type(like).__name__} as in the example")
        yield path, tree
        return
    items = tree if isinstance(tree, Mapping) else dict(enumerate(tree))
    if like is None:
        wanted = dict.fromkeys(items)
    else:
        wanted = like if isinstance(like, Mapping) else dict(enumerate(like))
        missing = [key for key in wanted if key not in items]
        if missing:
            raise ValueError(f"batch{path} has no {missing[0]!r}, which the example has")
        if not isinstance(like, Mapping) and len(items) != len(wanted):
            raise ValueError(f"batch{path} has {len(items)} items, the example {len(wanted)}")
    for key, inner in wanted.items():
        yield from _leaves(items[key], inner, f"{path}[{key!r}]")
