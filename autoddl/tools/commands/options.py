"""Options and arguments that several commands have, and what they stand for."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ...planner.options import About, PlanOptions, about

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
    "--cluster",
    "cluster_file",
    required=True,
    metavar="MACHINE",
    help="A machine file (JSON), or a name that 'autoddl machines' lists.",
)
BATCH = click.option("--batch", type=click.IntRange(1), help="Rows of the global batch.")
NOTATION = click.option(
    "--notation", type=click.Choice(("words", "sbp")), default="words", show_default=True,
    help="How splits are told; sbp: topologies and signatures as the AutoDDL paper writes them.",
)  # fmt: skip
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")


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


class _NumberOrAuto(click.ParamType):
    """A number from 1 on, or `auto`."""

    name = "number or auto"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        if value == "auto" or isinstance(value, int):
            return value
        if not (value.isdecimal() and int(value) >= 1):
            self.fail(f"a number or auto, got {value!r}", param, ctx)
        return int(value)


_HINTS_OF = f"{__name__}.hints"  # their file, of which commands get what is in it


def reads(**given: str | None) -> dict[str, str | None]:
    """The files that a command reads, by argument (`MODEL`) or option, for `check_apart`."""
    told = {name if name.isupper() else _flag(name): path for name, path in given.items()}
    return {**told, "--hints": click.get_current_context().meta.get(_HINTS_OF)}


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


class _HintFile(click.ParamType):
    """The hints of a file."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from ...graph.hint_file import load_hints

        if not isinstance(value, str):
            return value
        if ctx is not None:
            ctx.meta[_HINTS_OF] = value
        return load_hints(value)


# The options whose values the command line writes otherwise than Python: type and metavar
_WRITTEN: Mapping[str, tuple[click.ParamType, str]] = {
    "memory_limit_bytes": (_Gigabytes(), "GB"),
    "gap": (_Share(), "SHARE"),
    "hints": (_HintFile(), "FILE"),
    "stages": (_NumberOrAuto(), "N|auto"),
}
_FLAGS = {"memory_limit_bytes": "--memory-limit-gb"}


def plan_options(without: Sequence[str] = ()) -> Callable[[Command], Command]:
    """An option for each field of `PlanOptions`, but for those in `without`.

    The command takes them as keyword arguments, of which `PlanOptions(**options)` is made.
    """

    def decorate(command: Command) -> Command:
        for option in reversed(fields(PlanOptions)):
            if option.name not in without:
                command = _plan_option(option)(command)
        return command

    return decorate


def _plan_option(option: Field[Any]) -> Callable[[Command], Command]:
    asked = about(option)
    flag = _FLAGS.get(option.name, f"--{option.name.replace('_', '-')}")
    if asked.kind is bool:
        flag += f"/--no-{flag.removeprefix('--')}"
    written, metavar = _WRITTEN.get(option.name, (None, None))
    return click.option(
        flag,
        option.name,
        type=written or _click_type(asked),
        metavar=metavar,
        default=option.default if option.default != () else None,
        show_default=option.default not in (None, ()),
        help=asked.help,
    )


def _click_type(asked: About) -> click.ParamType | type:
    if asked.choices:
        return click.Choice(asked.choices)
    if asked.kind is float:
        return click.FloatRange(asked.above, min_open=True)
    if asked.kind is int and asked.least is not None:
        return click.IntRange(int(asked.least))
    return asked.kind


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
    """The graph saved in the file `model`, or the trace of a model by name."""
    if not _is_file(model):
        return traced(model, batch)
    from ...graph.graph import Graph

    graph = Graph.load(model)
    return graph if batch is None else graph.with_batch(batch)


def _is_file(model: str) -> bool:
    """Whether it is a graph's file, and not a model by name."""
    from ...runtime.entry import HUGGING_FACE

    named = model.startswith(HUGGING_FACE)
    return not named and (model.endswith(".json") or Path(model).is_file())


def traced(model: str, batch: int | None) -> Graph:
    """The graph of a model by name, built without memory for its parameters."""
    from ...runtime.framework import framework_of_entry

    return framework_of_entry(model, "autoddl trace").trace_entry(model, batch)


def ask_first(crowd: str) -> None:
    """Go on only if somebody wants that."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ValueError(
            f"{crowd} would take very long, and much memory; give --yes to start them all the "
            "same, or fewer with --nodes and --gpus-per-node"
        )
    click.confirm(f"Start {crowd}?", abort=True, err=True)
