"""What a planned step holds on one device, added up operator by operator.

    parameters  local bytes x (weight + gradient) + float32 x (optimizer slots + master copy)
    activations local bytes of every output that the backward pass reads on the back end (`Kept`),
                of one micro-batch, and what operators keep beside them (`Rule.beside`)
    copies      local bytes of every redistributed input that it reads
    gradients   of shared parameters and of the last product, see below

Of blocks that are run again (`recompute`), what stays inside is there for one block at a time: the
largest one counts, by its mean share (`Recomputation.weights`), so that a plan's sum is that of the
search. Whether a step fits is told by its peak (`required.required_bytes`), not by this sum.

Gradients that are there at the peak beside one for each parameter are

    those of shared parameters: the gradient of each reader is accumulated on its own
    those of the last product: with micro-batches a step holds the most as its backward pass begins,
        when all activations and all accumulated gradients are there, with the gradients of the last
        product or of the operator that reads its output (a softmax):

        max( gradients of the product - what its reader keeps, gradients of its reader )

as what the reader keeps is gone when it is the product's turn. With recomputation a step may hold
the most as the backward pass of a block begins, and the gradients of its last product count, as
does what ZeRO's stage 3 has gathered for the block.
Without it, and with one micro-batch, gradients of parameters come as activations go.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from ..graph.graph import SOURCE_KINDS, Graph, Op
from ..graph.placed import PlannedEdge, PlannedOp
from ..graph.regions import Blocks
from ..sbp.layout import even_bytes
from ..sbp.mesh import Mesh
from ..sbp.signature import OpSpec, find_rule
from .model import CostModel
from .operators import computes
from .recompute import Recomputation, is_product

_UNSAVED = ("loss", "stage_input", "stage_output")  # no operators of a back end


def beside_shares(op: OpSpec) -> tuple[float, float]:
    """Bytes kept for the backward pass beside inputs and outputs, for each byte of the first input

    and for each of the first output.
    """
    rule = find_rule(op.kind)
    return rule.beside(op) if rule else (0.0, 0.0)


def beside_bytes(op: OpSpec, ins: Sequence[float], outs: Sequence[float]) -> float:
    """Bytes kept for the backward pass beside inputs and outputs, of these local bytes."""
    of_input, of_output = beside_shares(op)
    return (of_input * ins[0] if of_input else 0.0) + (of_output * outs[0] if of_output else 0.0)


def lasting_shares(op: OpSpec) -> tuple[float, float]:
    """`beside_shares` of what is still there when the backward pass of the last product begins."""
    rule = find_rule(op.kind)
    return rule.beside(op) if rule and rule.beside_lasts else (0.0, 0.0)


def is_shared(graph: Graph, tensor: str) -> bool:
    """True for a trained parameter with several readers."""
    is_param = graph.producers[tensor].kind == "param"
    return is_param and tensor in graph.needs_grad and len(graph.consumers[tensor]) > 1


def last_counts(micro_batches: int, recomputes: bool) -> bool:
    """Whether the last product's gradients count as memory."""
    return micro_batches > 1 and not recomputes


def last_product(graph: Graph) -> Op | None:
    """The last product or convolution that is trained."""
    return next((op for op in reversed(graph.ops) if is_product(graph, op)), None)


def reader_of(graph: Graph, product: Op) -> Op | None:
    """The one operator that computes with the output of `product`, or with a view of it."""
    op = product
    while len(op.outputs) == 1:
        readers = graph.consumers[op.outputs[0]]
        if len(readers) != 1:
            return None
        op = readers[0][0]
        rule = find_rule(op.kind)
        if rule is None or not any(o in graph.needs_grad for o in op.outputs):
            return None
        if computes(graph.spec(op), rule):
            return op
    return None


@dataclass(frozen=True)
class Kept:
    """What forward passes leave for the backward pass, by what gradients read.

    makers:  names of the operators whose outputs are kept, themselves or as views of theirs
    readers: (operator, index) of the inputs that are read again: copies of these are kept
    takers:  those of tensors that no other gradient reads, not even its maker's: of these there is
             the copy alone, if there is one, so they count as their reader takes them
    given:   names of the operators that make these
    """

    makers: frozenset[str]
    readers: frozenset[tuple[str, int]]
    takers: frozenset[tuple[str, int]]
    given: frozenset[str]

    def holds(self, op: Op) -> bool:
        """Whether the outputs of `op`, or copies of them, are kept."""
        return op.name in self.makers or op.name in self.given

    @staticmethod
    def of(graph: Graph, model: CostModel, again: Recomputation) -> Kept:
        saves = _all if model.counts_all else model.memory_rules.operators.saves
        return graph.once(_kept, saves, again.blocks)

    def key(self, op: Op) -> tuple[bool, tuple[int, ...], tuple[int, ...]]:
        """Equal for operators of which as much is kept, all else being equal."""
        uses = [(op.name, n) for n in range(len(op.inputs))]
        read = tuple(n for n, use in enumerate(uses) if use in self.readers)
        taken = tuple(n for n, use in enumerate(uses) if use in self.takers)
        return op.name in self.makers, read, taken


def _all(kind: str) -> str:
    """As if the backward pass of any kind of operator read everything."""
    del kind
    return "all"


def _kept(graph: Graph, saves: Callable[[str], str], blocks: Blocks) -> Kept:
    """Blocks that are run again need what they read from outside.

    Inside of them all counts: the fullest moment is within the backward pass of one, where what is
    not kept has made room for as many gradients, and copies are there one by one.
    """
    block_of = {name: number for number, block in enumerate(blocks) for name in block}
    made_in = {name: block_of.get(op.name) for op in graph.ops for name in op.outputs}
    read: set[str] = set()
    for op in graph.ops if blocks else ():
        block = block_of.get(op.name)
        read.update(n for n in op.inputs if block is not None and made_in[n] != block)
    makers, readers, takers = set[str](), set[tuple[str, int]](), dict[tuple[str, int], str]()
    for op in reversed(graph.ops):
        found = _read_by(graph, op, saves(op.kind)) if op.kind not in SOURCE_KINDS else []
        has_grad = not graph.needs_grad.isdisjoint(op.outputs)
        if _is_view(op) and not read.isdisjoint(op.outputs):
            found.append(0)
        if op.name in block_of:
            found = [*range(len(op.inputs)), *(~n for n in range(len(op.outputs)) if has_grad)]
        readers.update((op.name, n) for n in found if n >= 0)
        read.update(op.inputs[n] if n >= 0 else op.outputs[~n] for n in found)
        if op.kind != "stage_input" and (_is_free(graph, op) or read.isdisjoint(op.outputs)):
            continue
        makers.add(op.name)
        uses = [use for name in op.outputs for use in graph.consumers[name]]
        if op.kind != "stage_input" and len(uses) == 1 and min(found, default=0) >= 0:
            ((reader, index),) = uses
            if not _is_view(reader) and reader.name not in block_of:
                takers[reader.name, index] = op.name
    given = frozenset(takers.values())
    every = frozenset(takers)
    return Kept(frozenset(makers) - given, frozenset(readers) - every, every, given)


def _is_view(op: Op) -> bool:
    rule = find_rule(op.kind)
    return rule is not None and rule.is_view


def _is_free(graph: Graph, op: Op) -> bool:
    """Whether its outputs need no memory of their own."""
    rule = find_rule(op.kind)
    return rule is None or not computes(op, rule) or op.name in graph.free_ops


def _read_by(graph: Graph, op: Op, saved: str) -> list[int]:
    """Numbers of the inputs that an operator's backward pass reads, and ~ those of its outputs."""
    if op.kind in _UNSAVED or graph.needs_grad.isdisjoint(op.outputs):
        return []
    inputs, outputs, names = range(len(op.inputs)), range(len(op.outputs)), saved.split()
    if "all" in names:
        return [*inputs, *(~n for n in outputs)]
    wanted = {n for n in inputs if (op.name, n) in graph.gives_grad}
    found = [n for n in inputs if f"x{n}" in names or ("other" in names and wanted - {n})]
    return [*found, *(~n for n in outputs if f"y{n}" in names)]


@dataclass
class Held:
    """Bytes of an operator, a layer or a plan, on one device.

    fixed_bytes:  of `memory_bytes`, parameters, their state and what is gathered of them
    kept_bytes:   what each micro-batch in flight holds, once
    inside_bytes: of operators of a block that is run again, what is there only while it is at work,
                  and of what comes after the blocks; `memory_bytes` has `counted_bytes` of it
    """

    memory_bytes: float = 0.0
    fixed_bytes: float = 0.0
    kept_bytes: float = 0.0
    inside_bytes: float = 0.0
    counted_bytes: float = 0.0

    def add(self, other: Held) -> None:
        self.memory_bytes += other.memory_bytes
        self.fixed_bytes += other.fixed_bytes
        self.kept_bytes += other.kept_bytes
        self.inside_bytes += other.inside_bytes
        self.counted_bytes += other.counted_bytes


def placed_alike(
    graph: Graph, ops: Mapping[str, PlannedOp], edges: Mapping[tuple[str, int], PlannedEdge]
) -> dict[str, int]:
    """Operator name -> a number, equal for operators that are alike, and placed and read alike.

    As seen by the objects, of which a search has one for all that are equal. So the account of
    GPT-3 175B on 128x8 devices, of 96 equal blocks, takes half as long.
    """
    numbers: dict[Hashable, int] = {}
    found: dict[str, int] = {}
    shared = {name for op in graph.params for name in op.outputs if is_shared(graph, name)}
    for op in graph.ops:
        key: list[Hashable] = [graph.alike[op.name], id(ops[op.name]), op.name in graph.free_ops]
        for name in op.outputs:
            key += name in graph.needs_grad, name in shared
        for index, name in enumerate(op.inputs):
            producer, edge = graph.producers[name], edges.get((op.name, index))
            key += producer.kind, name in graph.needs_grad, name in shared
            if edge is not None:
                given = id(ops[producer.name]), producer.outputs.index(name)
                key += *given, id(edge.forward), id(edge.backward), edge.zero_stage
        found[op.name] = numbers.setdefault(tuple(key), len(numbers))
    return found


def held_bytes(
    graph: Graph,
    model: CostModel,
    micro_batches: int,
    ops: Mapping[str, PlannedOp],
    edges: Mapping[tuple[str, int], PlannedEdge],
    again: Recomputation,
    mesh: Mesh | None = None,
    alike: Mapping[str, int] | None = None,
) -> dict[str, Held]:
    """Operator name -> what it holds; a copy counts for the operator that reads it.

    mesh: as the devices see it that are meant; None: as the fullest do (`CostModel.memory_mesh`)
    alike: `placed_alike`, if it is known
    """
    mesh, copies = mesh or model.memory_mesh, model.parameter_copies
    kept = Kept.of(graph, model, again)
    alike = placed_alike(graph, ops, edges) if alike is None else alike
    last = last_product(graph) if last_counts(micro_batches, bool(again.blocks)) else None
    reader = None if last is None else reader_of(graph, last)
    held: dict[str, Held] = {}
    known: dict[Hashable, Held] = {}
    # bytes by operator of each block, and of what comes after them
    inside: list[dict[str, float]] = [{} for _ in (*again.blocks, "tail") if again.blocks]
    for op in graph.ops:
        name = op.name
        where = again.leaves(op), name in again.last_products, name in again.done
        key = alike[name], *where, name in again.place_of, name in again.block_of, kept.key(op)
        if key not in known:
            own = _of_operator(graph, mesh, copies, micro_batches, op, ops[name], kept)
            known[key] = _held_with_inputs(own, graph, mesh, op, ops, edges, again, kept)
        own = held[name] = Held(*vars(known[key]).values())
        if name in again.place_of:
            inside[again.place_of[name]][name] = own.inside_bytes
    if last is not None:
        added = _gradient_bytes(graph, mesh, last, ops[last.name])
        if reader is not None:
            stays = _kept_bytes(graph, mesh, reader, ops[reader.name], kept)
            added = max(added - stays, _gradient_bytes(graph, mesh, reader, ops[reader.name]))
        held[last.name].memory_bytes += added
    for share, block in zip(again.weights if inside else (), inside, strict=True):
        for name, within in block.items():
            held[name].counted_bytes = share * within
            held[name].memory_bytes -= (1 - share) * within
    return held


def _held_with_inputs(
    own: Held,
    graph: Graph,
    mesh: Mesh,
    op: Op,
    ops: Mapping[str, PlannedOp],
    edges: Mapping[tuple[str, int], PlannedEdge],
    again: Recomputation,
    kept: Kept,
) -> Held:
    """What an operator holds; own: its outputs, which are added to."""
    placed = ops[op.name]
    extra = _extra_bytes(graph, mesh, op, placed)
    within = extra if again.leaves(op) else own.memory_bytes + extra
    own.memory_bytes += extra
    if op.name in again.last_products:
        gradients = _gradient_bytes(graph, mesh, op, placed)
        own.memory_bytes += gradients
        within += gradients
    for index, name in enumerate(op.inputs):
        edge = edges.get((op.name, index))
        is_kept = (op.name, index) in kept.readers
        if (op.name, index) in kept.takers:
            taken = even_bytes(graph.tensors[name].spec, placed.ins[index], mesh)
            own.memory_bytes += taken
            within += taken
        within += _add_input(own, graph, mesh, placed, index, name, edge, ops, again, is_kept)
    if op.name in again.done:
        own.memory_bytes -= within
        within = 0.0
    own.inside_bytes = within = within if op.name in again.place_of else 0.0
    if op.kind not in ("input", "buffer"):
        own.kept_bytes = own.memory_bytes - own.fixed_bytes - within
        own.memory_bytes += (again.in_flight - 1) * own.kept_bytes
    return own


def _of_operator(
    graph: Graph,
    mesh: Mesh,
    parameter_copies: int,
    times: int,
    op: Op,
    placed: PlannedOp,
    kept: Kept,
) -> Held:
    """Its outputs, as far as they are kept."""
    spec, rule = graph.spec(op), find_rule(op.kind)
    assert rule is not None, f"{op.name} has no rule"
    out_bytes = sum(
        even_bytes(t, nd, mesh) for t, nd in zip(spec.outputs, placed.outs, strict=True)
    )
    if op.kind == "param":
        (tensor,) = op.outputs
        copies = parameter_copies if tensor in graph.needs_grad else 1
        size = out_bytes * (copies - is_shared(graph, tensor))
        return Held(size, size)
    if op.kind in ("input", "buffer"):  # the whole batch is there all the time
        return Held(out_bytes * (times if op.kind == "input" else 1))
    return Held(out_bytes if op.name in kept.makers else 0.0)


def _add_input(
    own: Held,
    graph: Graph,
    mesh: Mesh,
    placed: PlannedOp,
    index: int,
    name: str,
    edge: PlannedEdge | None,
    ops: Mapping[str, PlannedOp],
    again: Recomputation,
    is_kept: bool,
) -> float:
    """Add what an operator holds of an input; how much of that stays inside its block.

    is_kept: whether its backward pass reads it
    """
    producer, spec, within = graph.producers[name], graph.tensors[name].spec, 0.0
    is_param = producer.kind == "param"
    accumulated = placed.grad_ins[index]
    if is_param and accumulated is not None and is_shared(graph, name):
        size = even_bytes(spec, accumulated, mesh)
        own.memory_bytes += size
        own.fixed_bytes += size
    if edge is None:
        return within
    stays = bool(edge.forward) and not edge.forward[-1].target.is_partial
    # readers of a buffer cut out what they need; the sweep counts it while it lives
    stays = stays and (is_param or is_kept)
    if stays and edge.zero_stage < 3 and producer.kind != "buffer":
        copy = even_bytes(spec, placed.ins[index], mesh)
        own.memory_bytes += copy
        own.fixed_bytes += copy if is_param else 0.0
        within += 0.0 if is_param else copy
    if edge.zero_stage == 3 and edge.op in again.block_of:  # gathered as it is run again
        copy = even_bytes(spec, placed.ins[index], mesh)
        own.memory_bytes += copy
        within += copy
    if edge.backward and accumulated is not None and edge.zero_stage == 1:
        given = ops[producer.name].outs[producer.outputs.index(name)]
        whole, apart = (even_bytes(spec, nd, mesh) for nd in (accumulated, given))
        own.memory_bytes += whole - apart
        own.fixed_bytes += whole - apart
    return within


def _kept_bytes(graph: Graph, mesh: Mesh, op: Op, placed: PlannedOp, kept: Kept) -> float:
    """Bytes of the outputs of `op` and of what it keeps beside them."""
    outs = zip(op.outputs, placed.outs, strict=True) if kept.holds(op) else ()
    size = sum(even_bytes(graph.tensors[t].spec, nd, mesh) for t, nd in outs)
    return size + _extra_bytes(graph, mesh, op, placed)


def _extra_bytes(graph: Graph, mesh: Mesh, op: Op, placed: PlannedOp) -> float:
    """Bytes kept for the backward pass of `op` beside its inputs and outputs."""
    if op.name in graph.free_ops or not any(o in graph.needs_grad for o in op.outputs):
        return 0.0
    return _shares_bytes(graph.spec(op), lasting_shares(graph.spec(op)), mesh, placed)


def _shares_bytes(
    spec: OpSpec, shares: tuple[float, float], mesh: Mesh, placed: PlannedOp
) -> float:
    of_input, of_output = shares
    found = 0.0
    if of_input:
        found += of_input * even_bytes(spec.inputs[0], placed.ins[0], mesh)
    if of_output:
        found += of_output * even_bytes(spec.outputs[0], placed.outs[0], mesh)
    return found


def _gradient_bytes(graph: Graph, mesh: Mesh, op: Op, placed: PlannedOp) -> float:
    """Bytes of the gradients of `op` during its backward pass, and of what goes with that."""
    spec = graph.spec(op)
    (all_in, all_out), (in_, out) = beside_shares(spec), lasting_shares(spec)
    found = _shares_bytes(spec, (all_in - in_, all_out - out), mesh, placed)
    grads = zip((*op.outputs, *op.inputs), (*placed.grad_outs, *placed.grad_ins), strict=True)
    return found + sum(
        even_bytes(graph.tensors[name].spec, nd, mesh)
        for name, nd in grads
        if name in graph.needs_grad and nd is not None
    )
