"""Layers that ask torch for the same, which an export records once.

The model runs once on fake tensors, as the check of gradients needs it anyway, and every call of
torch in modules that are built alike is noted: the function, its plain arguments, and where its
tensors come from (the layer's arguments, its own parameters, earlier calls in it, or outside).
Layers of equal notes compute the same of their own parameters. Where a tensor leaves a layer by
another way than its result, or a layer changes one that it was given, it is recorded as it is.

In the export the first layer of equal ones is recorded, and the others are calls of one operator,
`again`, which names the tensors that the first was given and has made: `copied` finds what lies
between these.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode  # type: ignore[import-not-found]
from torch.utils._pytree import tree_flatten, tree_unflatten  # type: ignore[import-not-found]

from ....graph.hints import is_opaque
from ...tracing.asked import Again, Asked
from ...tracing.unseen import Unseen

_LEAST = 3  # layers, of which the first is recorded
_PLAIN = (
    type(None), bool, int, float, complex, str, slice, type(...), torch.dtype, torch.device,
    torch.layout, torch.memory_format,
)  # fmt: skip
LIBRARY = torch.library.Library("autoddl", "FRAGMENT")
LIBRARY.define(
    "again(Tensor[] given_first, Tensor[] made_first, Tensor[] given, str[] paths) -> Tensor[]"
)
AGAIN = torch.ops.autoddl.again.default


@torch.library.register_fake("autoddl::again", lib=LIBRARY)
def _again(given_first: Any, made_first: Sequence[Tensor], given: Any, paths: Any) -> list[Tensor]:
    return [
        torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device) for x in made_first
    ]


class _Unlike(Exception):
    """A layer that is to be recorded as it is."""


@dataclass(frozen=True)
class Group:
    """Equal layers in the order in which they run: their paths and modules."""

    paths: tuple[str, ...]
    modules: tuple[nn.Module, ...]


@dataclass
class _Call:
    """What one layer has asked for.

    roles: of tensors by their id; inner: made here; versions: of those that came from outside
    """

    path: str
    roles: dict[int, Hashable]
    notes: list[Hashable] = field(default_factory=list)
    inner: list[Tensor] = field(default_factory=list)
    versions: list[tuple[Tensor, int]] = field(default_factory=list)
    is_apart: bool = False

    def role(self, x: Tensor) -> Hashable:
        if id(x) not in self.roles:
            self._from_outside(x, id(x))
        return self.roles[id(x)]

    def _from_outside(self, x: Tensor, role: Hashable) -> None:
        self.roles.setdefault(id(x), role)
        self.versions.append((x, x._version))

    def said(self, x: Any) -> Hashable:
        """A value as it may be compared."""
        if isinstance(x, Tensor):
            return self.role(x)
        if isinstance(x, (list, tuple)):
            return type(x), *map(self.said, x)
        if isinstance(x, Mapping):
            return tuple((key, self.said(value)) for key, value in x.items())
        if not isinstance(x, _PLAIN):
            raise _Unlike
        return type(x), str(x) if isinstance(x, (slice, torch.device)) else x

    def begin(self, module: nn.Module, given: Any) -> None:
        leaves, structure = tree_flatten(given)
        for number, x in enumerate(x for x in leaves if isinstance(x, Tensor)):
            self._from_outside(x, ("given", number))
            self.notes.append((tuple(x.shape), x.stride(), x.dtype))
        for named in (module.named_parameters, module.named_buffers):
            for name, x in named():
                self._from_outside(x, ("own", name))
        self.notes.append((str(structure), torch.is_grad_enabled(), *map(self.said, leaves)))
        self.is_apart |= not torch.is_grad_enabled()

    def note(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        asked = self.said(args), self.said(kwargs)
        made = []
        for x in tree_flatten(result)[0]:
            if isinstance(x, Tensor) and id(x) not in self.roles:
                self.roles[id(x)] = "made", len(self.inner)
                self.inner.append(x)
            made.append(self.said(x) if isinstance(x, (Tensor, *_PLAIN)) else type(x))
        self.notes.append((function, asked, tuple(made), torch.is_grad_enabled()))
        self.is_apart |= "batch_norm" in getattr(function, "__name__", "")  # changes its statistics

    def end(self, result: Any) -> None:
        leaves, structure = tree_flatten(result)
        self.notes.append((str(structure), *map(self.said, leaves)))
        self.is_apart |= any(x._version != version for x, version in self.versions)
        given = {id(x) for x in leaves}
        self.inner = [x for x in self.inner if id(x) not in given]


class Notes(TorchFunctionMode):
    """Notes of one run of a model's layers: `with` them it is to run."""

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        self._layers = _layers(whole)
        self._calls: list[_Call] = []
        self._open: _Call | None = None
        self._left: dict[int, _Call] = {}  # tensors that no other layer may read
        self._seen: list[Any] = []  # by their ids, so they stay
        self.asked = Asked(Tensor, _PLAIN)
        self.unseen = Unseen(Tensor, torch.is_grad_enabled)
        self.given: Any = ()  # the model's tensors, the example, whether torch says it compiles

    def __enter__(self) -> Notes:
        for path, module in self._layers.items():
            _instead(module, self._noted(path, module))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        _as_they_were(self._layers.values())
        if error[0] is not None:
            self._calls, self.asked.calls = [], []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = self.unseen.call(func, args, kwargs or {})
        self.read((args, kwargs), self._open)
        self.asked.note(func, args, kwargs or {}, result)
        if self._open is not None:
            try:
                self._open.note(func, args, kwargs or {}, result)
            except _Unlike:
                self._open.is_apart = True
        return result

    def read(self, values: Any, by: _Call | None = None) -> None:
        """These tensors are read, in a layer or outside of all."""
        for x in tree_flatten(values)[0]:
            owner = self._left.get(id(x))
            if owner is not None and owner is not by:
                owner.is_apart = True

    def _noted(self, path: str, module: nn.Module) -> Callable[..., Any]:
        own = module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            call = _Call(path, {})
            self._calls.append(call)
            self._open = call
            try:
                with torch._C.DisableTorchFunction():
                    call.begin(module, (args, kwargs))
                result = own(*args, **kwargs)
            except _Unlike:
                call.is_apart, self._open = True, None
                return own(*args, **kwargs)
            finally:
                self._open = None
            try:
                with torch._C.DisableTorchFunction():
                    call.end(result)
            except _Unlike:
                call.is_apart = True
            self._seen.append((call.versions, result))
            self._left.update((id(x), call) for x in call.inner)
            return result

        return forward

    def groups(self) -> tuple[Group, ...]:
        """Of layers that run once and ask for the same."""
        times: dict[str, int] = {}
        alike: dict[Hashable, list[str]] = {}
        for call in self._calls:
            times[call.path] = times.get(call.path, 0) + 1
            if not call.is_apart:
                owner = call.path.rpartition(".")[0]
                alike.setdefault((owner, tuple(call.notes)), []).append(call.path)
        kept = ([path for path in paths if times[path] == 1] for paths in alike.values())
        return tuple(
            Group(tuple(paths), tuple(self._layers[path] for path in paths))
            for paths in kept
            if len(paths) >= _LEAST
        )


class Repeating(TorchFunctionMode):
    """Inside, a run gets what another one got, as long as it asks for the same."""

    again: Again

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.again.call(func, args, kwargs or {})


def _layers(whole: nn.Module) -> dict[str, nn.Module]:
    """The outermost modules of which their owner has several that are built alike."""
    times: dict[int, int] = {}
    for _, x in whole.named_parameters(remove_duplicate=False):
        times[id(x)] = times.get(id(x), 0) + 1
    found: dict[str, nn.Module] = {}
    for path, owner in whole.named_modules():
        if any(f"{path}.".startswith(f"{outer}.") for outer in found):
            continue
        built: dict[Hashable, list[str]] = {}
        for name, child in owner.named_children():
            once = all(times[id(p)] == 1 for p in child.parameters())
            deep = next(child.children(), None) is not None
            if deep and once and not any(map(is_opaque, child.modules())):
                built.setdefault(_build(child), []).append(f"{path}.{name}" if path else name)
        for paths in built.values():
            if len(paths) >= _LEAST:
                found |= {p: whole.get_submodule(p) for p in paths}
    return found


def _build(layer: nn.Module) -> Hashable:
    """Its modules, parameters and buffers."""
    tensors = (*layer.named_parameters(), *layer.named_buffers())
    return (
        tuple((name, type(m), m.training) for name, m in layer.named_modules()),
        tuple((name, tuple(x.shape), x.dtype, x.requires_grad) for name, x in tensors),
    )


@contextmanager
def recorded_once(groups: Sequence[Group]) -> Iterator[None]:
    """Inside, the first layer of each group runs and the others are calls of `again`."""
    modules = [module for group in groups for module in group.modules]
    for group in groups:
        first: dict[str, Any] = {}
        for path, module in zip(group.paths, group.modules, strict=True):
            _instead(module, _once(module, (group.paths[0], path), first))
    try:
        yield
    finally:
        _as_they_were(modules)


def _once(module: nn.Module, paths: tuple[str, str], first: dict[str, Any]) -> Callable[..., Any]:
    own = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = tree_flatten((args, kwargs))
        given = [x for x in leaves if isinstance(x, Tensor)]
        if paths[0] == paths[1]:
            result = own(*args, **kwargs)
            places = {id(x): n for n, x in enumerate(given)}
            results, form = tree_flatten(result)
            made = {id(x): x for x in results if isinstance(x, Tensor) and id(x) not in places}
            numbers = {key: len(given) + n for n, key in enumerate(made)}
            ways = [
                (places | numbers).get(id(x), x) if isinstance(x, Tensor) else (x,) for x in results
            ]
            first.update(
                structure=structure, given=given, made=[*made.values()], ways=ways, form=form
            )
            return result
        if structure != first["structure"] or len(given) != len(first["given"]):
            raise _Unlike
        tensors = [*given, *AGAIN(first["given"], first["made"], given, list(paths))]
        found = [way[0] if isinstance(way, tuple) else tensors[way] for way in first["ways"]]
        return tree_unflatten(found, first["form"])

    return forward


def _instead(module: nn.Module, forward: Callable[..., Any]) -> None:
    module.__dict__["forward"] = forward


def _as_they_were(modules: Any) -> None:
    for module in modules:
        module.__dict__.pop("forward", None)


def live(
    graph: fx.Graph, roots: Sequence[fx.Node]
) -> tuple[set[fx.Node], dict[fx.Node, list[fx.Node]]]:
    """The nodes that the roots need, and for each `again` among them the nodes that it repeats."""
    found = set(roots)
    copies: dict[fx.Node, list[fx.Node]] = {}
    for node in reversed(graph.nodes):
        if node not in found:
            continue
        if node.target is AGAIN:
            copies[node], needed = _copied(graph, node, found)
            found.update(needed)
        else:
            found.update(node.all_input_nodes)
    return found, copies


def _copied(
    graph: fx.Graph, node: fx.Node, is_live: set[fx.Node]
) -> tuple[list[fx.Node], list[fx.Node]]:
    """What lies between what the first layer was given and what is used of its results; and what
    has to be there before."""
    given_first, made_first, given, (path, _) = (list(x) for x in node.args)
    own = dict(zip(given_first, given, strict=True))
    used = [made_first[u.args[1]] for u in node.users if u in is_live]
    between, needed = set(), []
    stack = list(used)
    while stack:
        x = stack.pop()
        if x in own:
            needed.append(own[x])
        elif x not in between and x.op == "call_function":
            between.add(x)
            stack += x.all_input_nodes
    copies = []
    depends = set(own)
    for x in graph.nodes:
        if x not in between:
            continue
        inside = any(
            entry[0].partition("@")[0] == path
            for entry in (x.meta.get("nn_module_stack") or {}).values()
        )
        if inside or not depends.isdisjoint(x.all_input_nodes):
            depends.add(x)
            copies.append(x)
    needed += [y for x in copies for y in x.all_input_nodes if y not in depends]
    return copies, needed
