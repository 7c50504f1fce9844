"""The families of known schemes, and the topologies in which each is tried.

The mesh's axes are divided in two: *data* axes split the batch, *tensor* axes the weights.

    family          tensor axes            replicated weights are stored
    data parallel   none                   whole
    ZeRO            none                   split over the data axes, gathered at use
    Megatron        columns, rows in turn  whole
    Megatron+ZeRO   columns, rows in turn  split over the data axes, gathered at use
    SUMMA           columns everywhere     split over the data axes, gathered at use
    experts         experts                whole

Expert parallelism with data parallelism around it is DeepSpeed-MoE's: all axes split the batch, but
on the last ones the products of experts split the experts, with all-to-alls before and after. It is
tried on models that have such products, weights [experts, in, out].

SUMMA in SBP: on a grid of r x c devices X, W and Y are stored as (S0, S1), in blocks. A device
needs the block row of X and the block column of W, which SUMMA broadcasts block by block along the
rows and the columns of the grid; the bytes are those of an all-gather of X along c, (S0, S1) ->
(S0, B), and one of W along r, (S0, S1) -> (B, S1). The product (S0, B) x (B, S1) is local.
The backward pass mirrors both by reduce-scatters. This is the S0, B, S1 = r, c, 1 case of AutoDDL's
section 4.2 with W in blocks. A difference to Optimus, in SUMMA's favour: the runtime gathers a
parameter once an iteration and keeps what it gathered for the backward pass, where Optimus
broadcasts W again in each pass and for each micro-batch (section 5.4). So SUMMA is faster here than
there, and takes the memory of a gathered copy.

ZeRO here is stage 1 or 2, whichever fits and is faster (`cost.sharded_storage`): a parameter and
its optimizer state are split over the axes that replicate it, in stage 2 its gradient too;
all-gather and reduce-scatter cost as much as the all-reduce of data parallelism. A gathered copy
stays for the iteration; stage 3, without it, only the search chooses.

Of a product Y = X W, S0 splits the rows of X, B the columns of W, S1 the summed dim (AutoDDL,
section 4.2). Megatron alternates B and S1, SUMMA has B everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...cost.recompute import Checkpointing
from ...graph import demands
from ...graph.graph import SOURCE_KINDS, Graph, Op
from ...graph.regions import Blocks
from ...plans.schedule.step import StepMaker
from ...plans.stage import Split
from ...sbp.mesh import Mesh
from ...sbp.placement import NdSbp, Placement
from ...sbp.signature import is_matmul
from ..layers import topology_letters
from ..tables.groups import CompositeSignature, Group, rule_of

ANY = ""  # the letter of an operator that a scheme leaves open
EXPERTS = "E"


def alternating(graph: Graph) -> dict[str, str]:
    """Megatron: products with a weight B, S1, B, ... in order, embeddings S1 (by vocabulary)."""
    letters = _data_parallel_convolutions(graph)
    products = [op for op in graph.ops if reads_weight(graph, op) and op.name not in letters]
    turns = [op for op in products if op.kind != "gather"]
    letters.update({op.name: "S1" for op in products if op.kind == "gather"})
    letters.update({op.name: ("B", "S1")[n % 2] for n, op in enumerate(turns)})
    return letters


def columns(graph: Graph) -> dict[str, str]:
    """SUMMA: the weight of every product split by columns, of an embedding by width."""
    letters = _data_parallel_convolutions(graph)
    products = [op for op in graph.ops if reads_weight(graph, op)]
    return {op.name: letters.get(op.name, "B") for op in products}


def experts(graph: Graph) -> dict[str, str]:
    """Expert parallel: products of experts E, all others S0; nothing in a model without experts."""
    mixed = {op.name for op in graph.ops if is_of_experts(graph, op)}
    products = [op for op in graph.ops if mixed and reads_weight(graph, op)]
    return {op.name: EXPERTS if op.name in mixed else "S0" for op in products}


def is_of_experts(graph: Graph, op: Op) -> bool:
    """True for products with as many weights as a trained tensor of three dims has matrices."""
    return demands.op_experts(graph, op) > 1


def _data_parallel_convolutions(graph: Graph) -> dict[str, str]:
    """Both schemes leave convolutions data parallel on all axes (AutoDDL section 5.1)."""
    return {op.name: "S0" for op in graph.ops if op.kind == "conv2d"}


def reads_weight(graph: Graph, op: Op) -> bool:
    """True for a heavy operator that reads a parameter."""
    if op.kind in SOURCE_KINDS or not any(graph.origin(i).kind == "param" for i in op.inputs):
        return False
    return rule_of(op).heavy


def has_weight(graph: Graph, group: Group) -> bool:
    return any(reads_weight(graph, op) for op in group.ops)


def deciding(group: Group) -> int:
    """The number of the group's heavy operator, of its head if it has none."""
    heavy = [n for n, op in enumerate(group.ops) if rule_of(op).heavy]
    return heavy[-1] if heavy else len(group.ops) - 1


def letter_of(group: Group, composite: CompositeSignature) -> str:
    """The topology letter of the group's heavy operator (its head's, if it has none).

    E in the place of S0 if a weight is split as the rows are: each device has its own experts.
    """
    number = deciding(group)
    op, signature = group.ops[number], composite.signatures[number]

    def one_axis(placements: tuple[Placement, ...]) -> tuple[NdSbp, ...]:
        return tuple(NdSbp((p,)) for p in placements)

    ins, outs = one_axis(signature.ins), one_axis(signature.outs)
    letter = topology_letters(op, ins, outs)[0]
    both = is_matmul(op.kind) and all(p.is_split for p in signature.ins)
    return EXPERTS if letter == "S0" and both else letter


def splits_only_batch(graph: Graph, group: Group, composite: CompositeSignature) -> bool:
    """True if every tensor with a batch is split along it, and nothing else is split."""
    return all(
        demands.splits_only_batch(graph, op, signature.ins, signature.outs)
        for op, signature in zip(group.ops, composite.signatures, strict=True)
    )


@dataclass(frozen=True)
class Family:
    """A scheme up to its topology.

    letters:      graph -> operator -> the letter that its products have on the tensor axes; None
                  for a family without tensor axes
    split_stored: parameters are stored split over the data axes (ZeRO, SUMMA)
    axes_names:   how the family calls its data and its tensor axes
    """

    name: str
    letters: Callable[[Graph], Mapping[str, str]] | None
    split_stored: bool
    axes_names: tuple[str, str] = ("data", "tensor")

    def most_hidden_s(self, maker: StepMaker) -> float:
        """Beside the last backward pass gradients travel; beside all others what is gathered."""
        if not self.split_stored:
            return maker.backward_s
        forward_s = sum(own.forward_s for own in maker.operators)
        return maker.micro_batches * (maker.backward_s + forward_s)


FAMILIES = (
    Family("data parallel", None, False),
    Family("ZeRO", None, True),
    Family("Megatron", alternating, False),
    Family("Megatron+ZeRO", alternating, True),
    Family("SUMMA", columns, True, ("rows", "columns")),
)
EXPERT_PARALLEL = Family("expert parallel", experts, False, ("data", "experts"))


def families_of(graph: Graph) -> tuple[Family, ...]:
    """The families of known schemes that are tried on a model."""
    has_experts = any(is_of_experts(graph, op) for op in graph.ops)
    return (*FAMILIES, EXPERT_PARALLEL) if has_experts else FAMILIES


@dataclass(frozen=True)
class Variant:
    """A family on one topology."""

    family: Family
    tensor_axes: tuple[int, ...]

    def data_axes(self, mesh: Mesh) -> tuple[int, ...]:
        return tuple(a for a in range(mesh.num_axes) if a not in self.tensor_axes)

    def topology(self, mesh: Mesh) -> str:
        """`data 4 over 2 hosts × tensor 2`."""
        names = self.family.axes_names
        words = [names[axis in self.tensor_axes] for axis in range(mesh.num_axes)]
        return str(Split.of(words, mesh, names))


@dataclass(frozen=True)
class Way:
    """A topology in `parts` micro-batches with `blocks` run again."""

    variant: Variant
    parts: int
    blocks: Blocks


def tried_again(blocks: Blocks, checkpointing: Checkpointing) -> tuple[Blocks, ...]:
    """What a pricer tries to run again: nothing, or all of `blocks`, or one and the other."""
    if not blocks or checkpointing == "none":
        return ((),)
    return (blocks,) if checkpointing == "all" else ((), blocks)


def variants(family: Family, mesh: Mesh) -> tuple[Variant, ...]:
    """The topologies of `family`: the last axes of the mesh are its tensor axes.

    So tensor parallelism stays inside the nodes as far as it can, as Megatron's authors advise.
    Megatron has at least one tensor axis, SUMMA both kinds where the mesh has two axes.
    """
    axes = range(mesh.num_axes)
    if family.letters is None:
        return (Variant(family, ()),)
    least = 1 if family.split_stored and mesh.num_axes > 1 else 0
    return tuple(Variant(family, tuple(axes[first:])) for first in range(least, mesh.num_axes))
