"""The layers of a stage as a table: what each costs, how it is split, and what moves into it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...cost.sharded_storage import edge_times
from ...graph.graph import Graph, Op
from ...plans.savings import Saving, savings
from ...plans.stage_figures import stage_figures
from ...sbp.collectives import Step, path_bytes, work_of
from ...sbp.layout import TensorSpec
from ...sbp.placement import NdSbp
from ...sbp.redistribute import path_cost
from ..format import format_bytes, format_seconds
from ..stage import PlannedLayer, StagePlan
from .notation import legend, placement
from .sections import NOTATIONS, Column, Notation, Row, Table

KEEPS = (
    "keeps: all that a layer keeps in a step; not all of it is there at the fullest moment, "
    "which the limit is held against"
)
COLUMNS = (
    Column("name", "layer"),
    Column("op", "operator"),
    Column("split", "split", "split", notation="words"),
    Column("topology", "topology", "topology", notation="sbp"),
    Column("signature", "signature", "signature", notation="sbp"),
    Column("compute_s", "comput.", "seconds", adds=True),
    Column("communication_s", "comm.", "seconds", adds=True),
    Column("nic_bytes", "NIC", "bytes", adds=True),
    Column("intra_bytes", "in host", "bytes", adds=True),
    Column("memory_bytes", "keeps", "bytes", adds=True),
    Column("next_best_split", "next best split", "split", apart=True, notation="words"),
    Column("next_best", "next best topology", "topology", apart=True, notation="sbp"),
    Column("next_best_extra_s", "longer by", "more_seconds", apart=True),
    Column("storage", "parameters", apart=True),
    Column("moves", "what moves into it", "lines", apart=True, notation="words"),
    Column("moves_sbp", "what moves into it", "lines", apart=True, notation="sbp"),
)


def layers_table(
    stage: StagePlan, names: Sequence[str] | None = None, *, brief: bool = False
) -> Table:
    """One row a layer; `names` are the layers, None for all. brief: without what stands apart."""
    chosen = [layer for layer in stage.layers if names is None or layer.name in names]
    return Table(
        "layers",
        "Layers",
        tuple(column for column in COLUMNS if not (brief and column.apart)),
        tuple(_row(stage, layer, brief) for layer in chosen),
        total="all layers" if names is None else "",
        folds=True,
        brief=True,
        notes=(KEEPS,) if names is None else (),
        legend=legend(layer.split for layer in chosen),
    )


def _row(stage: StagePlan, layer: PlannedLayer, brief: bool) -> Row:
    cost = stage_figures(stage).layer_cost(layer)
    told: Row = {
        "name": layer.name,
        "op": layer.op,
        "split": layer.split,
        "topology": layer.topology,
        "signature": layer.signature,
        "compute_s": cost.compute_s,
        "communication_s": cost.communication_s,
        "between_hosts_s": cost.inter_s.total,
        "inside_host_s": cost.intra_s.total,
        "nic_bytes": cost.nic_bytes.total,
        "intra_bytes": cost.intra_bytes.total,
        "memory_bytes": cost.memory_bytes,
    }
    if brief:
        return told
    moves = list(_moves(stage, layer))
    return {
        **told,
        "next_best_split": layer.alternative_split,
        "next_best": layer.alternative,
        "next_best_extra_s": layer.alternative_extra_s if layer.alternative else None,
        "storage": _storage(stage, layer),
        "moves": tuple(move["words"] for move in moves),
        "moves_sbp": tuple(move["sbp"] for move in moves),
    }


def _storage(stage: StagePlan, layer: PlannedLayer) -> str:
    """How a layer stores its parameters; "" if whole."""
    found = savings(stage)
    zero = sorted({found.stages[op] for op in layer.ops if op in found.stages})
    if not zero:
        return ""
    saved = [found.by_op[op] for op in layer.ops if op in found.by_op]
    every = Saving(sum(s.saved_bytes for s in saved), sum(s.extra_s for s in saved))
    named = "/".join(map(str, zero))
    return f"split, ZeRO stage {named}: saves {format_bytes(every.saved_bytes)} a layer"


def _moves(stage: StagePlan, layer: PlannedLayer) -> Iterator[Mapping[Notation, str]]:
    """The redistributions into a layer: from where to where, by which collectives.

    With the bytes and seconds of each, and how often they run in a step.
    """
    graph, known = stage.graph, stage_figures(stage)
    told = known.model.known("steps told")
    places = graph.once(_places)
    for op in (graph.ops[place] for place in sorted(places[name] for name in {*layer.ops})):
        for index, tensor in enumerate(op.inputs):
            edge = stage.edges.get((op.name, index))
            if edge is None:
                continue
            producer = graph.producers[tensor]
            output, given, wanted = _ends(stage, op, producer, index, tensor)
            is_param, passes = producer.kind == "param", known.again.passes(op.name)
            often = edge_times(is_param, edge.zero_stage, stage.micro_batches, passes)
            ways = [("forward", given, wanted, edge.forward, sum(often[0]), 1)]
            back, kept = stage.ops[op.name].grad_ins[index], output
            if back is not None and kept is not None:
                sharers = known.sharers.get((op.name, index), 1)
                ways.append(("backward", back, kept, edge.backward, often[1], sharers))
            what = producer.name if producer.kind == "param" else tensor
            for way, source, target, steps, times, sharers in ways:
                asked = graph.tensors[tensor].spec, source, steps, sharers
                if asked not in told:  # of equal layers the same
                    told[asked] = tuple(_steps(stage, *asked))
                texts = told[asked]
                if texts:
                    count = f", {times} times a step" if times > 1 else ""
                    if sharers > 1:
                        count = f", in a bucket of {sharers}{count}"
                    dims = graph.tensors[tensor].batch_dims
                    by = f"{'; then '.join(texts)}{count}"
                    yield {
                        notation: f"{way}, {what}: "
                        f"{placement(source, stage.mesh, dims, notation)} -> "
                        f"{placement(target, stage.mesh, dims, notation)} by {by}"
                        for notation in NOTATIONS
                    }


def _places(graph: Graph) -> dict[str, int]:
    """Operator name -> its place in the graph."""
    return {op.name: place for place, op in enumerate(graph.ops)}


def _ends(
    stage: StagePlan, op: Op, producer: Op, index: int, tensor: str
) -> tuple[NdSbp | None, NdSbp, NdSbp]:
    """Where the producer wants the gradient, where it leaves the tensor, where `op` wants it."""
    number, made = producer.outputs.index(tensor), stage.ops[producer.name]
    return made.grad_outs[number], made.outs[number], stage.ops[op.name].ins[index]


def _steps(
    stage: StagePlan, spec: TensorSpec, source: NdSbp, steps: Sequence[Step], sharers: int
) -> Iterator[str]:
    """`all-gather over 4 hosts, 12.6 MB a device in 1.2 ms` for each collective.

    sharers: tensors that travel together, and share the latency evenly
    """
    price = stage_figures(stage).model.comm.price
    for step, before, after in path_bytes(spec, steps, source, stage.mesh):
        seconds = path_cost(spec, source, (step,), stage.mesh, price)
        seconds -= (1 - 1 / sharers) * price(step.way, step.axes)[0] if sharers > 1 else 0.0
        source = step.apply(source)
        if step.is_free:
            continue
        nodes, gpus = stage.mesh.topology(step.axes)
        group = f"{nodes} hosts" if nodes > 1 else f"{gpus} devices of a host"
        if nodes > 1 and gpus > 1:
            group += f" x {gpus}"
        sent = work_of(step, stage.mesh, stage.cluster.collectives).device * max(before, after)
        yield (
            f"{step.way.replace('_', '-')} over {group}, {format_bytes(sent)} a device "
            f"in {format_seconds(seconds)}"
        )
