"""Options and arguments that several commands have, and what they stand for."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from ...cluster import Cluster
    from ...graph.graph import Graph

Command = TypeVar("Command", bound=Callable[..., Any])
GB = 1e9


def examples(*lines: str) -> str:
    """An epilog that click prints line by line."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


MODEL = click.argument("model")
CLUSTER = click.option(
    "--cluster", "cluster_file", required=True, metavar="FILE", help="The machine file (JSON)."
)
BATCH = click.option("--batch", type=click.IntRange(1), help="Rows of the global batch.")
SEED = click.option("--seed", default=0, show_default=True, help="Of the search.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
OPTIMIZER = click.option(
    "--optimizer", type=click.Choice(["adam", "momentum", "sgd"]), default="adam",
    show_default=True, help="Its state takes memory.",
)  # fmt: skip
PRECISION = click.option(
    "--precision", type=click.Choice(["float32", "float16"]), default="float32",
    show_default=True, help="float16: mixed precision, with master weights and loss scaling.",
)  # fmt: skip


BATCH_NORM = click.option(
    "--batch-norm", type=click.Choice(["batch", "micro_batch", "shard"]), default="batch",
    show_default=True, help="The rows that BatchNorm takes its statistics of.",
)  # fmt: skip


class _Gigabytes(click.ParamType):
    """Gigabytes as bytes."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            size = float(value) * GB
        except ValueError:
            size = math.nan
        if not size > 0:
            self.fail(f"a number of gigabytes such as 16, or inf, got {value!r}", param, ctx)
        return int(size) if math.isfinite(size) else size


MEMORY_LIMIT = click.option(
    "--memory-limit-gb", "memory_limit_bytes", type=_Gigabytes(), metavar="GB",
    help="Per device, instead of all that it has; inf for no limit.",
)  # fmt: skip


class _Share(click.ParamType):
    """A share as a number or in per cent."""

    name = "share"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        text = str(value).strip()
        try:
            share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
        except ValueError:
            self.fail(f"a share such as 1% or 0.01, got {value!r}", param, ctx)
        if not 0 <= share < 1:
            self.fail(f"a share of at least 0 and less than 100%, got {value!r}", param, ctx)
        return share


GAP = click.option(
    "--gap", type=_Share(), metavar="SHARE",
    help="At which the search may end: 1% for a plan at most 1% above its lower bound.",
)  # fmt: skip


def shape_options(command: Command) -> Command:
    """--nodes and --gpus-per-node: the machine of the file in another size."""
    gpus = click.option("--gpus-per-node", type=click.IntRange(1), help="Instead of the file's.")
    nodes = click.option("--nodes", type=click.IntRange(1), help="Instead of the file's.")
    return nodes(gpus(command))


def load_cluster(path: str, nodes: int | None, gpus_per_node: int | None) -> Cluster:
    """The machine file in the size asked for."""
    from ...cluster import Cluster

    return Cluster.load(path).with_shape(nodes, gpus_per_node)


def graph_of(model: str, batch: int | None) -> Graph:
    """The graph saved in the file `model`, or the trace of module:function."""
    if not (model.endswith(".json") or Path(model).is_file()):
        return traced(model, batch)
    from ...graph.graph import Graph

    graph = Graph.load(model)
    return graph if batch is None else graph.with_batch(batch)


def traced(model: str, batch: int | None) -> Graph:
    """The graph of module:function, built without memory for its parameters."""
    from ...runtime.need import need_oneflow

    need_oneflow("autoddl trace")
    from ...runtime.oneflow.trace.entries import trace_entry

    return trace_entry(model, batch)
