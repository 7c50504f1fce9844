"""What the options ask of a model: its graph as it is planned, its prices, its micro-batches."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace

from ..cluster.spec import Cluster, HostGroup
from ..cost.model import CostModel
from ..graph.batch_norm import with_batch_norm
from ..graph.cut import CutGraph
from ..graph.demands import host_with_share
from ..graph.graph import Graph
from ..graph.hints import as_hints
from ..graph.precision import check_precision, in_precision
from ..graph.rows import find_rows, in_several
from ..sbp.mesh import Mesh
from .options import PlanOptions

_MOST_TOLD = 1000  # numbers up to which possible ones are listed


def cost_model(graph: Graph, cluster: Cluster, options: PlanOptions) -> CostModel:
    """What prices the graph's plans with these options.

    Raises ValueError without a rate for their precision.
    """
    for kind in cluster.kinds:
        check_precision(options.precision, kind.device)
    return CostModel(
        cluster,
        options.optimizer,
        options.comm_rule,
        options.memory_limit_bytes,
        options.precision,
        options.back_end or graph.framework,
        options.overlap,
        options.ema,
    )


def prepared(graph: Graph, options: PlanOptions) -> Graph:
    """A traced graph in the precision and with the statistics of BatchNorm that are asked for.

    Without its hints, which are the options' then (`with_hints_of`).
    """
    graph = replace(graph, hints=()) if graph.hints else graph
    return in_precision(with_batch_norm(graph, options.batch_norm), options.precision)


def with_hints_of(graph: Graph, options: PlanOptions) -> PlanOptions:
    """The options with the hints of the model's own code before theirs."""
    if not graph.hints:
        return options
    return replace(options, hints=(*graph.hints, *as_hints(options.hints)))


def check_no_stages(options: PlanOptions) -> None:
    """ValueError for hints of stages where there are to be none."""
    for at in as_hints(options.hints):
        if at.hint.kind == "stage":
            raise ValueError(f"the hint {at} needs stages: plan with stages='auto', or a number")


@dataclass(frozen=True)
class Working:
    """Hosts with a share of what is split: all but those that hints leave as little as possible.

    cluster: of these hosts; where they are not all, with a group for each run of them
    has:     of each run of all hosts, whether they have a share; () if all have
    """

    cluster: Cluster
    has: tuple[bool, ...] = ()

    def shares(self, own: tuple[int, ...]) -> tuple[int, ...]:
        """Of all runs, where those of these hosts are `own`, () for equal ones."""
        rest = iter(own or (1,) * sum(self.has))
        return tuple(next(rest) if has else 0 for has in self.has) if self.has else own


def working(cluster: Cluster, options: PlanOptions) -> Working | None:
    """None without hints for hosts, and where shares that obey them are given.

    Raises ValueError for hints for hosts that cannot hold.
    """
    hints = [at for at in as_hints(options.hints) if at.host is not None]
    if hints and options.stages not in (None, 1):
        raise ValueError(
            f"the hint {hints[0]} is for one mesh: each host of a pipeline computes its stage; "
            "leave out the hint or the stages"
        )
    given = options.given_shares or cluster.shares
    at = host_with_share(hints, Mesh(cluster.nodes, cluster.gpus_per_node, given))
    if at is None:
        return None
    if given or options.shares:
        told = ":".join(map(str, given)) or "even"
        raise ValueError(f"the hint {at} and the shares {told} contradict each other")
    idle = {own.host for own in hints if own.host is not None}
    if cluster.nodes - len(idle) < 2:
        raise ValueError(
            f"the hints {' and '.join(map(str, hints))} leave {cluster.nodes - len(idle)} of "
            f"{cluster.nodes} hosts to share the work, which takes two; use a cluster without them"
        )
    return _without(cluster, idle)


def _without(cluster: Cluster, idle: Collection[int]) -> Working:
    """In runs of as many hosts as can be, within which splits stay free."""

    def fits(each: int) -> bool:
        runs, rest = divmod(cluster.nodes, each)
        counts = Counter(host // each for host in idle)
        apart = not rest and set(counts.values()) == {each} and runs - len(counts) > 1
        return apart and not (cluster.groups and runs % len(cluster.runs))

    each = max(filter(fits, range(1, cluster.nodes // 2 + 1)))
    first = range(0, cluster.nodes, each)  # hosts of the runs
    groups = tuple(
        HostGroup(f"host {host}", each, cluster.device_of(cluster.group_of(host)))
        for host in first
        if host not in idle
    )
    nodes = each * len(groups)
    left = replace(cluster.with_shares(()), nodes=nodes, groups=groups, lines=(), sources={})
    return Working(left, tuple(host not in idle for host in first))


def micro_graph(graph: Graph, parts: int) -> Graph:
    """The graph of one of `parts` micro-batches, with forks."""
    return (graph.with_batch(graph.batch // parts) if parts > 1 else graph).with_forks()


def micro_batch_counts(
    graph: Graph, micro_batches: int | None, in_flight: int = 1
) -> tuple[int, ...]:
    """Numbers of micro-batches to try, ascending, that so many in flight divide.

    ValueError if the given one does not divide the batch, or rows of the batch meet (`rows`).
    """
    if in_flight > 1:
        find_rows(graph).check(in_flight)
        counts = micro_batch_counts(graph, micro_batches)
        found = tuple(n for n in counts if n % in_flight == 0)
        if not found:
            raise ValueError(
                f"{in_flight} micro-batches in flight do not divide {counts[-1]} micro-batches of "
                f"a batch of {graph.batch}; use an even number of them, or in_flight=1"
            )
        return found
    if micro_batches is None:
        if graph.batch == 0 or find_rows(graph).meeting is not None:
            return (1,)
        most = graph.batch & -graph.batch  # the largest power of two that divides it
        return tuple(2**n for n in range(most.bit_length()))
    if micro_batches > 1 and graph.batch == 0:
        raise ValueError(
            "the traced model is for one size of the batch, and cannot be trained in "
            f"{micro_batches} micro-batches: its code fixes the size (by an `if`, int(x.shape[0]), "
            "half of the rows), or takes rows by their places in the batch; train it whole"
        )
    if graph.batch % micro_batches:
        among = range(1, min(graph.batch, _MOST_TOLD) + 1)
        divisors = [str(n) for n in among if graph.batch % n == 0]
        if graph.batch > _MOST_TOLD:
            divisors.append("...")
        raise ValueError(
            f"a batch of {graph.batch} does not divide into {micro_batches} micro-batches; "
            f"possible numbers: {', '.join(divisors) or '1'}"
        )
    find_rows(graph).check(micro_batches)
    return (micro_batches,)


def stage_counts(cut: CutGraph, micro_batches: int | None) -> tuple[int, ...]:
    """`micro_batch_counts` of a model in stages.

    A sum that all micro-batches need before they are trained has to be computed in one stage.
    """
    counts = micro_batch_counts(cut.graph, micro_batches)
    if counts == (1,):
        return counts
    rows = find_rows(cut.graph)
    several = in_several(cut.graph, rows, cut.layer_of)
    if several is None:
        return counts
    if micro_batches is None:
        return (1,)
    raise ValueError(
        f"{several}, which {micro_batches} micro-batches need of the whole batch, is computed in "
        "several layers that stages may hold; train it in 1 micro-batch, or without stages"
    )
