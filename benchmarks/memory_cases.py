"""Pairs of model and plan whose predicted memory is compared with OneFlow's compiled plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autoddl.cluster.spec import Cluster
from autoddl.cost.recompute import Checkpointing
from autoddl.graph.graph import Graph
from autoddl.graph.precision import in_precision
from autoddl.planner.baselines import data_parallel, megatron
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.planner.tables.group_table import Space
from autoddl.planner.tables.groups import CompositeSignature, Group
from autoddl.plans import Plan
from autoddl.sbp.signature import Signature

ANY_MEMORY = 1e15
LINEAR_BACKWARD = frozenset(
    {
        "add_n", "batch_matmul", "bias_add", "broadcast_add", "broadcast_div", "broadcast_matmul",
        "broadcast_mul", "broadcast_sub", "fork", "gather", "matmul", "narrow", "reduce_sum",
        "reshape", "scalar_add", "scalar_mul", "transpose", "var",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A model by its key in `MODELS`, a scheme by its key in `SCHEMES`, and how it is trained."""

    model: str
    scheme: str
    nodes: int
    gpus: int
    optimizer: str
    micro_batches: int = 1
    precision: str = "float32"
    checkpointing: Checkpointing = "none"

    def __str__(self) -> str:
        return (
            f"{self.model}, {self.scheme} on {self.nodes}x{self.gpus}, {self.optimizer}, "
            f"{self.micro_batches} micro-batches, {self.precision}, recomputed: "
            f"{self.checkpointing}"
        )


def mlp() -> Any:
    """8 dense layers of width 2048, a ReLU after each but the last, batch 4,096."""
    import oneflow.nn as nn

    from autoddl.runtime.oneflow.models.blank import blank

    layers: list[Any] = []
    for _ in range(8):
        layers += [nn.Linear(2048, 2048), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    return model, (blank(4096, 2048), blank(4096, 2048)), nn.functional.mse_loss


def gpt(
    layers: int, width: int, heads: int, batch: int, length: int = 1024, dropout: float = 0.0
) -> Any:
    """The paper's vocabulary and length with a few layers."""
    import oneflow

    from autoddl.runtime.oneflow.models.blank import blank
    from autoddl.runtime.oneflow.models.gpt import Gpt, next_token_loss

    tokens = blank(batch, length, dtype=oneflow.int64)
    return Gpt(layers, width, heads, length, dropout=dropout), (tokens, tokens), next_token_loss


def dlrm() -> Any:
    """`models.dlrm` with tables of 100,000 rows, batch 16,384."""
    import oneflow

    from autoddl.runtime.oneflow.models.blank import blank
    from autoddl.runtime.oneflow.models.dlrm import Dlrm

    model = Dlrm(13, [100_000] * 8, (512, 256, 128), (1024, 1024, 512, 256))
    sparse = blank(16384, 8, dtype=oneflow.int64)
    loss = oneflow.nn.functional.binary_cross_entropy_with_logits
    return model, (blank(16384, 13), sparse, blank(16384)), loss


MODELS: dict[str, Callable[[], Any]] = {
    "mlp 8x2048": mlp,
    "gpt 2x1024": lambda: gpt(2, 1024, 16, 16),
    "gpt 3x1024 dropout": lambda: gpt(3, 1024, 16, 16, dropout=0.1),
    "gpt 4x2048": lambda: gpt(4, 2048, 16, 16),
    "gpt 2x4096": lambda: gpt(2, 4096, 32, 16),
    "gpt 1x8192": lambda: gpt(1, 8192, 64, 16),
    "dlrm 8x100k": dlrm,
}


def compiled(space: Space) -> Space:
    """What of `space` OneFlow's nn.Graph runs as it is planned.

    It has no operators with collectives inside, and of the backward passes only those of linear
    operators take a Partial gradient.
    """

    def allowed(group: Group, composite: CompositeSignature, axis: int) -> bool:
        if space.allowed is not None and not space.allowed(group, composite, axis):
            return False
        return not any(
            signature.inner or (op.kind not in LINEAR_BACKWARD and _takes_partial(signature))
            for op, signature in zip(group.ops, composite.signatures, strict=True)
        )

    return dataclasses.replace(space, allowed=allowed)


def _takes_partial(signature: Signature) -> bool:
    return any(place is not None and place.is_partial for place in signature.grad_outs)


def _all(graph: Graph, cluster: Cluster) -> Space:
    return Space()


def _megatron(graph: Graph, cluster: Cluster) -> Space:
    """Data parallel between hosts, columns and rows inside a host, where no batch is split."""
    data_axes = [n for n, axis in enumerate(cluster.mesh.axes) if axis.link == "inter"]
    space, forked = megatron(graph, data_axes), graph.with_forks()

    def allowed(group: Group, composite: CompositeSignature, axis: int) -> bool:
        assert space.allowed is not None
        if not space.allowed(group, composite, axis):
            return False
        return axis in data_axes or not any(
            place.is_split and place.dim in forked.tensors[name].batch_dims
            for op, signature in zip(group.ops, composite.signatures, strict=True)
            for name, place in zip(
                (*op.inputs, *op.outputs), (*signature.ins, *signature.outs), strict=True
            )
        )

    return dataclasses.replace(space, allowed=allowed)


SCHEMES: dict[str, Callable[[Graph, Cluster], Space]] = {
    "data parallel": lambda graph, cluster: data_parallel(graph),
    "megatron": _megatron,
    "searched": _all,
}

CASES = (
    Case("mlp 8x2048", "data parallel", 1, 4, "sgd"),
    Case("mlp 8x2048", "data parallel", 1, 4, "adam"),
    Case("mlp 8x2048", "data parallel", 2, 4, "momentum"),
    Case("mlp 8x2048", "data parallel", 1, 4, "adam", 4),
    Case("mlp 8x2048", "megatron", 1, 4, "sgd"),
    Case("mlp 8x2048", "megatron", 1, 4, "adam", 2),
    Case("mlp 8x2048", "megatron", 2, 2, "adam"),
    Case("mlp 8x2048", "megatron", 2, 2, "sgd", 4),
    Case("mlp 8x2048", "searched", 1, 4, "adam"),
    Case("gpt 2x1024", "data parallel", 1, 2, "sgd"),
    Case("gpt 2x1024", "data parallel", 1, 4, "adam"),
    Case("gpt 2x1024", "data parallel", 1, 4, "adam", 4),
    Case("gpt 2x1024", "megatron", 1, 2, "adam"),
    Case("gpt 2x1024", "megatron", 1, 4, "sgd"),
    Case("gpt 2x1024", "megatron", 2, 2, "adam"),
    Case("gpt 2x1024", "megatron", 2, 2, "adam", 2),
    Case("gpt 2x1024", "searched", 1, 4, "adam"),
    Case("gpt 3x1024 dropout", "data parallel", 1, 4, "adamw", 2),
    Case("gpt 3x1024 dropout", "megatron", 2, 2, "momentum"),
    Case("gpt 4x2048", "data parallel", 1, 4, "adam", 1),
    Case("gpt 4x2048", "data parallel", 1, 4, "sgd", 4),
    Case("gpt 4x2048", "megatron", 1, 4, "adam"),
    Case("gpt 4x2048", "megatron", 2, 2, "sgd", 2),
    Case("gpt 2x4096", "megatron", 1, 4, "adam"),
    Case("gpt 2x4096", "megatron", 2, 2, "adam"),
    Case("gpt 2x4096", "megatron", 1, 4, "sgd", 2),
    Case("gpt 1x8192", "megatron", 1, 4, "adam"),
    Case("gpt 1x8192", "megatron", 1, 4, "sgd", 4),
    Case("gpt 1x8192", "megatron", 2, 2, "adam", 8),
    Case("dlrm 8x100k", "data parallel", 1, 4, "sgd"),
    Case("dlrm 8x100k", "data parallel", 1, 4, "adam", 2),
    Case("dlrm 8x100k", "megatron", 1, 4, "sgd"),
    Case("dlrm 8x100k", "megatron", 1, 4, "adam"),
    Case("dlrm 8x100k", "megatron", 2, 2, "adam"),
    Case("dlrm 8x100k", "megatron", 2, 2, "sgd", 4),
    Case("mlp 8x2048", "megatron", 1, 4, "adam", precision="float16"),
    Case("gpt 2x1024", "data parallel", 1, 4, "adam", 4, "float16"),
    Case("gpt 4x2048", "data parallel", 1, 4, "adam", precision="float16"),
    Case("mlp 8x2048", "data parallel", 1, 4, "sgd", checkpointing="all"),
    Case("mlp 8x2048", "megatron", 2, 2, "adam", 2, checkpointing="all"),
    Case("gpt 2x1024", "searched", 1, 4, "adam", checkpointing="all"),
    Case("gpt 3x1024 dropout", "data parallel", 1, 4, "adamw", 2, checkpointing="all"),
    Case("gpt 3x1024 dropout", "megatron", 2, 2, "momentum", checkpointing="all"),
    Case("gpt 4x2048", "data parallel", 1, 4, "adam", checkpointing="all"),
    Case("gpt 4x2048", "data parallel", 1, 4, "sgd", 4, checkpointing="all"),
    Case("gpt 4x2048", "megatron", 1, 4, "adam", checkpointing="all"),
    Case("gpt 4x2048", "megatron", 2, 2, "adam", checkpointing="all"),
    Case("gpt 4x2048", "megatron", 2, 2, "adam", 2, checkpointing="all"),
    Case("gpt 4x2048", "searched", 2, 2, "adam", 2, checkpointing="all"),
    Case("gpt 2x4096", "megatron", 1, 4, "sgd", 2, checkpointing="all"),
    Case("gpt 4x2048", "data parallel", 1, 4, "adam", 1, "float16", "all"),
)


def plan_of(case: Case, graph: Graph, machine: Cluster) -> Plan:
    """The case's plan, whatever memory it takes."""
    cluster = machine.with_shape(nodes=case.nodes, gpus_per_node=case.gpus)
    return find_plan(
        graph,
        cluster,
        PlanOptions(
            overlap=False,
            optimizer=case.optimizer,
            micro_batches=case.micro_batches,
            memory_limit_bytes=ANY_MEMORY,
            precision=case.precision,
            checkpointing=case.checkpointing,
        ),
        space=compiled(SCHEMES[case.scheme](in_precision(graph, case.precision), cluster)),
    )
