"""The exchange of gradients: which of them travel, and which may travel together, in a bucket.

The gradient of one use of a trained parameter travels back along the steps of its edge. Gradients
that take equal steps in the same groups of devices can travel as one tensor, if these steps are an
all-reduce, at once or in several steps: from Partial to Broadcast on every axis that they touch.
Then each local tensor may be laid out flat, one behind the other. Together they pay the latencies
of the steps once:

    seconds(bucket) = sum over steps of  alpha + beta (bytes of all its gradients)

A plan's `buckets` number the uses in the order of `exchanges`, and stand in the order in which they
leave: each as soon as the gradients of its members are there and the buckets before it have left,
and, if it `waits`, so many more operators have had their backward pass. A collective for which the
pass waits cannot overtake a bucket, so a large bucket in front of it may hold the pass up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate, chain

from ..graph.graph import SOURCE_KINDS, Graph
from ..graph.placed import PlannedEdge, PlannedOp
from ..sbp.collectives import Step
from ..sbp.layout import TensorSpec
from ..sbp.placement import B, NdSbp, S

Key = tuple[str, int]
Buckets = tuple[tuple[int, ...], ...]
Waits = tuple[int, ...]  # operators, for each bucket; () for none
Bucketed = tuple[Buckets, Waits]
AT_THE_END: Bucketed = (), ()  # each gradient by itself


@dataclass(frozen=True)
class Exchange:
    """The way of the gradient of one use of a parameter `tensor`, input `index` of operator `op`.

    given:    how the operator's backward pass leaves it
    is_often: it travels for each micro-batch (ZeRO's stages 2 and 3), not once an iteration
    """

    op: str
    index: int
    tensor: str
    spec: TensorSpec
    given: NdSbp
    steps: tuple[Step, ...]
    is_often: bool

    @property
    def key(self) -> Key:
        return self.op, self.index

    @cached_property
    def is_all_reduce(self) -> bool:
        """Whether its steps lead from Partial to Broadcast on every axis that they touch."""
        return _is_all_reduce(self.given, self.steps)

    @property
    def company(self) -> Hashable:
        """Equal for gradients that may travel in one bucket."""
        if not self.is_all_reduce or flat_steps(self.steps) is None:
            return self.key
        return self.spec.dtype, self.is_often, tuple((s.way, s.axes) for s in self.steps)


@lru_cache(maxsize=256)
def _is_all_reduce(given: NdSbp, steps: tuple[Step, ...]) -> bool:
    nd, touched = given, {axis for step in steps for axis in step.axes}
    for step in steps:
        nd = step.apply(nd)
    return all(given[axis].is_partial and nd[axis] == B for axis in touched)


@lru_cache(maxsize=256)
def flat_steps(steps: tuple[Step, ...]) -> tuple[Step, ...] | None:
    """The steps of an all-reduce on a flat tensor that is folded; None if none are the same.

    Each step that splits has a dim of its own: pieces of one dim that is split twice would have to
    follow one another as the mesh's axes do. All but the last of these dims are as long as it takes
    to split them (`runtime.execution.buckets`).
    """
    splits = [step.axes for step in steps if step.target.is_split]
    if len(splits) < 2:
        dim_of = dict.fromkeys(chain(*(step.axes for step in steps)), 0)
    else:
        dim_of = {axis: dim for dim, axes in enumerate(splits) for axis in axes}
        gathers = [step.axes for step in steps if step.source.is_split]
        if sorted(gathers) != sorted(splits) or len(dim_of) < sum(map(len, splits)):
            return None
    return on_dims(steps, dim_of.__getitem__)


def on_dims(steps: Sequence[Step], dim_of: Callable[[int], int]) -> tuple[Step, ...]:
    """The same steps, of which those along an axis split, or join, the dim that it is given."""
    return tuple(
        replace(
            step,
            source=S(dim_of(step.axes[0])) if step.source.is_split else step.source,
            target=S(dim_of(step.axes[0])) if step.target.is_split else step.target,
        )
        for step in steps
    )


def exchanges(
    graph: Graph, ops: Mapping[str, PlannedOp], edges: Mapping[Key, PlannedEdge]
) -> tuple[Exchange, ...]:
    """The uses of trained parameters whose gradients travel between devices, in graph order."""
    found: list[Exchange] = []
    for name, index, tensor in graph.once(_trained_uses):
        edge = edges.get((name, index))
        if edge is None or all(step.is_free for step in edge.backward):
            continue
        given = ops[name].grad_ins[index]
        if given is not None:
            spec, is_often = graph.tensors[tensor].spec, edge.zero_stage > 1
            found.append(Exchange(name, index, tensor, spec, given, edge.backward, is_often))
    return tuple(found)


def _trained_uses(graph: Graph) -> list[tuple[str, int, str]]:
    """Operator, input and tensor of each use of a trained parameter, in graph order."""
    trained = {t for op in graph.params for t in op.outputs if t in graph.needs_grad}
    uses = ((op.name, index, t) for op in graph.ops for index, t in enumerate(op.inputs))
    return [use for use in uses if use[2] in trained]


def check_buckets(
    graph: Graph, every: Sequence[Exchange], buckets: Buckets, waits: Waits = ()
) -> None:
    """ValueError unless each gradient is in one bucket, beside such as may travel with it.

    No buckets are right, too: then each travels by itself once the last pass is done.
    """
    if len(waits) not in (0, len(buckets)):
        raise ValueError(f"the plan has {len(buckets)} buckets, and says of {len(waits)} that wait")
    if not buckets:
        return
    found = Counter(number for bucket in buckets for number in bucket)
    numbers = range(len(every))
    wrong = [n for n in sorted({*found, *numbers}) if found[n] != 1 or n not in numbers]
    if wrong or not all(buckets):
        told = f"gradient {wrong[0]} is in {found[wrong[0]]} of them" if wrong else "one is empty"
        raise ValueError(
            f"the plan's buckets are not the {len(every)} gradients that travel, each once: {told}"
        )
    for number, bucket in enumerate(buckets):
        if len({every[n].company for n in bucket}) > 1:
            one, other = (every[n] for n in bucket[:2])
            raise ValueError(
                f"bucket {number} of the plan has gradients that cannot travel together, "
                f"such as those of input {one.index} of {one.op} and {other.index} of {other.op}"
            )
    running = sum(op.kind not in SOURCE_KINDS for op in graph.ops)
    if waits and max(leaving(graph, every, buckets, waits)) >= running:
        raise ValueError("a bucket of the plan waits for longer than the backward pass lasts")


def passes(graph: Graph) -> dict[str, int]:
    """Operator that runs -> the place of its backward pass, 0 for that of the last one."""
    running = (op.name for op in reversed(graph.ops) if op.kind not in SOURCE_KINDS)
    return {name: place for place, name in enumerate(running)}


def filling(graph: Graph, every: Sequence[Exchange], buckets: Buckets) -> list[int]:
    """Behind which backward pass each bucket is full, as `passes`; every: the `exchanges`."""
    place_of = passes(graph)
    return [max(place_of[every[n].op] for n in bucket) for bucket in buckets]


def leaving(graph: Graph, every: Sequence[Exchange], buckets: Buckets, waits: Waits) -> list[int]:
    """Behind which backward pass each bucket leaves, as `filling`; waits: one for each bucket."""
    pairs = zip(filling(graph, every, buckets), waits, strict=True)
    return list(accumulate((place + wait for place, wait in pairs), max))


def departures(
    graph: Graph, every: Sequence[Exchange], buckets: Buckets, waits: Waits
) -> dict[int, list[list[Exchange]]]:
    """Place of a backward pass -> the buckets that leave behind it; {} if none may wait."""
    found: dict[int, list[list[Exchange]]] = {}
    places = leaving(graph, every, buckets, waits) if buckets and waits else ()
    for place, bucket in zip(places, buckets, strict=False):
        found.setdefault(place, []).append([every[n] for n in bucket])
    return found


def sharers(every: Sequence[Exchange], buckets: Buckets) -> dict[Key, int]:
    """Use of a parameter -> how many gradients its bucket has."""
    return {every[n].key: len(bucket) for bucket in buckets for n in bucket}
