"""Why a plan is as it is, in two sentences: what it splits and for what, and what that saves.

They follow from the plan's figures and from the known schemes that were priced beside it. Where
something is done to need less memory, or several devices do the same work, one more says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ..figures import figures
from ..format import format_bytes, format_seconds
from ..plan import Plan
from ..stage import BATCH, COPIES, PlannedBaseline, PlannedLayer, Split, StagePlan
from ..stage_figures import stage_figures
from .changes import repeated, repeated_layers
from .sections import Figure, Figures

_ALIKE = 0.005  # of a step: schemes that differ by less are as fast as each other
_SOME = 0.01  # of all computation: less that is done again is not told
_NAMED = 2  # splits that are told; the others are counted


def why(plan: Plan) -> Figures:
    """The sentences, which JSON has by name; "" for one that there is no reason for."""
    several = len(plan.stages) > 1
    sentences = {
        "what": _stages(plan) if several else _splits(plan),
        "in_flight": _in_flight(plan),
        "memory": _memory(plan),
        "saves": _saves(plan),
        "repeated": _repeated(plan),
        "hints": _hints(plan),
    }
    told = tuple(Figure(key, "", sentence) for key, sentence in sentences.items())
    notes = tuple(sentence for sentence in sentences.values() if sentence)
    return Figures("why", "Why this plan", told, brief=True, notes=notes)


def _hints(plan: Plan) -> str:
    """What the user's hints cost."""
    if not plan.hints or plan.unhinted_s is None:
        return ""
    first, others = plan.hints[0], len(plan.hints) - 1
    more = f" and {others} other hint{'s'[: others - 1]}" if others else ""
    told = f"It obeys {first}{more}"
    seconds = figures(plan).iteration_s
    extra = seconds / plan.unhinted_s - 1
    if extra <= _ALIKE:
        return f"{told}, which cost{'' if others else 's'} nothing."
    each = "; 'autoddl explain --suggest' tells what each costs" if others else ""
    return (
        f"{told}: that costs {extra:.1%}, a step without hints takes "
        f"{format_seconds(plan.unhinted_s)}{each}."
    )


@dataclass(frozen=True)
class _Kind:
    """Layers with one split, and their shares of computation and of the parameters' bytes."""

    split: Split
    layers: Sequence[PlannedLayer]
    compute: float
    parameters: float

    @property
    def is_alike(self) -> bool:
        """Every device computes all of it."""
        return all(part.word == COPIES for part in self.split.parts)

    @property
    def is_data_parallel(self) -> bool:
        return all(part.word == BATCH for part in self.split.parts)

    @property
    def text(self) -> str:
        """`splits 10 layers such as features.2 by batch 4 (85% of the computation, ...)`."""
        largest, others = _called(self.layers[0]), len(self.layers) - 1
        which = f"{others + 1} layers such as {largest}" if others else largest
        shares = f"{self.compute:.0%} of the computation, {self.parameters:.0%} of the parameters"
        if self.is_alike:
            return f"computes {which} on every device ({shares})"
        return f"splits {which} by {self.split} ({shares})"


def _kinds(stage: StagePlan) -> list[_Kind]:
    """By split, those with the most computation first."""
    known, graph = stage_figures(stage), stage.graph
    sizes = {op.name: graph.tensors[op.outputs[0]].spec.bytes for op in graph.params}
    by_split: defaultdict[Split, list[PlannedLayer]] = defaultdict(list)
    for layer in sorted(stage.layers, key=lambda layer: -known.layer_cost(layer).compute_s):
        by_split[layer.split].append(layer)
    compute_s, parameters = known.cost.compute_s or 1.0, sum(sizes.values()) or 1
    found = [
        _Kind(
            split,
            layers,
            sum(known.layer_cost(layer).compute_s for layer in layers) / compute_s,
            sum(sizes.get(name, 0) for layer in layers for name in layer.ops) / parameters,
        )
        for split, layers in by_split.items()
    ]
    return sorted(found, key=lambda kind: -kind.compute)


def _splits(plan: Plan) -> str:
    """Of a plan on one mesh: what is split, and what speaks against data parallelism."""
    stage = plan.stage
    if stage.mesh.size == 1:
        return "One device does all the work."
    kinds = _kinds(stage)
    if all(kind.is_alike for kind in kinds):
        return (
            "Every device computes the whole model: by the prices of this machine any split costs "
            "more time than it saves."
        )
    if len(kinds) == 1:
        return f"Splits all layers by {kinds[0].split}{_because(plan, kinds)}."
    told = kinds[0].text
    for kind in kinds[1:_NAMED]:
        again = not kinds[0].is_alike  # "splits a by x and b by y"
        told += f" and {kind.text.removeprefix('splits ') if again else kind.text}"
    others = sum(len(kind.layers) for kind in kinds[_NAMED:])
    rest = f", and {_counted(others)} in other ways" if others else ""
    return f"{told[0].upper()}{told[1:]}{rest}{_because(plan, kinds)}."


def _because(plan: Plan, kinds: Sequence[_Kind]) -> str:
    """What data parallelism would take, or what the next best split would add to it."""
    cost, size = figures(plan).cost, format_bytes(_gradient_bytes(plan))
    if all(kind.is_data_parallel for kind in kinds):
        exchange = format_seconds(cost.inter_s.gradient_sync + cost.intra_s.gradient_sync)
        others = [layer.alternative_extra_s for layer in plan.layers if layer.alternative]
        more = ""
        if others:
            more = f", and another split of a layer adds {format_seconds(min(others))} or more"
        return f": exchanging the gradients ({size}) takes {exchange}{more}"
    (data,) = [b for b in plan.baselines if b.name == "data parallel"] or [None]
    if data is None:
        return ""
    if data.memory_bytes is None and plan.batch % plan.cluster.num_devices == 0:
        return ", as not every operator can be split by rows of the batch alone"
    if data.memory_bytes is None:
        over = f"over {plan.cluster.num_devices} devices"
        if plan.stage.shares:
            over += f" in shares of {':'.join(map(str, plan.stage.shares))}"
        return f", as a batch of {plan.batch} does not divide {over}"
    if data.iteration_s is None or data.communication_s is None:
        limit = format_bytes(plan.memory_limit_bytes)
        needed = format_bytes(data.memory_bytes)
        return f": data parallelism would need {needed} a device, which has {limit}"
    theirs, ours = data.communication_s, cost.exposed_s
    if theirs > ours:
        return (
            f": data parallelism would wait {format_seconds(theirs)} a step for gradients ({size}) "
            f"and more, this plan waits {format_seconds(ours)} for what it communicates"
        )
    return f", where data parallelism would take {format_seconds(data.iteration_s)} a step"


def _gradient_bytes(plan: Plan) -> int:
    graph = plan.graph
    return sum(graph.tensors[op.outputs[0]].spec.bytes for op in graph.params)


def _stages(plan: Plan) -> str:
    known = figures(plan)
    received = format_bytes(known.received_bytes.total)
    return (
        f"Cuts the model into {plan.num_stages} stages, between which a host takes in {received} "
        "of activations and their gradients a step, where the gradients of all parameters are "
        f"{format_bytes(_gradient_bytes(plan))}; the stages wait for each other "
        f"{known.timeline.bubble:.0%} of the time."
    )


def _in_flight(plan: Plan) -> str:
    """What micro-batches in flight on one mesh are for."""
    if not plan.stages[0].turns:
        return ""
    cost = figures(plan).cost
    hidden, whole = format_seconds(cost.hidden_s), format_seconds(cost.communication_s)
    return (
        f"{plan.stages[0].in_flight} micro-batches are in flight: one computes while the other "
        f"communicates, and so {hidden} of {whole} of communication take no time of their own."
    )


def _memory(plan: Plan) -> str:
    """What is done to need less of it."""
    edges = (edge for stage in plan.stages for edge in stage.edges.values())
    split = len({edge.op for edge in edges if edge.zero_stage})
    again = len(plan.recomputed)
    done = []
    if plan.micro_batches > plan.stages[0].in_flight and len(plan.stages) == 1:
        done.append(f"trains the batch in {plan.micro_batches} micro-batches")
    if again:
        done.append(f"runs {again} block{'s' if again > 1 else ''} forward again")
    if split:
        done.append(f"stores parameters of {split} operator{'s' if split > 1 else ''} split (ZeRO)")
    if not done:
        return ""
    text = " and ".join(done)
    needed, limit = max(figures(plan).needed_bytes), figures(plan).limit_bytes
    sizes = f"{format_bytes(needed)} of {format_bytes(limit)}"
    return f"{text[0].upper()}{text[1:]}, and so needs {sizes} a device."


def _saves(plan: Plan) -> str:
    """Against the fastest known scheme."""
    ours, closest = figures(plan).iteration_s, plan.closest_baseline
    if not plan.baselines:
        return "" if plan.cluster.num_devices == 1 else "No known scheme was priced beside it."
    if closest is None or closest.iteration_s is None:
        obey = ", or they break a hint" if any(b.breaks for b in plan.baselines) else ""
        return f"None of the known schemes fits the memory{obey}."
    name = _named(closest)
    saved = 1 - ours / closest.iteration_s
    if all(stage.search.algorithm == f"baseline: {closest.name}" for stage in plan.stages):
        return f"It is {name}: nothing faster was found."
    if abs(saved) < _ALIKE:
        return f"It takes as long as {name}, the fastest of the known schemes."
    if saved < 0:
        return f"{name} would take {-saved:.1%} less, but was excluded."
    but = _where_layers_are_alike(plan, closest)
    return f"It saves {saved:.1%} of a step of {name}, the fastest of the known schemes{but}."


def _where_layers_are_alike(plan: Plan, closest: PlannedBaseline) -> str:
    """What differs from data parallelism, if not how layers are split."""
    if len(plan.stages) > 1 or closest.name != "data parallel" or closest.iteration_s is None:
        return ""
    if not all(kind.is_data_parallel for kind in _kinds(plan.stage)):
        return ""
    cost, waits_s = figures(plan).cost, closest.communication_s or 0.0
    computes_s = closest.iteration_s - waits_s
    told = []
    if plan.micro_batches != closest.micro_batches:
        count = plan.micro_batches
        those = f"{count} micro-batch{'es' if count > 1 else ''}"
        told.append(f"has {those} instead of {closest.micro_batches}")
    if waits_s - cost.exposed_s > _ALIKE * closest.iteration_s:
        ours, theirs = format_seconds(cost.exposed_s), format_seconds(waits_s)
        told.append(f"waits {ours} instead of {theirs} for communication")
    if computes_s - cost.compute_s > _ALIKE * closest.iteration_s:
        ours, theirs = format_seconds(cost.compute_s), format_seconds(computes_s)
        told.append(f"computes for {ours} instead of {theirs}")
    how = f": it {' and '.join(told)}" if told else ""
    return f"; layers are split alike there{how}"


def _repeated(plan: Plan) -> str:
    """Which layers several devices compute alike, and what would use them."""
    share, found = repeated(plan), repeated_layers(plan)
    if share < _SOME:
        return ""
    first = found[0]
    others = f" and {_counted(len(found) - 1, 'other ')}" if len(found) > 1 else ""
    return (
        f"{first.split.count(COPIES)} devices each compute the same of {_called(first)}{others} "
        f"({share:.0%} of all computation is done again); a larger batch, wider layers or faster "
        "links would use them, and 'autoddl explain --suggest' computes what fewer devices would "
        "do."
    )


def _called(layer: PlannedLayer) -> str:
    """Its name; `layer 2` where that is a number, as in an nn.Sequential."""
    return f"layer {layer.name}" if layer.name.isdigit() else layer.name


def _counted(layers: int, which: str = "") -> str:
    return f"{layers} {which}layer{'' if layers == 1 else 's'}"


def _named(scheme: PlannedBaseline) -> str:
    return f"{scheme.name} ({scheme.topology})" if scheme.topology else scheme.name
