"""Declarations that a user may make about a model before it is planned.

`batchwise` and `opaque` say how a module computes. A `Hint` says how a part of the model is to be
placed (Whale's annotations, Jia et al., ATC 2022, section 3.1.2, as constraints on our search):

    replicate(n)    n copies, each of which computes its rows of the batch
    split(n, dim)   the weights of products, convolutions and lookups in n parts
    stage()         with stages, the model may be cut before it, and nowhere else
    (B, S0)         the placement of one parameter or of a module's outputs
    least           for a host, as little as possible: it has no share of what is split

In the model's own code they stand around the calls of submodules, in `forward`:

    with autoddl.split(4):
        logits = self.head(features)

There the tracer, which runs `forward`, learns which modules are called (`recorded`); when the model
runs by itself they do nothing. Modules are built before anyone knows where they are used, and one
that is built by a library cannot be annotated: so calls count, and not where modules are made.

A `HintAt` is a hint for what a path names: a module with all that is in it, or a parameter. `*` in
a path is any one part of it (`blocks.*.mlp`), `.` the whole model, `default` all that no other hint
names, `host 3` the fourth host. All hints hold: two that cannot hold together are refused, as is
one that names nothing.
This module needs nothing but the standard library.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from types import FrameType
from typing import Any, Literal, TypeVar

OPAQUE = "_autoddl_opaque"  # the attribute of modules that run as they are
M = TypeVar("M")
WAY_OUT = (
    "autoddl.batchwise(module) if it treats each row of the batch independently, else "
    "autoddl.opaque(module), which every device computes whole"
)

WHOLE, DEFAULT = ".", "default"
_COUNTED = re.compile(r"(replicate|split)(?:\(\s*(\d+)?\s*(?:(?:,\s*)?dim\s*=\s*(\d+))?\s*\))?")
_PLACEMENT = re.compile(r"B|P|S\d+")
_HOST = re.compile(r"host (0|[1-9]\d{0,8})")


def batchwise(module: M) -> M:
    """Declare that `module` treats each row of the batch independently, and return it.

    The module then runs unchanged, as one operator, and may be split along the batch: dim 0 of its
    tensor arguments and results is the batch. Without this declaration a module that contains an
    unknown operator is replicated on all devices (OneFlow), or refused (PyTorch).
    """
    return _declared(module, "batchwise", True)


def opaque(module: M) -> M:
    """Declare that `module` is to run unchanged, as one operator, and return it.

    Each device then computes it whole, on the whole batch. If each row of the batch is treated
    independently, `batchwise` says so, and the rows may be split.
    """
    return _declared(module, "opaque", False)


def _declared(module: M, name: str, rows_apart: bool) -> M:
    if not callable(getattr(module, "forward", None)):
        raise TypeError(f"{name} takes a module, which has a `forward`, got {module!r:.80}")
    setattr(module, OPAQUE, rows_apart)
    return module


def is_opaque(module: object) -> bool:
    """True if `module` was declared opaque or batch-wise."""
    return getattr(module, OPAQUE, None) is not None


def is_batchwise(module: object) -> bool:
    """True if `module` was declared batch-wise."""
    return bool(getattr(module, OPAQUE, False))


@dataclass(frozen=True)
class Hint:
    """How a part of a model is to be placed. `parse` inverts `str`.

    devices:   of `replicate` and `split`: how many copies or parts; None: as many as there are
               devices, of the whole mesh or of a pipeline stage
    dim:       of `split`: the dim of the weights, as the model stores them; None for any
    placement: B, P or S<dim>: one for all mesh axes, one for the hosts and one for the devices
               of each, or one for each axis

    Raises ValueError for what is no hint.
    """

    kind: Literal["replicate", "split", "stage", "place", "least"]
    devices: int | None = None
    dim: int | None = None
    placement: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, least in (("devices", 1), ("dim", 0)):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            if value is not None and not (whole and value >= least):
                raise ValueError(f"{self.kind}: {name} is a number from {least} on, got {value!r}")
        if (self.kind == "place") != bool(self.placement):
            raise ValueError(f"a hint of the kind {self.kind!r} with a placement {self.placement}")

    def __enter__(self) -> Hint:
        """Around calls of submodules in `forward`. ValueError anywhere else."""
        _surrounding.set((*_surrounding.get(), _Entered(HintAt("", self, _line_in_forward(self)))))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        *others, own = _surrounding.get()
        _surrounding.set(tuple(others))
        if kind is None and _record.get() is not None and not own.paths:
            raise ValueError(
                f"{own.at.hint} ({own.at.source}) stands around no call of a submodule: make what "
                "it is for a module"
            )

    def __str__(self) -> str:
        if self.kind == "place":
            return f"({', '.join(self.placement)})"
        if self.kind == "least":
            return self.kind
        dim = None if self.dim is None else f"dim={self.dim}"
        devices = None if self.devices is None else str(self.devices)
        return f"{self.kind}({', '.join(filter(None, (devices, dim)))})"

    @staticmethod
    def parse(text: str) -> Hint:
        """The inverse of `str`; the brackets of `split()` may be left out. ValueError on others."""
        own = text.strip()
        if own in ("stage", "stage()"):
            return Hint("stage")
        if own == "least":
            return Hint("least")
        if own.startswith("(") and own.endswith(")"):
            parts = tuple(part.strip() for part in own[1:-1].split(","))
            if all(map(_PLACEMENT.fullmatch, parts)):
                return Hint("place", placement=parts)
        found = _COUNTED.fullmatch(own)
        if found is None or (found[1] == "replicate" and found[3]):
            raise ValueError(
                f"{text!r} is no hint; use replicate(4), split(2), split(2, dim=0), stage(), the "
                "placement of a parameter or of a module's outputs, such as (B, S0), or least for "
                "a host"
            )
        devices, dim = (int(n) if n else None for n in found.groups()[1:])
        if found[1] == "replicate":
            return Hint("replicate", devices)
        return Hint("split", devices, dim)


@dataclass(frozen=True)
class HintAt:
    """A hint and the path, or the host, that it is for; source: where it was given.

    Raises ValueError for `least` of what is no host, and for any other hint of a host.
    """

    where: str
    hint: Hint
    source: str = "hints"

    def __post_init__(self) -> None:
        if (self.hint.kind == "least") != (self.host is not None):
            raise ValueError(f"the hint {self}: 'least', and only that, is for a host, as 'host 3'")

    @property
    def host(self) -> int | None:
        """The number of the host that it is for, from 0 on; None of paths."""
        found = _HOST.fullmatch(self.where)
        return int(found[1]) if found else None

    def __str__(self) -> str:
        return f"{self.hint} for {self.where!r} ({self.source})"

    def matches(self, path: str) -> bool:
        """Whether the hint's path names this one, part by part."""
        mine, theirs = self.where.split("."), path.split(".")
        if self.where == WHOLE or not path:
            return self.where == WHOLE and not path
        return len(mine) == len(theirs) and all(map(fnmatchcase, theirs, mine))


@dataclass(frozen=True)
class _Entered:
    """A hint around code that runs; paths: of the submodules that were called there so far."""

    at: HintAt
    paths: list[str] = field(default_factory=list)

    def call(self, path: str) -> None:
        inside = any(path.startswith(f"{own}.") or own == path for own in self.paths)
        if not inside and not (self.at.hint.kind == "stage" and self.paths):
            self.paths.append(path)
            if (record := _record.get()) is not None:
                record.append(replace(self.at, where=path))


_surrounding: ContextVar[tuple[_Entered, ...]] = ContextVar("surrounding", default=())
_record: ContextVar[list[HintAt] | None] = ContextVar("record", default=None)


def replicate(n: int | None = None) -> Hint:
    """n copies, each of which computes its rows of the batch; None: as many as devices."""
    return Hint("replicate", n)


def split(n: int | None = None, dim: int | None = None) -> Hint:
    """The weights of products, convolutions and lookups in n parts, along `dim` or any."""
    return Hint("split", n, dim)


def stage() -> Hint:
    """A pipeline stage may begin here, and only where such a hint is."""
    return Hint("stage")


def set_default(hint: Hint) -> None:
    """For all that no other hint is for; called in `forward`. ValueError anywhere else."""
    source = _line_in_forward(hint)
    if (record := _record.get()) is not None:
        record.append(HintAt(DEFAULT, hint, source))


def _line_in_forward(hint: Hint) -> str:
    """`model.py:31`, where the caller's caller is."""
    frame: FrameType | None = sys._getframe(2)
    assert frame is not None
    source = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
    while frame is not None:
        if frame.f_code.co_name == "forward":
            return source
        frame = frame.f_back
    raise ValueError(
        f"{hint} ({source}) stands in no `forward`: around calls of submodules there it is a hint, "
        f"elsewhere it does nothing; or plan with hints={{path: '{hint}'}}"
    )


@dataclass(frozen=True)
class _Noting:
    """Before a call of the module at `path`: the hints around it are for that path."""

    path: str

    def __call__(self, *_: object) -> None:
        for entered in _surrounding.get():
            entered.call(self.path)


def is_noting(hook: object) -> bool:
    """True of a hook that `recorded` has given a module: it does nothing but note hints."""
    return isinstance(hook, _Noting)


def noted() -> tuple[HintAt, ...]:
    """The hints that `recorded` has noted so far."""
    return tuple(_record.get() or ())


@contextmanager
def recorded(named_modules: Iterable[tuple[str, Any]]) -> Iterator[list[HintAt]]:
    """Fills a list with the hints around the calls of these modules, while the model runs.

    named_modules: (path, module) of OneFlow or PyTorch
    """
    found: list[HintAt] = []
    hooked: list[Any] = []
    key = object()

    token = _record.set(found)
    try:
        for path, module in named_modules:
            module._forward_pre_hooks[key] = _Noting(path or WHOLE)
            hooked.append(module)
        yield found
    finally:
        _record.reset(token)
        for module in hooked:
            del module._forward_pre_hooks[key]


Hints = tuple[HintAt, ...]
GivenHints = Mapping[str, str | Hint | Sequence[str | Hint]] | Hints  # see `as_hints`


def as_hints(given: object, source: str = "hints") -> Hints:
    """Of a mapping from paths to hints, or their texts, one or a list. ValueError on others."""
    if given is None:
        return ()
    if isinstance(given, tuple) and all(isinstance(own, HintAt) for own in given):
        return given
    if not isinstance(given, Mapping):
        raise ValueError(f"hints are a dict such as {{'head': 'split(4)'}}, got {given!r}")
    found: list[HintAt] = []
    for where, several in given.items():
        for own in several if isinstance(several, (list, tuple)) else (several,):
            if not isinstance(where, str) or not where or not isinstance(own, (str, Hint)):
                raise ValueError(f"hints have a path and a hint, got {where!r}: {own!r}")
            found.append(HintAt(where, Hint.parse(own) if isinstance(own, str) else own, source))
    return tuple(dict.fromkeys(found))


def check_matched(hint: HintAt, found: object, known: Iterable[str]) -> None:
    """ValueError unless something was found for the hint among the known paths."""
    if found:
        return
    names = list(dict.fromkeys(filter(None, known)))
    near = difflib.get_close_matches(hint.where, names, n=3) or names[:5]
    raise ValueError(
        f"the hint {hint} names no module or parameter of the model; there are "
        f"{', '.join(map(repr, near)) or 'none'}"
    )
