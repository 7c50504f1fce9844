"""Lower bounds on what devices must receive for matrix products, and what a plan moves for them.

`accesses` has the least elements that a device touches of products that share matrices. Here they
are the products of a planned graph: every trained one, y = a b, is three: y = a b, da = dy b',
db = a' dy. Words follow from the accesses, counted for each element:

    an activation that q devices touch, once complete on one of them        q - 1 received
    a sum to which q devices contribute, and that someone needs whole       q - 1 received
    a weight that q devices use and r contribute gradients to               q + r - 2 received

The last holds however the weight is stored, as its holders need the whole gradient. So a device
receives on average at least the sum of its accesses less 1/p of each matrix.

Counted are products that the plan divides over all devices, operands that carry the value of a
product of their own, and sums whose whole value something needs: never more than the truth.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ..cost.recompute import Recomputation
from ..cost.sharded_storage import edge_times
from ..graph.graph import Graph, Op
from ..graph.placed import PlannedEdge, PlannedOp
from ..sbp.collectives import Collectives, device_bytes
from ..sbp.layout import TensorSpec
from ..sbp.mesh import Mesh
from ..sbp.signature import find_rule, is_matmul
from .accesses import Accesses, Multiply, least_accesses, memory_dependent_words
from .stage import StagePlan
from .stage_figures import stage_figures

_ROUNDING = 1e-8  # of what is summed; `least_accesses` itself ends at 1e-9


@dataclass(frozen=True)
class ProductBytes:
    """Bytes that each device receives in one iteration for matrix products.

    memory_independent, memory_dependent: at least, whatever the memory, and with the memory given
    moved:             by the plan's redistributions of activations and of the products' weights
    products, divided: number of products, and of those that the plan divides over all devices
    """

    memory_independent: float
    memory_dependent: float
    moved: float
    products: int
    divided: int

    @property
    def least(self) -> float:
        return max(self.memory_independent, self.memory_dependent)

    @property
    def ratio(self) -> float | None:
        """What the plan moves relative to the least; None where the least is nothing."""
        return self.moved / self.least if self.least > 0 else None


def product_bytes(stage: StagePlan) -> ProductBytes:
    """The account of the plan of a stage, with the memory that it may take of a device."""
    graph, mesh, micro_batches = stage.graph, stage.mesh, stage.micro_batches
    values = _Values(graph, mesh, stage.ops)
    independent, memo = 0.0, {}
    for accesses, products in _programs(values, micro_batches):
        key = tuple(accesses), tuple(products)
        if key not in memo:
            least = least_accesses(accesses, products)
            own = sum(a.weight * a.least for a in accesses)
            # what rounding leaves of sums that cancel is no word to move
            memo[key] = least - own if least - own > _ROUNDING * own else 0.0
        independent += memo[key]
    dependent = 0.0
    for op in values.divided:
        item = graph.tensors[op.outputs[0]].spec.item_bytes
        words = memory_dependent_words(
            _multiplications(graph, op), mesh.size, stage.memory_limit_bytes / item
        )
        count = 1 + sum((op.name, i) in graph.gives_grad for i in range(len(op.inputs)))
        # Of the words sent and received each device receives half on average.
        dependent += micro_batches * count * item * words / 2
    again = stage_figures(stage).again
    moved = _moved(
        graph, mesh, micro_batches, stage.ops, stage.edges, values, again, stage.cluster.collectives
    )
    return ProductBytes(
        independent,
        dependent,
        moved,
        sum(is_matmul(op.kind) for op in graph.ops),
        len(values.divided),
    )


def _multiplications(graph: Graph, op: Op) -> float:
    rule = find_rule(op.kind)
    assert rule is not None
    return rule.flops(graph.spec(op)) / 2


def _moved(
    graph: Graph,
    mesh: Mesh,
    micro_batches: int,
    ops: Mapping[str, PlannedOp],
    edges: Mapping[tuple[str, int], PlannedEdge],
    values: _Values,
    again: Recomputation,
    collectives: Collectives,
) -> float:
    weights = {v.name for v in values.all if v.is_param and v.readers}
    inputs = {op.name: op.inputs for op in graph.ops}
    total = 0.0
    for edge in edges.values():
        tensor = inputs[edge.op][edge.index]
        producer = graph.producers[tensor]
        is_param = producer.kind == "param"
        if is_param and tensor not in weights:
            continue
        spec = graph.tensors[tensor].spec
        forward, backward = edge_times(
            is_param, edge.zero_stage, micro_batches, again.passes(edge.op)
        )
        given = ops[producer.name].outs[producer.outputs.index(tensor)]
        total += sum(forward) * device_bytes(spec, given, edge.forward, mesh, collectives)
        back = ops[edge.op].grad_ins[edge.index]
        if back is not None:
            total += backward * device_bytes(spec, back, edge.backward, mesh, collectives)
    return total


@dataclass(eq=False)
class _Value:
    """A parameter, or an activation with everything that is computed from it alone.

    numel:   elements of the tensor that it began as
    fresh:   products (or convolutions) whose outputs are in it, element by element
    readers: (product, operand index) that read it whole in value
    root:    of `fresh`, the one that counts for this value; "" if it counts for nothing
    is_needed_whole:   something nonlinear reads it, element by element
    is_mixed:          it is a sum with another value, or goes into one
    is_read_otherwise: a heavy operator that is not one of `readers` reads it
    """

    name: str
    numel: int
    is_param: bool = False
    fresh: tuple[str, ...] = ()
    readers: list[tuple[Op, int]] = field(default_factory=list)
    is_needed_whole: bool = False
    is_mixed: bool = False
    is_read_otherwise: bool = False
    root: str = ""


class _Values:
    """Which tensors carry which value; `divided` are the products divided over all devices."""

    def __init__(self, graph: Graph, mesh: Mesh, ops: Mapping[str, PlannedOp]) -> None:
        self.graph, self.mesh = graph, mesh
        self.of: dict[str, _Value | None] = {}
        self.rank: dict[str, int] = {}  # independent elements of the value that a tensor has
        self.all: list[_Value] = []
        self.divided: list[Op] = []
        for op in graph.ops:
            self._add(op, _is_divided(ops[op.name], mesh))
        used: set[str] = set()
        for value in self.all:
            if value.readers and not value.is_param:
                value.root = next((f for f in value.fresh if f not in used), "")
                used.add(value.root)
        self.whole_sums = {v.root for v in self.all if v.root} | {
            v.fresh[0] for v in self.all if v.fresh and v.is_needed_whole and not v.is_mixed
        }
        # Gradients: those of the values above, and of products that go into the loss alone.
        self.gradients = {v.root for v in self.all if v.root} | {
            v.fresh[0]
            for v in self.all
            if len(v.fresh) == 1
            and v.is_needed_whole
            and not (v.is_mixed or v.readers or v.is_read_otherwise)
        }

    def _add(self, op: Op, is_divided: bool) -> None:
        rule = find_rule(op.kind)
        numel = [self.graph.tensors[name].spec.numel for name in op.outputs]
        if op.kind == "param":
            trained = op.outputs[0] in self.graph.needs_grad
            self._begin(op.outputs[0], is_param=True) if trained else self._free(op)
            return
        if op.kind in ("input", "stage_input") or op.name in self.graph.free_ops or rule is None:
            self._free(op)
            return
        if rule.heavy:
            is_product = is_matmul(op.kind) and is_divided
            if is_product:
                self.divided.append(op)
            for index, name in enumerate(op.inputs):
                value = self.of[name]
                if value is None:
                    continue
                if is_product and self.rank[name] == self.graph.tensors[name].spec.numel:
                    value.readers.append((op, index))
                else:
                    value.is_read_otherwise = True
            if is_divided and rule.product:
                self._begin(op.outputs[0], fresh=(op.name,))
            else:
                self._free(op)
            return
        inputs = [name for name in op.inputs if self.of[name] is not None]
        moving = [name for name in inputs if not _param(self.of[name])] or inputs
        read = list(dict.fromkeys(self.of[name] for name in moving))
        if len(read) == 1 and read[0] is not None:
            rank = max(self.rank[name] for name in moving)
            if rule.nonlinear and rank == read[0].numel:
                read[0].is_needed_whole = True
            for name, size in zip(op.outputs, numel, strict=True):
                self.of[name], self.rank[name] = read[0], min(rank, size)
            return
        whole = [n for n in moving if self.rank[n] == numel[0]] if rule.mixes else []
        for name in moving:
            value = self.of[name]
            assert value is not None
            value.is_mixed = True
        self._free(op)
        if whole and not any(_param(v) for v in read):
            fresh = [f for n in whole for f in _fresh(self.of[n])]
            self._begin(op.outputs[0], fresh=tuple(dict.fromkeys(fresh)), mixed=True)

    def _free(self, op: Op) -> None:
        for name in op.outputs:
            self.of[name], self.rank[name] = None, 0

    def _begin(
        self, name: str, is_param: bool = False, fresh: tuple[str, ...] = (), mixed: bool = False
    ) -> None:
        numel = self.graph.tensors[name].spec.numel
        value = _Value(name, numel, is_param, fresh, is_mixed=mixed)
        self.all.append(value)
        self.of[name], self.rank[name] = value, numel


def _param(value: _Value | None) -> bool:
    return value is not None and value.is_param


def _fresh(value: _Value | None) -> tuple[str, ...]:
    return () if value is None else value.fresh


def _is_divided(placed: PlannedOp, mesh: Mesh) -> bool:
    """Whether every device does 1/p of the operator's work."""
    return all(
        any(nd[axis].is_split for nd in (*placed.ins, *placed.outs))
        for axis in range(mesh.num_axes)
    )


def _programs(
    values: _Values, micro_batches: int
) -> Iterator[tuple[list[Accesses], list[Multiply]]]:
    """The products in groups that share no matrix, each as arguments of `least_accesses`."""
    group_of: dict[str, str] = {op.name: op.name for op in values.divided}

    def head(name: str) -> str:
        while group_of[name] != name:
            name = group_of[name]
        return name

    for value in values.all:
        for op, _ in value.readers if value.is_param or value.root else []:
            group_of[head(op.name)] = head(value.readers[0][0].name)
    groups: dict[str, list[Op]] = {}
    for op in values.divided:
        groups.setdefault(head(op.name), []).append(op)
    for ops in groups.values():
        yield _Program(values, micro_batches).of(ops)


class _Program:
    """The accesses of some products, numbered as they come."""

    def __init__(self, values: _Values, micro_batches: int) -> None:
        self.values, self.micro_batches = values, micro_batches
        self.accesses: list[Accesses] = []
        self.products: list[Multiply] = []
        self.numbers: dict[tuple[str, str], int] = {}

    def of(self, ops: list[Op]) -> tuple[list[Accesses], list[Multiply]]:
        graph, devices = self.values.graph, self.values.mesh.size
        for op in ops:
            work = _multiplications(graph, op) / devices
            out = graph.tensors[op.outputs[0]].spec
            left, right = (self._operand(op, index, "value") for index in (0, 1))
            whole = op.name in self.values.whole_sums
            self._multiply(left, right, self._number("sum", op.name, out, whole), work)
            grad = self._number("gradient", op.name, out, op.name in self.values.gradients)
            for index, other in ((0, right), (1, left)):
                if (op.name, index) in graph.gives_grad:
                    self._multiply(grad, other, self._operand(op, index, "gradient sum"), work)
        return self.accesses, self.products

    def _multiply(self, first: int, second: int, third: int, work: float) -> None:
        self.products.append(Multiply((first, second, third), work))

    def _operand(self, op: Op, index: int, role: str) -> int:
        """The accesses to an operand, or to the sum of its gradient: one for all of its readers."""
        value = self.values.of[op.inputs[index]]
        spec = self.values.graph.tensors[op.inputs[index]].spec
        if value is None or (op, index) not in value.readers:
            return self._number(role, f"{op.name} {index}", spec, False)
        counts = value.is_param or bool(value.root)
        if not counts:
            return self._number(role, f"{op.name} {index}", spec, False)
        largest = max(
            (self.values.graph.tensors[o.inputs[i]].spec for o, i in value.readers),
            key=lambda s: s.numel,
        )
        return self._number(role, value.name, largest, True, 1 if value.is_param else None)

    def _number(
        self, role: str, name: str, spec: TensorSpec, counts: bool, times: int | None = None
    ) -> int:
        key = role, name
        if key not in self.numbers:
            self.numbers[key] = len(self.accesses)
            weight = float(spec.item_bytes * (self.micro_batches if times is None else times))
            least = spec.numel / self.values.mesh.size
            self.accesses.append(Accesses(least, float(spec.numel), weight if counts else 0.0))
        return self.numbers[key]
