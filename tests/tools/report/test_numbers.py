"""Every number with a unit that the page shows in a browser follows from the plan's figures."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterator

import pytest

from autoddl.cost.account import Cost, total
from autoddl.cost.exchange import exchanges
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans import Plan
from autoddl.plans.bounds import product_bytes
from autoddl.plans.figures import figures
from autoddl.plans.format import format_bytes, format_seconds, written
from autoddl.plans.report.changes import repeated, same_plan
from autoddl.plans.savings import savings
from autoddl.plans.schedule.schedule import Costs
from autoddl.plans.schedule.simulate import simulate
from autoddl.plans.stage import StagePlan
from autoddl.plans.stage_figures import stage_figures
from autoddl.sbp.collectives import Step, path_bytes, work_of
from autoddl.sbp.layout import local_slices
from autoddl.sbp.placement import NdSbp
from autoddl.sbp.redistribute import path_cost
from autoddl.tools.report.browser import ask, find_browser
from autoddl.tools.report.page import page
from tests.clusters import cluster
from tests.graphs import mlp
from tests.plans.example import BOTH, PLAN

pytestmark = pytest.mark.skipif(
    find_browser() is None, reason="looks at the page in Chromium, which is not on PATH"
)
NUMBER = re.compile(r"(?<![\w.])(\d[\d.]*(?:e[+-]\d+)?) ?(ns|us|ms|s|B|kB|MB|GB|TB|%)(?![\w/])")


def read(text: str) -> list[str]:
    return [f"{number} {unit}" for number, unit in NUMBER.findall(text)]


# Everything that can be read, without the scales of the pictures; the layers of each row.
READ = """(() => {
    document.querySelectorAll("details").forEach((d) => { d.open = true; });
    document.querySelectorAll(".tick").forEach((tick) => tick.remove());
    const spans = [...document.querySelectorAll("svg title, .bar span")];
    const rows = [...document.querySelectorAll(".layer")].map((row) =>
        [...row.querySelectorAll("button[data-layer]")].map((b) => b.dataset.layer));
    return {
        text: document.body.innerText,
        hidden: spans.map((e) => e.title || e.textContent),
        rows: rows.map((names) => [...new Set(names)]),
    };
})()"""


class Numbers:
    """As people read them: of seconds, of bytes, and shares of a whole."""

    def __init__(self) -> None:
        self.texts: set[str] = set()

    def seconds(self, *values: float | None) -> None:
        self.texts |= {format_seconds(abs(v)) for v in values if v is not None}

    def bytes(self, *values: float | None) -> None:
        self.texts |= {format_bytes(v) for v in values if v is not None and v < math.inf}

    def shares(self, whole: float, *parts: float) -> None:
        self.texts |= {written(part / whole, "share") for part in parts}
        self.texts |= {f"{part / whole:.{digits}%}" for part in parts for digits in (0, 1)}

    def cost(self, cost: Cost) -> None:
        self.seconds(cost.iteration_s, cost.compute_s, cost.communication_s)
        self.seconds(*dataclasses.astuple(cost.inter_s), *dataclasses.astuple(cost.intra_s))
        self.bytes(cost.memory_bytes, cost.nic_bytes.total, cost.intra_bytes.total)
        self.bytes(*dataclasses.astuple(cost.nic_bytes), *dataclasses.astuple(cost.intra_bytes))


def numbers(plan: Plan, rows: list[list[str]]) -> set[str]:
    """What the page of the plan may show; `rows` are the layers that it shows together."""
    found, known = Numbers(), figures(plan)
    found.seconds(known.iteration_s, known.timeline.makespan_s)
    costs = known.pass_costs
    free = Costs(costs.forward, costs.backward, costs.weight, {}, {})  # transfers in no time
    found.shares(1, known.timeline.bubble, simulate(known.schedule, free).bubble)
    found.bytes(plan.memory_limit_bytes, *known.needed_bytes)
    for span in known.timeline.spans:
        found.seconds(span.end_s - span.start_s)
    for price in known.prices:
        found.seconds(price.forward_s, price.backward_s, price.once_s)
    for exchange in known.timeline.exchanges:
        found.seconds(exchange.end_s - exchange.start_s)
    for forward, backward in known.travel.reshards.values():
        found.bytes(forward.spec.bytes)
        found.seconds(forward.seconds, forward.bound_s, backward.seconds if backward else 0.0)
    for scheme in plan.baselines:
        found.seconds(scheme.iteration_s, scheme.communication_s)
        found.bytes(scheme.memory_bytes)
        if scheme.iteration_s:
            found.shares(1, 1 - known.iteration_s / scheme.iteration_s)
    if plan.unhinted_s is not None:
        found.seconds(plan.unhinted_s)
        found.shares(plan.unhinted_s, known.iteration_s - plan.unhinted_s)
    found.bytes(*known.memory_bytes, known.received_bytes.total)
    found.bytes(sum(plan.graph.tensors[op.outputs[0]].spec.bytes for op in plan.graph.params))
    for after in (plan, *(change.plan for change in same_plan(plan) if change.plan)):
        found.seconds(figures(after).iteration_s)
        found.bytes(*figures(after).needed_bytes)
        found.shares(1, repeated(after))
    for stage in plan.stages:
        of_stage(found, stage, rows)
    of_machine(found, plan)
    return found.texts


def of_stage(found: Numbers, stage: StagePlan, rows: list[list[str]]) -> None:
    known, limit = stage_figures(stage), stage.memory_limit_bytes
    cost, peak, needed = known.cost, known.memory_peak("executor"), known.required_bytes()
    found.cost(cost)
    found.seconds(cost.hidden_s, cost.inter_s.gradient_sync + cost.intra_s.gradient_sync)
    found.bytes(limit)
    parts = cost.hidden_s, *dataclasses.astuple(cost.inter_s), *dataclasses.astuple(cost.intra_s)
    found.shares(cost.iteration_s, cost.iteration_s, cost.compute_s, *parts)
    for held in (peak, known.memory_peak("graph")):
        found.bytes(held.bytes, *held.by_cause.values(), needed - held.bytes)
        found.shares(limit, held.bytes, *held.by_cause.values(), needed, needed - held.bytes)
    found.bytes(*(moment.bytes for moment in known.memory_course))
    found.seconds(stage.search.lower_bound_s)
    found.shares(1, known.gap or 0.0)
    bound = product_bytes(stage)
    found.bytes(bound.moved, bound.least)
    saved = savings(stage)
    for saving in filter(None, (saved.accumulation, saved.storage, *saved.by_op.values())):
        found.bytes(saving.saved_bytes)
        found.seconds(saving.extra_s)
    by_name = {layer.name: layer for layer in stage.layers}
    for layer in stage.layers:
        found.cost(known.layer_cost(layer))
        found.seconds(layer.alternative_extra_s)
    sizes = {op.name: stage.graph.tensors[op.outputs[0]].spec.bytes for op in stage.graph.params}
    for split in {layer.split for layer in stage.layers}:
        alike = [layer for layer in stage.layers if layer.split == split]
        found.shares(cost.compute_s, sum(known.layer_cost(layer).compute_s for layer in alike))
        parameters = (sizes.get(name, 0) for layer in alike for name in layer.ops)
        found.shares(sum(sizes.values()), sum(parameters))
    for names in rows:
        if set(names) <= by_name.keys():
            found.cost(total(known.layer_cost(by_name[name]) for name in names))
    for tensor, source, steps, together in paths(stage):
        of_path(found, stage, tensor, source, steps, together)


def paths(stage: StagePlan) -> Iterator[tuple[str, NdSbp, tuple[Step, ...], int]]:
    """The last number: of gradients that travel in one bucket, which share its latency."""
    every = exchanges(stage.graph, stage.ops, stage.edges)
    together = {every[n].key: len(bucket) for bucket in stage.buckets for n in bucket}
    for op in stage.graph.ops:
        for index, tensor in enumerate(op.inputs):
            edge, producer = stage.edges.get((op.name, index)), stage.graph.producers[tensor]
            if edge is not None:
                yield tensor, stage.ops[producer.name].outs[0], edge.forward, 1
                back = stage.ops[op.name].grad_ins[index]
                if back is not None:
                    yield tensor, back, edge.backward, together.get((op.name, index), 1)


def of_path(
    found: Numbers, stage: StagePlan, tensor: str, nd: NdSbp, steps: tuple[Step, ...], together: int
) -> None:
    spec, model = stage.graph.tensors[tensor].spec, stage_figures(stage).model
    for step, before, after in path_bytes(spec, steps, nd, stage.mesh):
        alone_s = path_cost(spec, nd, (step,), stage.mesh, model.comm.price)
        latency_s, _ = model.comm.price(step.way, step.axes)
        found.seconds(alone_s - latency_s + latency_s / together)
        found.bytes(work_of(step, stage.mesh).device * max(before, after))
        nd = step.apply(nd)


def of_machine(found: Numbers, plan: Plan) -> None:
    device = plan.cluster.device
    found.seconds(device.launch_s)
    found.bytes(device.memory_bytes)
    for link in (plan.cluster.intra, plan.cluster.inter):
        found.seconds(link.alpha_s, link.call_s)
    for source in plan.cluster.sources.values():  # words of the machine file
        found.texts |= set(read(source))


def in_stages() -> Plan:
    """Gradients share a bucket in both stages, and some of them travel beside computation."""
    layers = mlp(512, (64, 256, 128, 256, 64))
    return find_plan(layers, cluster("laptop", 2, 2), PlanOptions(stages=2, micro_batches=2))


@pytest.mark.parametrize("make", [lambda: PLAN, in_stages], ids=["one mesh", "stages"])
def test_every_number_is_one_of_the_plan(make: Callable[[], Plan]):
    plan = make()
    shared = [max(map(len, stage.buckets), default=0) for stage in plan.stages]
    hidden = [stage_figures(stage).cost.hidden_s for stage in plan.stages]
    assert make is not in_stages or (min(shared) > 1 and hidden[0] > 0)
    told = ask(page(plan), READ)
    assert sum(map(len, told["rows"])) == len(plan.layers)
    known, seen = numbers(plan, told["rows"]), list[str]()
    for text in (told["text"], *told["hidden"]):
        seen += read(text)
    strange = {s for s in seen if s not in known and s.replace(" ", "") not in known}
    assert len(seen) > 60 and not strange


# Of each device the rectangles of each tensor: the block, and the whole tensor around it.
DRAWN = """(() => {
    const chooser = document.querySelector("#mesh select"), found = {};
    for (const option of chooser.options) {
        chooser.value = option.value;
        chooser.dispatchEvent(new Event("change"));
        found[option.textContent] = [...document.querySelectorAll(".device")].map((device) => ({
            says: device.getAttribute("aria-label"),
            summands: device.querySelectorAll(".summand").length,
            blocks: [...device.querySelectorAll(".whole")].map((whole) => {
                let block = whole.previousElementSibling;
                if (block.matches(".summand")) block = block.previousElementSibling;
                const [a, b] = [block, whole].map((e) =>
                    ["x", "y", "width", "height"].map((key) => Number(e.getAttribute(key))));
                return [(a[0] - b[0]) / b[2], (a[1] - b[1]) / b[3], a[2] / b[2], a[3] / b[3]];
            }),
        }));
    }
    return found;
})()"""


@pytest.mark.parametrize("plan", BOTH.values(), ids=BOTH)
def test_each_device_is_drawn_with_its_blocks(plan: Plan):
    drawn = ask(page(plan), DRAWN)
    assert list(drawn) == [layer.name for layer in plan.layers]
    for stage in plan.stages:
        for layer in stage.layers:
            (op,) = (op for op in stage.graph.ops if op.name in layer.ops and op.kind == layer.op)
            placed = stage.ops[op.name]
            held = [*zip((*op.inputs, *op.outputs), (*placed.ins, *placed.outs), strict=True)]
            devices = drawn[layer.name]
            assert len(devices) == stage.mesh.size
            for rank, device in enumerate(devices):
                assert device["summands"] == sum(nd.has_partial for _, nd in held)
                for (tensor, nd), (left, top, width, height) in zip(
                    held, device["blocks"], strict=True
                ):
                    shape = stage.graph.tensors[tensor].spec.shape
                    rows, columns = local_slices(shape, nd, stage.mesh, rank)
                    assert (top, height) == pytest.approx(
                        (rows.start / shape[0], (rows.stop - rows.start) / shape[0]), abs=1e-3
                    )
                    assert (left, width) == pytest.approx(
                        (columns.start / shape[1], (columns.stop - columns.start) / shape[1]),
                        abs=1e-3,
                    )


USED = """(() => {
    const names = () => [...document.querySelectorAll(".layer")]
        .filter((row) => !row.hidden).map((row) => row.dataset.name);
    const [sort, filter] = document.querySelectorAll(".controls select, .controls input");
    const change = (control, value, kind) => {
        control.value = value;
        control.dispatchEvent(new Event(kind));
        return names();
    };
    const found = {};
    for (const key of ["time", "communication", "memory", "name", "order"])
        found[key] = change(sort, key, "change");
    found.filtered = change(filter, "FC1", "input");
    document.querySelector(".layer:not([hidden]) button").click();
    found.chosen = document.querySelector("#mesh select").selectedOptions[0].textContent;
    return found;
})()"""


def test_layers_are_sorted_filtered_and_chosen():
    plan = BOTH["one mesh"]
    used, known = ask(page(plan), USED), stage_figures(plan.stage)
    cost = {layer.name: known.layer_cost(layer) for layer in plan.layers}
    assert sorted(used["order"]) == sorted(cost) and len(cost) == 4, "nothing is folded"
    keys = {"time": "iteration_s", "communication": "communication_s", "memory": "memory_bytes"}
    for key, field in keys.items():
        values = [getattr(cost[name], field) for name in used[key]]
        assert values == sorted(values, reverse=True)
    assert used["order"] == list(cost) and used["name"] == sorted(cost)
    assert used["filtered"] == [name for name in cost if "fc1" in name]
    assert used["chosen"] == used["filtered"][0]
