"""Layers that are alike, of which a job records a few and not each.

A call that is alike the call of another layer (`alike.py`) issues the same operators on its own
tensors. So only the first two such calls run, and the last layer; the others are recorded as one
`identity` each in the place of a result, and get copies of the first one's operators when the job
is read (`expanded`). What a layer's code depends on beside what is compared, or gives to others
beside its result, shows there: the calls that ran must have issued the same, and no tensor of
theirs be read elsewhere; or else the job is recorded anew with these layers as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import oneflow as flow
import oneflow.nn as nn

from .....graph.hints import noted
from .....sbp.layout import TensorSpec
from ....nested import put_tensors, take_tensors
from .alike import Comparison, Unlike, built_alike, state_of
from .raw import RANDOM, RawJob, RawOp
from .recorder import Recorder

_RUN = 2  # calls that are alike, beside the last layer's
_COUNTER = "num_batches_tracked"  # of BatchNorm, which nothing else reads


@dataclass(frozen=True)
class Layer:
    """A call that ran.

    path:      of the layer
    call, end: its calls are those from `call` to before `end`
    read:      names in the job of what it was given and of its parameters and buffers
    made:      names of its results that are neither
    alike:     paths of the layers that are built like it
    """

    path: str
    call: int
    end: int
    read: tuple[str, ...]
    made: tuple[str, ...]
    alike: frozenset[str]


@dataclass(frozen=True)
class Copy:
    """A call `call` that did not run, as `first` did; path, read and made: as there."""

    path: str
    call: int
    first: Layer
    read: tuple[str, ...]
    made: tuple[str, ...]


@dataclass
class _Kind:
    """Calls that are alike. results: of the first one's, the tensors, in `structure`'s order;
    places: of each, which of the tensors that are read or else made it is."""

    layers: list[Layer] = field(default_factory=list)
    structure: Any = None
    places: tuple[int, ...] = ()
    made: list[flow.Tensor] = field(default_factory=list)
    is_apart: bool = False


class Repeats:
    """Instead of the recorder, runs the calls of layers of which there are several.

    boundaries: paths of submodules that are recorded in another way
    apart:      paths of layers that are recorded as they are
    proven:     path of a layer -> those that have issued the same in an earlier job
    """

    def __init__(
        self,
        model: nn.Module,
        recorder: Recorder,
        name_of: Callable[[flow.Tensor], str],
        boundaries: Iterable[str],
        apart: Collection[str],
        proven: Mapping[str, Collection[str]],
    ) -> None:
        self.copies: list[Copy] = []
        self._recorder = recorder
        self._proven = proven
        self._name_of = name_of
        self._comparison = Comparison()
        self._kinds: dict[Hashable, _Kind] = {}
        self._alike: dict[str, frozenset[str]] = {}
        self._last: set[str] = set()
        inside = tuple(f"{path}." for path in boundaries)
        for paths in built_alike(model):
            group = frozenset(paths)
            if group.isdisjoint(apart) and not any(
                path.startswith(inside) or any(b.startswith(f"{path}.") for b in inside)
                for path in paths
            ):
                self._alike.update(dict.fromkeys(paths, group))
                self._last.add(paths[-1])

    @property
    def kinds(self) -> list[list[Layer]]:
        """Of the calls that ran, those that are alike."""
        return [kind.layers for kind in self._kinds.values() if kind.layers]

    def call(
        self, path: str, module: nn.Module, run: Callable[[], Any], args: Any, kwargs: Any
    ) -> Any:
        """The result of the call of a module; `run` runs it."""
        if path not in self._alike or self._recorder.is_inside_boundary:
            return run()
        key = self._key(path, module, args, kwargs)
        if key is None:
            return run()
        kind = self._kinds.setdefault(key, _Kind())
        if not kind.is_apart and self._is_enough(kind, path):
            return self._again(kind, path, module, args, kwargs)
        tensors = self._read(module, args, kwargs)
        read = tuple(self._name_of(x) for _, x in tensors)
        call, hints = len(self._recorder.calls), len(noted())
        result = run()
        after = self._read(module, args, kwargs)
        changed = len(after) != len(tensors) or any(
            name != _COUNTER and (new is not old or self._name_of(new) != known)
            for (name, old), (_, new), known in zip(tensors, after, read, strict=True)
        )
        changed |= any(at.where != path for at in noted()[hints:])
        if changed or self._key(path, module, args, kwargs) != key:
            kind.is_apart = True
        if not kind.is_apart:
            self._note(kind, path, call, [x for _, x in tensors], read, result)
        return result

    def _is_enough(self, kind: _Kind, path: str) -> bool:
        """Whether so many calls have run that this one need not."""
        if not kind.layers or path in self._proven:
            return bool(kind.layers) and kind.layers[0].path in self._proven[path]
        return len(kind.layers) >= _RUN and path not in self._last

    def _key(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> Hashable | None:
        try:
            key = self._comparison.key(module, args, kwargs)
        except Unlike:
            for other in self._alike.get(path, ()):
                del self._alike[other]
            return None
        return self._recorder.gradient_free > 0, key

    @staticmethod
    def _read(module: nn.Module, args: Any, kwargs: Any) -> list[tuple[str, flow.Tensor]]:
        given = take_tensors((args, kwargs), flow.Tensor)[1]
        return [*(("", x) for x in given), *state_of(module)]

    def _note(
        self,
        kind: _Kind,
        path: str,
        call: int,
        given: Sequence[flow.Tensor],
        read: tuple[str, ...],
        result: Any,
    ) -> None:
        """A call that ran, and what it gave."""
        structure, results = take_tensors(result, flow.Tensor)
        numbers = {id(x): n for n, x in reversed([*enumerate(given)])}
        made: dict[int, flow.Tensor] = {}
        for x in results:
            if id(x) not in numbers:
                numbers[id(x)] = len(given) + len(made)
                made[id(x)] = x
        places = tuple(numbers[id(x)] for x in results)
        try:
            said = self._comparison.said(structure)
        except Unlike:
            said = None
        first = not kind.layers
        if said is None or not made or not all(x.is_lazy for x in results):
            kind.is_apart = True
        elif first:
            kind.structure, kind.places, kind.made = structure, places, [*made.values()]
        elif (said, places) != (self._comparison.said(kind.structure), kind.places):
            kind.is_apart = True
        if not kind.is_apart:
            names = tuple(map(self._name_of, made.values()))
            end = len(self._recorder.calls)
            alike = self._alike.get(path, frozenset())
            kind.layers.append(Layer(path, call, end, read, names, alike))

    def _again(self, kind: _Kind, path: str, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """The result of a call that does not run."""
        for hook in module._forward_pre_hooks.values():
            hook(module, args)  # of hints; no others are there
        first, recorder = kind.layers[0], self._recorder
        call, calls = len(recorder.calls), recorder.calls[first.call : first.end]
        moved, own = call - first.call, calls[0].path
        for record in calls:
            inside = record.path == own or record.path.startswith(f"{own}.")
            recorder.calls.append(
                replace(
                    record,
                    parent=recorder.current if record is calls[0] else record.parent + moved,
                    path=path + record.path[len(own) :] if inside else record.path,
                )
            )
        tensors = [x for _, x in self._read(module, args, kwargs)]
        with recorder.scope(call):
            made = [flow._C.identity(x) for x in kind.made]
        names = [tuple(map(self._name_of, found)) for found in (tensors, made)]
        self.copies.append(Copy(path, call, first, names[0], names[1]))
        found = [*tensors, *made]
        return put_tensors(kind.structure, [found[place] for place in kind.places])


@dataclass(frozen=True)
class Expanded:
    """raw: the job with the operators of the calls that did not run
    unlike: layers of one kind that turned out not to be alike, or that give more than their
            results, and all that are built like them: if there are any, `raw` is not to be used
    proven: path of a layer -> those that issued the same
    """

    raw: RawJob
    unlike: frozenset[str]
    proven: dict[str, frozenset[str]]


def expanded(
    raw: RawJob, kinds: Iterable[Sequence[Layer]], copies: Sequence[Copy], results: Collection[str]
) -> Expanded:
    """A job read in full. results: names of what is read of it."""
    waiting: dict[int, Copy | None] = {copy.call: copy for copy in copies}
    ops, specs, found = list[RawOp](), dict(raw.specs), _Found({})
    for op in raw.ops:
        if op.call not in waiting:
            found.add(op, len(ops))
            ops.append(op)
        elif (copy := waiting[op.call]) is not None:
            waiting[op.call] = None  # its other results stand for the same operators
            for new in _copied(found.of(copy.first, ops), copy, specs):
                found.add(new, len(ops))
                ops.append(new)
    kinds = [layers for layers in kinds if len(layers) > 1 or copies]
    leaking = {layer.call for layer in _leaking(kinds, ops, found, results)}
    unlike, proven = set[str](), dict[str, frozenset[str]]()
    copied: dict[int, list[str]] = {}
    for copy in copies:
        copied.setdefault(copy.first.call, []).append(copy.path)
    for layers in kinds:
        first = layers[0]
        sound = _are_alike(layers, ops, found) and leaking.isdisjoint(x.call for x in layers)
        paths = frozenset([x.path for x in layers] + copied.get(first.call, []))
        if sound:
            for path in paths:  # one that is called in two ways is proven for none
                proven[path] = frozenset() if path in proven else paths
        elif first.call in copied:
            unlike |= first.alike
    return Expanded(RawJob(tuple(ops), specs), frozenset(unlike), proven)


@dataclass(frozen=True)
class _Found:
    """Where the operators of each call are."""

    places: dict[int, list[int]]

    def add(self, op: RawOp, place: int) -> None:
        self.places.setdefault(op.call, []).append(place)

    def of(self, layer: Layer, ops: Sequence[RawOp]) -> list[RawOp]:
        calls = range(layer.call, layer.end)
        return [ops[n] for n in sorted(n for call in calls for n in self.places.get(call, ()))]


def _copied(ops: Iterable[RawOp], copy: Copy, specs: dict[str, TensorSpec]) -> Iterator[RawOp]:
    names = _names(copy.first, copy)
    for op in ops:
        call = op.call - copy.first.call + copy.call
        new = f"{op.role}{call}-{op.name.partition('-')[2]}"
        for name in op.makes:
            made = names.setdefault(name, f"{new}{name.removeprefix(op.name)}")
            specs[made] = specs[name]
        inputs = {key: tuple(names.get(n, n) for n in value) for key, value in op.inputs.items()}
        outputs = {key: tuple(names[n] for n in value) for key, value in op.outputs.items()}
        yield RawOp(new, op.kind, call, op.role, inputs, outputs, op.attrs)


def _names(first: Layer, other: Layer | Copy) -> dict[str, str]:
    """Of what goes into the first and comes out of it -> of the same for another."""
    pairs = zip((*first.read, *first.made), (*other.read, *other.made), strict=True)
    return dict(pairs)


def _are_alike(layers: Sequence[Layer], ops: Sequence[RawOp], found: _Found) -> bool:
    """Whether calls have issued the same operators, each on its own tensors."""
    first, *others = layers
    own = found.of(first, ops)
    if not {*first.made} <= {name for op in own for name in op.makes}:
        return False
    for other in others:
        names = _names(first, other)
        theirs = found.of(other, ops)
        if len(own) != len(theirs):
            return False
        for a, b in zip(own, theirs, strict=True):
            reads = tuple(names.get(name, name) for name in a.reads)
            made = tuple(names.setdefault(n, m) for n, m in zip(a.makes, b.makes, strict=False))
            asked = a.kind, a.role, a.inputs.keys(), a.outputs.keys(), a.call - first.call
            if asked != (b.kind, b.role, b.inputs.keys(), b.outputs.keys(), b.call - other.call):
                return False
            if (reads, made) != (b.reads, b.makes) or _fixed(a) != _fixed(b):
                return False
    return True


def _fixed(op: RawOp) -> dict[str, Any]:
    """Attributes but those that are drawn anew by each trace."""
    return {key: value for key, value in op.attrs.items() if key not in RANDOM}


def _leaking(
    kinds: Iterable[Sequence[Layer]], ops: Sequence[RawOp], found: _Found, results: Collection[str]
) -> Iterator[Layer]:
    """Layers of which others read what is no result."""
    owners: dict[str, list[Layer]] = {}
    for layer in (layer for layers in kinds for layer in layers):
        for op in found.of(layer, ops):
            for name in op.makes:
                if name not in layer.made:
                    owners.setdefault(name, []).append(layer)
    for name in results:
        yield from owners.get(name, ())
    for op in ops:
        for name in op.reads:
            for layer in owners.get(name, ()):
                if not layer.call <= op.call < layer.end:
                    yield layer
