"""Cuts a graph into layers, and gives any run of layers as a graph of its own.

A layer consists of one heavy operator (a product, a convolution, ...) and the light ones around it.
Between two heavy operators, in topological order, it ends where the fewest bytes cross. Parameters,
buffers, inputs and results of constants alone have no position: every stage that reads one has it.

    crossing(k)  tensors computed by operators before k and read by operators from k on

`CutGraph.stage(first, last)` is the graph of the layers from `first` up to (not including) `last`:
tensors from earlier layers become `stage_input`s, tensors that later layers read become
`stage_output`s. This covers long skip connections: the tensor travels from the stage that computes
it directly to every stage that reads it, however many stages lie between.

A parameter that layers of several stages use (tied weights) is replicated: each of these stages
holds it and its optimizer state, and their gradients are summed once per iteration.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..sbp.signature import find_rule
from .graph import Graph, Op
from .regions import crossing_bytes, repeated_blocks


@dataclass(frozen=True)
class CutGraph:
    """A traced graph without forks, and its layers as operator names in graph order."""

    graph: Graph
    layers: tuple[tuple[str, ...], ...]

    def verify(self) -> None:
        """ValueError unless every operator that has a place is in one layer, in graph order."""
        placed = [name for layer in self.layers for name in layer]
        body = {op.name: n for n, op in enumerate(body_of(self.graph))}
        ours = [body[name] for name in placed if name in body]
        if ours != list(range(len(body))) or len(set(placed)) < len(placed):
            missing = [name for name in body if name not in placed]
            what = f"lack {missing[0]!r}" if missing else "have one twice, or in another order"
            raise ValueError(f"the layers are not the graph's operators in order: they {what}")
        if unknown := set(placed) - self._ops.keys():
            raise ValueError(f"the layers have an operator {min(unknown)!r} that the graph lacks")

    @cached_property
    def layer_of(self) -> dict[str, int]:
        """Operator name -> its layer; sources and constants are in none."""
        return {name: n for n, layer in enumerate(self.layers) for name in layer}

    @cached_property
    def readers(self) -> dict[str, tuple[int, ...]]:
        """Computed tensor -> the other layers that read it, ascending."""
        found = {}
        for name, uses in self.graph.consumers.items():
            home = self.layer_of.get(self.graph.producers[name].name)
            if home is not None:
                layers = {self.layer_of[op.name] for op, _ in uses if op.name in self.layer_of}
                found[name] = tuple(sorted(layers - {home}))
        return found

    @cached_property
    def givers(self) -> dict[str, tuple[int, ...]]:
        """Computed tensor -> those of its `readers` that send a gradient back for it."""
        giving = {
            (self._ops[name].inputs[index], self.layer_of[name])
            for name, index in self.graph.gives_grad
        }
        return {
            name: tuple(layer for layer in layers if (name, layer) in giving)
            for name, layers in self.readers.items()
        }

    def ops_of(self, layer: int) -> list[Op]:
        return [self._ops[name] for name in self.layers[layer]]

    def sent(self, first: int, last: int) -> tuple[str, ...]:
        """Tensors that layers [first, last) compute and later layers read."""
        return tuple(
            name
            for name, home, readers in self._crossing
            if first <= home < last and readers[-1] >= last
        )

    def received(self, first: int, last: int) -> tuple[str, ...]:
        """Tensors that earlier layers compute and layers [first, last) read."""
        return tuple(
            name
            for name, home, readers in self._crossing
            if home < first and any(first <= r < last for r in readers)
        )

    @cached_property
    def _crossing(self) -> list[tuple[str, int, tuple[int, ...]]]:
        """Each tensor that other layers read, the layer that computes it, and `readers`."""
        home = {name: self.layer_of.get(op.name) for name, op in self.graph.producers.items()}
        found = ((name, home[name], readers) for name, readers in self.readers.items() if readers)
        return [(name, at, readers) for name, at, readers in found if at is not None]

    @cached_property
    def param_users(self) -> dict[str, tuple[int, ...]]:
        """Parameter operator -> the layers that use it, ascending."""
        found: dict[str, set[int]] = {op.name: set() for op in self.graph.params}
        for n, layer in enumerate(self.layers):
            for op in self._sources_of(layer):
                if op.kind == "param":
                    found[op.name].add(n)
        return {name: tuple(sorted(users)) for name, users in found.items()}

    @property
    def tied(self) -> dict[str, tuple[int, ...]]:
        """The parameters that more than one layer uses."""
        return {name: users for name, users in self.param_users.items() if len(users) > 1}

    @cached_property
    def _ops(self) -> dict[str, Op]:
        return {op.name: op for op in self.graph.ops}

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self._ops)}

    def _sources_of(self, names: Sequence[str]) -> list[Op]:
        """Sources and constants that the operators need, in graph order."""
        needed: set[str] = set()
        work = [self._ops[name] for name in names]
        while work:
            for tensor in work.pop().inputs:
                producer = self.graph.producers[tensor]
                if producer.name not in self.layer_of and producer.name not in needed:
                    needed.add(producer.name)
                    work.append(producer)
        return [self._ops[name] for name in sorted(needed, key=self._places.__getitem__)]

    def stage(self, first: int, last: int) -> Graph:
        """The graph of layers [first, last); the whole graph if these are all layers."""
        if not 0 <= first < last <= len(self.layers):
            raise ValueError(
                f"a stage is a run of the {len(self.layers)} layers, got [{first}, {last})"
            )
        if (first, last) == (0, len(self.layers)):
            return self.graph
        body = [name for layer in self.layers[first:last] for name in layer]
        kept = {*body, *(op.name for op in self._sources_of(body))}
        received, sent = self.received(first, last), self.sent(first, last)
        ops = [self._end("stage_input", name, range(first, last)) for name in received]
        ops += [op for op in self.graph.ops if op.name in kept]
        later = range(last, len(self.layers))
        ops += [self._end("stage_output", name, later) for name in sent]
        produced = {out for op in ops for out in op.outputs}
        graph = dataclasses.replace(
            self.graph,
            ops=tuple(ops),
            tensors={name: t for name, t in self.graph.tensors.items() if name in produced},
            outputs=tuple(n for n in self.graph.outputs if n in produced and n not in received),
            loss=self.graph.loss if self.graph.loss in produced else "",
            name=f"{self.graph.name} layers {first}-{last - 1}",
        )
        graph.verify()
        return graph

    def without(self, first: int, last: int) -> Graph:
        """The graph without layers [first, last), each of which is like layer `first` - 1.

        Operators that read a tensor of a removed layer read that of layer `first` - 1 instead.
        """
        names = {
            theirs: ours
            for layer in range(first, last)
            for op, like in zip(self.ops_of(layer), self.ops_of(first - 1), strict=True)
            for theirs, ours in zip(op.outputs, like.outputs, strict=True)
        }
        body = [name for layer in (*self.layers[:first], *self.layers[last:]) for name in layer]
        kept = {*body, *(op.name for op in self._sources_of(body))}
        ops = tuple(
            dataclasses.replace(op, inputs=tuple(names.get(n, n) for n in op.inputs))
            for op in self.graph.ops
            if op.name in kept
        )
        produced = {out for op in ops for out in op.outputs}
        graph = dataclasses.replace(
            self.graph,
            ops=ops,
            tensors={name: t for name, t in self.graph.tensors.items() if name in produced},
            outputs=tuple(n for n in self.graph.outputs if n in produced),
            name=f"{self.graph.name} without layers {first}-{last - 1}",
        )
        graph.verify()
        return graph

    def _end(self, kind: str, tensor: str, readers: range) -> Op:
        """The `stage_input` or `stage_output` of a tensor that some of the layers read."""
        attrs = {"tensor": tensor, "gradient": any(n in readers for n in self.givers[tensor])}
        module = self.graph.producers[tensor].module
        ends = ((), (tensor,)) if kind == "stage_input" else ((tensor,), ())
        return Op(f"{tensor}.{kind}", kind, *ends, attrs, module=module)


def cut_graph(
    graph: Graph, most_layers: int | None = None, starts: Collection[str] | None = None
) -> CutGraph:
    """Cut `graph` into layers, removing the cuts that carry most bytes above `most_layers`.

    Among cuts that carry equally many bytes, those inside repeated blocks are removed first. A
    layer gets at most twice the work of an equal part: else all of a decoder would be one, as what
    an encoder made crosses each of its cuts.

    starts: names of the operators before which alone it is cut, if they are given
    Raises ValueError if `most_layers` is not at least 1.
    """
    if most_layers is not None and most_layers < 1:
        raise ValueError(f"most_layers must be at least 1, got {most_layers}")
    body = body_of(graph)
    if starts is not None:
        return _layers(graph, body, [n for n, op in enumerate(body) if n and op.name in starts])
    crossing = crossing_bytes(graph, body).tolist()
    heavy = [n for n, op in enumerate(body) if _is_heavy(op)]
    cuts = [
        min(range(a + 1, b + 1), key=lambda k: (crossing[k], -k))
        for a, b in zip(heavy, heavy[1:], strict=False)
    ]
    work = [0.0]
    for op in body:
        rule = find_rule(op.kind)
        work.append(work[-1] + (rule.flops(graph.spec(op)) if rule is not None else 0.0))
    most_cuts = len(cuts) if most_layers is None else most_layers - 1
    between = block_starts(graph, body) if len(cuts) > most_cuts else frozenset()
    while len(cuts) > most_cuts:
        bounds = [0, *cuts, len(body)]
        joined = [work[b] - work[a] for a, b in zip(bounds, bounds[2:], strict=False)]
        # of the pairs of neighbours, whose work is twice the whole at most, one has so little
        most = 2 * work[-1] / (most_cuts + 1)
        keys = [
            (own > most, -crossing[k], k in between, own)
            for k, own in zip(cuts, joined, strict=True)
        ]
        del cuts[keys.index(min(keys))]
    return _layers(graph, body, cuts)


def _layers(graph: Graph, body: Sequence[Op], cuts: Sequence[int]) -> CutGraph:
    bounds = [0, *cuts, len(body)]
    layers = (body[a:b] for a, b in zip(bounds, bounds[1:], strict=False))
    return CutGraph(graph, tuple(tuple(op.name for op in layer) for layer in layers))


def body_of(graph: Graph) -> list[Op]:
    """The operators that have a place: neither sources nor computed from constants alone."""
    return [op for op in graph.ops if op.kind != "param" and op.name not in graph.free_ops]


def block_starts(graph: Graph, body: Sequence[Op]) -> frozenset[int]:
    """Positions in `body` where repeated blocks start, and where the last block of a run ends."""
    at = {op.name: n for n, op in enumerate(body)}
    found: set[int] = set()
    for block in repeated_blocks(graph):
        inside = [at[name] for name in block if name in at]
        found |= {min(inside), max(inside) + 1}
    return frozenset(found)


def _is_heavy(op: Op) -> bool:
    rule = find_rule(op.kind)
    return rule is not None and rule.heavy
