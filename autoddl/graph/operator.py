"""A traced model's operators and tensors, each by itself: its form in files and its batch.

A tensor dim marked in `Tensor.batch_dims` and an attribute listed in `Op.batch_attrs` are
proportional (or, for exponent -1, inversely proportional) to the batch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PlainSerializer

from .._files import FIELDS, Name, OneOf, Size, Stored
from ..sbp.layout import ITEM_BYTES, TensorSpec
from ..sbp.signature import find_rule


@dataclass(frozen=True)
class Tensor:
    """A value in the graph. `batch_dims`: the dims whose size is proportional to the batch."""

    name: str
    spec: TensorSpec
    batch_dims: tuple[int, ...] = ()

    def scaled(self, old: int, new: int) -> Tensor:
        """The same at batch `new`, given it at batch `old`."""
        shape = tuple(
            _scaled(n, int(d in self.batch_dims), old, new, f"dim {d} of {self.name}")
            for d, n in enumerate(self.spec.shape)
        )
        return Tensor(self.name, TensorSpec(shape, self.spec.dtype), self.batch_dims)


def _read_tensors(rows: list[_TensorRow]) -> dict[str, Tensor]:
    return {name: Tensor(name, TensorSpec(shape, dtype), dims) for name, dtype, shape, dims in rows}


def _tensor_rows(tensors: Mapping[str, Tensor]) -> list[_TensorRow]:
    return [(t.name, t.spec.dtype, t.spec.shape, t.batch_dims) for t in tensors.values()]


def _tupled(attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _read(v) for k, v in attrs.items()}


def _read(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_read, value))
    return float(value) if value in _NO_JSON else value


def _listed(attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _written(v) for k, v in sorted(attrs.items())}


def _written(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(map(_written, value))
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


_NO_JSON = ("inf", "-inf", "nan")  # floats that JSON has not: written as text


# ---- as a file has them

Exponents = tuple[Annotated[int, Field(strict=True)], ...]
# name, dtype, shape, batch_dims
_TensorRow = tuple[
    Name, Annotated[str, OneOf(tuple(ITEM_BYTES))], tuple[Size, ...], tuple[Size, ...]
]
Tensors = Annotated[Mapping[str, Tensor], Stored(list[_TensorRow], _read_tensors, _tensor_rows)]
_Attrs = Annotated[Mapping[str, Any], AfterValidator(_tupled), PlainSerializer(_listed)]


@dataclass(frozen=True)
class Op:
    """An operator. `module` is the path of the submodule that issued it ("" for the model itself).

    batch_attrs: attribute name -> exponent of the batch per element (scalars: one element); 1 for
    sizes that grow with the batch, -1 for factors such as 1/rows, 0 for the rest.
    """

    name: Name
    kind: Name
    module: str = dataclasses.field(default="", kw_only=True)
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: _Attrs = dataclasses.field(default_factory=dict)
    batch_attrs: Annotated[Mapping[str, Exponents], PlainSerializer(_listed)] = dataclasses.field(
        default_factory=dict
    )

    __pydantic_config__ = FIELDS

    @property
    def is_trainable(self) -> bool:
        """Whether a parameter is trained: it is, unless the trace says that it is frozen."""
        return self.attrs.get("trainable", True)

    @property
    def seen_attrs(self) -> Hashable:
        """The attributes that rules see, and how each depends on the batch."""
        if self.kind == "param":
            return self.is_trainable
        if self.kind == "opaque":  # what it runs is an attribute of any type
            return self.attrs.get("num_args"), self.attrs.get("batchwise")
        if not self.attrs:
            return ()
        rule = find_rule(self.kind)
        part = rule.part if rule else ()
        seen = (item for item in sorted(self.attrs.items()) if item[0] not in part)
        return tuple(seen), tuple(sorted(self.batch_attrs.items()))

    def scaled(self, old: int, new: int) -> Op:
        """The same at batch `new`, given it at batch `old`."""
        if not self.batch_attrs:
            return self
        attrs = dict(self.attrs)
        for key, exponents in self.batch_attrs.items():
            value, where = attrs[key], f"attribute {key} of {self.name}"
            attrs[key] = (
                tuple(_scaled(v, e, old, new, where) for v, e in zip(value, exponents, strict=True))
                if isinstance(value, tuple)
                else _scaled(value, exponents[0], old, new, where)
            )
        return dataclasses.replace(self, attrs=attrs)


def _scaled(value: Any, exponent: int, old: int, new: int, where: str) -> Any:
    """A value at batch `old` that is proportional to batch^exponent, at batch `new`."""
    if exponent == 0:
        return value
    if exponent == -1:
        return value * old / new
    if isinstance(value, float):
        return value * new / old
    scaled, rest = divmod(value * new, old)
    if rest:
        raise ValueError(f"{where} is {value} at batch {old} and would not be whole at {new}")
    return scaled
